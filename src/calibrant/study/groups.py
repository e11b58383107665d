"""The methods of a study group by group: sites, devices, ages, or whatever a file says about each test case."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.metrics import Evaluation, GroupedEvaluation, evaluate_groups
from calibrant.predictions import csv_records
from calibrant.report import Grid
from calibrant.study.study import Study
from calibrant.training import Run

_METRICS = (("TE", "test_error"), ("ECE", "ece"), ("|S95|", "share@0.95"))


def read_groups(path: str | Path) -> list[str]:
    """The group of each test case, in the order of the test set: a CSV file with a column `group`."""
    records = csv_records(as_path(path, "groups"), str(path))
    header = next(records, [])
    if header.count("group") != 1:
        raise invalid(str(path), "have one column group", ", ".join(header) or "none")
    at = header.index("group")
    return [record[at] for record in records]


def group_tables(study: Study, groups: Sequence[str]) -> list[Grid]:
    """One table for each data set and network: a row for each group, the means over seeds of every method.

    Args:
        study: The study.
        groups: One value for each test case, in the order of the test set.
    """
    found: dict[tuple[str, str], dict[str, list[GroupedEvaluation]]] = {}
    for planned in study.finished():
        test = Run.open(study.folder(planned)).predictions("test")
        place = (planned.recipe.data.name, planned.recipe.model.name)
        made = evaluate_groups(test, list(groups), n_bins=10, thresholds=(0.95,))
        found.setdefault(place, {}).setdefault(planned.label, []).append(made)
    return [_grid(place, methods) for place, methods in found.items()]


def _grid(place: tuple[str, str], methods: dict[str, list[GroupedEvaluation]]) -> Grid:
    first = next(iter(methods.values()))[0]
    columns = ("group", "cases", *(f"{label}: {heading}" for label in methods for heading, _ in _METRICS))
    rows = []
    for group in (None, *first.groups):
        of_methods = [
            [each.overall if group is None else each.groups[group] for each in own] for own in methods.values()
        ]
        cells = [_mean(own, metric) for own in of_methods for _, metric in _METRICS]
        rows.append(("all" if group is None else group, f"{of_methods[0][0].n:,}", *cells))
    worst = "; ".join(f"{label}: {_worst(own)}" for label, own in methods.items())
    caption = (
        "In percent, test set, 10 bins, raw figures: means over seeds in each group. "
        f"Worst group by mean test error: {worst}. Of many groups one is always worst: calibrant evaluate --groups, on "
        "the predictions of one run, says whether it is beyond chance."
    )
    return Grid(f"{place[0]}, {place[1]}: by group", caption, columns, tuple(rows))


def _mean(found: list[Evaluation], metric: str) -> str:
    values = [value for each in found if (value := each.values()[metric]) is not None]
    return f"{100 * statistics.fmean(values):.2f}" if values else "-"


def _worst(found: list[GroupedEvaluation]) -> str:
    means = {group: statistics.fmean(each.groups[group].test_error for each in found) for group in found[0].groups}
    group = max(means, key=lambda name: means[name])
    return f"{group} ({100 * means[group]:.2f} %)"
