"""The methods of a study by group: sites, devices, ages, or whatever a file says about each test case."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrant.metrics import Evaluation, evaluate_groups
from calibrant.metrics.evaluation import FEWEST_RESAMPLES
from calibrant.metrics.metric import Groups, column_of
from calibrant.metrics.subgroups import GroupedEvaluation
from calibrant.predictions import Predictions
from calibrant.studies.study_folder import Study
from calibrant.tables import Table
from calibrant.training import Run

_METRICS = (("TE", "test_error"), ("ECE", "ece"), ("|S95|", "share@0.95"))
# Nobody reads more rows than this. The worst groups are kept.
_ROWS = 50


class _Method(NamedTuple):
    """One method: its groups by seed, and all seeds together with intervals over test cases."""

    seeds: list[GroupedEvaluation]
    together: GroupedEvaluation

    def mean(self, group: str | None, metric: str) -> float | None:
        """Return the mean over seeds in a group, or over all cases. None if no seed has a value."""
        values = [_of_group(seed, group).values()[metric] for seed in self.seeds]
        known = [value for value in values if value is not None]
        if not known:
            return None
        return statistics.fmean(known)

    def cell(self, group: str | None, metric: str) -> str:
        """Return the mean in percent, with its interval if there is one."""
        value = self.mean(group, metric)
        if value is None:
            return "-"
        ends = (_of_group(self.together, group).intervals or {}).get(metric)
        if ends is None:
            return f"{100 * value:.2f}"
        return f"{100 * value:.2f} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"

    def by_error(self) -> list[str]:
        """Return the groups, the one with the largest mean test error first."""
        return sorted(self.together.groups, key=lambda group: -(self.mean(group, "test_error") or 0.0))


def _of_group(grouped: GroupedEvaluation, group: str | None) -> Evaluation:
    """Return the evaluation of a group; None stands for all cases."""
    if group is None:
        return grouped.overall
    return grouped.groups[group]


def group_tables(study: Study, groups: Groups) -> list[Table]:
    """Return a table for each data set and network: one row per group, with the means over seeds of every method.

    Args:
        study: The study.
        groups: Name of an extra column of the runs' test predictions, or one value per test case in the order of the
            test set.
    """
    folders: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for planned in study.finished():
        folders.setdefault(planned.place, {}).setdefault(planned.label, []).append(study.folder(planned))
    return [
        _grid(place, {label: _method(own, groups) for label, own in methods.items()})
        for place, methods in folders.items()
    ]


def _method(folders: Sequence[Path], groups: Groups) -> _Method:
    tests = [Run.open(folder).predictions("test") for folder in folders]
    # All seeds share one test set, so a test case is a cluster with one row per seed.
    case = np.tile(np.arange(len(tests[0])), len(tests))
    values = [column_of(test, groups, "groups") for test in tests]
    stacked = Predictions.from_logits(
        np.concatenate([each.as_logits() for each in tests]), np.concatenate([each.targets for each in tests])
    )
    # Intervals of shares are exact and not bootstrapped, so the fewest draws are enough.
    together = evaluate_groups(
        stacked, np.concatenate(values), clusters=case, n_bins=10, thresholds=(0.95,), n_resamples=FEWEST_RESAMPLES
    )
    seeds = [evaluate_groups(each, own, n_bins=10, thresholds=(0.95,)) for each, own in zip(tests, values, strict=True)]
    return _Method(seeds, together)


def _grid(place: tuple[str, str], methods: Mapping[str, _Method]) -> Table:
    first = next(iter(methods.values()))
    columns = ("group", "cases", *(f"{label}: {heading}" for label in methods for heading, _ in _METRICS))
    rows = []
    for group in (None, *first.by_error()[:_ROWS]):
        cases = f"{_of_group(first.seeds[0], group).n:,}"
        cells = [method.cell(group, metric) for method in methods.values() for _, metric in _METRICS]
        rows.append(("all" if group is None else group, cases, *cells))
    return Table(f"{place[0]}, {place[1]}: by group", tuple(rows), columns, _caption(methods))


def _caption(methods: Mapping[str, _Method]) -> str:
    count = len(next(iter(methods.values())).together.groups)
    worst, apart = [], []
    for label, each in methods.items():
        group = each.by_error()[0]
        worst.append(f"{label}: {group} ({100 * (each.mean(group, 'test_error') or 0.0):.2f} %)")
        apart.append(f"{label}: {', '.join(each.together.stand_out()[:_ROWS]) or 'none'}")
    left_out = f" The {count - _ROWS:,} groups with the lowest test error are left out." if count > _ROWS else ""
    return (
        "In percent, test set, 10 bins, raw figures: means over seeds in each group. "
        f"Worst group by mean test error: {'; '.join(worst)}. "
        f"Intervals are over test cases, for these trained models; those of the {count:,} groups hold together with "
        "95 % for each method and metric (Bonferroni). "
        f"Worse than all cases beyond chance: {'; '.join(apart)}.{left_out}"
    )
