"""The methods of a study group by group: sites, devices, ages, or whatever a file says about each test case."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.metrics import FEWEST_RESAMPLES, GroupedEvaluation, Groups, column_of, evaluate_groups
from calibrant.predictions import Predictions, read_table
from calibrant.report import Grid
from calibrant.studies.study import Study
from calibrant.training import Run

_METRICS = (("TE", "test_error"), ("ECE", "ece"), ("|S95|", "share@0.95"))
# More rows than this are a list that nobody reads; the worst groups are kept.
_ROWS = 50


class _Method(NamedTuple):
    """One method: its groups seed by seed, and all seeds together with intervals that go by test cases."""

    seeds: list[GroupedEvaluation]
    together: GroupedEvaluation

    def mean(self, group: str | None, metric: str) -> float | None:
        """Mean over seeds in a group, or over all cases; None where no seed has a value."""
        evaluations = [each.overall if group is None else each.groups[group] for each in self.seeds]
        values = [value for each in evaluations if (value := each.values()[metric]) is not None]
        return statistics.fmean(values) if values else None

    def cell(self, group: str | None, metric: str) -> str:
        """The mean in percent, with the interval where there is one."""
        value = self.mean(group, metric)
        if value is None:
            return "-"
        own = self.together.overall if group is None else self.together.groups[group]
        ends = (own.intervals or {}).get(metric)
        return f"{100 * value:.2f}" + ("" if ends is None else f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})")

    def by_error(self) -> list[str]:
        """Groups, that with the largest mean test error first."""
        return sorted(self.together.groups, key=lambda group: -(self.mean(group, "test_error") or 0.0))


def read_groups(path: str | Path) -> list[str]:
    """The group of each test case, in the order of the test set: a CSV file with a column `group`."""
    columns = read_table(as_path(path, "groups"))
    if "group" not in columns:
        raise invalid(str(path), "have one column group", ", ".join(columns) or "none")
    return columns["group"]


def group_tables(study: Study, groups: Groups) -> list[Grid]:
    """One table for each data set and network: a row for each group, the means over seeds of every method.

    Args:
        study: The study.
        groups: Name of an extra column of the runs' test predictions, or one value for each test case, in the order of
            the test set.
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
    # One test set for all seeds, so a test case is a cluster of as many rows as there are seeds.
    case = np.tile(np.arange(len(tests[0])), len(tests))
    values = [column_of(test, groups, "groups") for test in tests]
    stacked = Predictions.from_logits(
        np.concatenate([each.as_logits() for each in tests]), np.concatenate([each.targets for each in tests])
    )
    # Intervals of shares are no bootstrap: the fewest draws will do.
    together = evaluate_groups(
        stacked, np.concatenate(values), clusters=case, n_bins=10, thresholds=(0.95,), n_resamples=FEWEST_RESAMPLES
    )
    seeds = [evaluate_groups(each, own, n_bins=10, thresholds=(0.95,)) for each, own in zip(tests, values, strict=True)]
    return _Method(seeds, together)


def _grid(place: tuple[str, str], methods: Mapping[str, _Method]) -> Grid:
    first = next(iter(methods.values()))
    columns = ("group", "cases", *(f"{label}: {heading}" for label in methods for heading, _ in _METRICS))
    rows = [
        (
            "all" if group is None else group,
            f"{(first.seeds[0].overall if group is None else first.seeds[0].groups[group]).n:,}",
            *(each.cell(group, metric) for each in methods.values() for _, metric in _METRICS),
        )
        for group in (None, *first.by_error()[:_ROWS])
    ]
    return Grid(f"{place[0]}, {place[1]}: by group", _caption(methods), columns, tuple(rows))


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
