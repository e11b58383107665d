"""A model group by group on the page: a table with intervals that hold in all groups, the worst named, and pictures."""

from pathlib import Path

from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.metrics import Evaluation, evaluate_groups
from calibrant.metrics.metric import Groups, label
from calibrant.metrics.subgroups import GroupedEvaluation
from calibrant.predictions import Predictions, read_table
from calibrant.report.figures.reliability import group_reliability
from calibrant.report.sections import Section
from calibrant.report.wording import confidence
from calibrant.tables import Table

# More rows than this are a list that nobody reads; the worst groups are kept.
_ROWS = 50


def group_section(
    name: str, predictions: Predictions, groups: Groups, *, threshold: float, n_bins: int, n_resamples: int
) -> Section:
    """The groups of one model.

    Args:
        name: Of the model.
        predictions: What it said.
        groups: Name of an extra column, or one value per row.
        threshold: Of the high-confidence set.
        n_bins: Bins of the calibration errors and pictures.
        n_resamples: Resamples behind the intervals; 0 for none.
    """
    grouped = evaluate_groups(predictions, groups, n_bins=n_bins, thresholds=(threshold,), n_resamples=n_resamples)
    called = f" by {groups}" if isinstance(groups, str) else ""
    figure = group_reliability(predictions, groups, n_bins=n_bins)
    described = "Reliability diagrams of all cases and of the largest groups; the numbers are in the table."
    return Section(f"Groups{called}: {name}", group_grid(grouped), figure, described)


def group_grid(grouped: GroupedEvaluation) -> Table:
    """All cases, then the groups, the worst first."""
    metrics = [name for name in grouped.overall.values() if name in ("test_error", "ece")]
    metrics += [name for name in grouped.overall.values() if name.startswith(("share@", "accuracy@"))]
    worst_first = sorted(grouped.groups.items(), key=lambda item: -item[1].test_error)
    rows = tuple(
        (group, f"{result.n:,}", *(_cell(result, each) for each in metrics))
        for group, result in (("all", grouped.overall), *worst_first[:_ROWS])
    )
    return Table("Groups", rows, ("group", "cases", *map(_heading, metrics)), _caption(grouped))


def _heading(metric: str) -> str:
    kind, _, threshold = metric.partition("@")
    if not threshold:
        return f"{label(metric)} %"
    return f"automated at {confidence(float(threshold))}, %" if kind == "share" else "right among these, %"


def _caption(grouped: GroupedEvaluation) -> str:
    left_out = len(grouped.groups) - _ROWS
    told = [f"In percent. Worst by test error: {grouped.worst()}."]
    if grouped.level is not None:
        apart = ", ".join(grouped.stand_out()[:_ROWS]) or "none"
        told.append(
            f"Intervals of the {len(grouped.groups):,} groups hold together with {100 * grouped.level:g} % for each "
            f"metric (Bonferroni). Worse than all cases beyond chance: {apart}."
        )
    if left_out > 0:
        told.append(f"The {left_out:,} groups with the lowest test error are left out.")
    return " ".join(told)


def _cell(result: Evaluation, metric: str) -> str:
    value, ends = result.values()[metric], (result.intervals or {}).get(metric)
    if value is None:
        return "-"
    interval = "" if ends is None else f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    return f"{100 * value:.2f}{interval}"


def read_groups(path: str | Path) -> list[str]:
    """Read the group of each test case, in the order of the test set, from a CSV file with a column `group`."""
    columns = read_table(as_path(path, "groups"))
    if "group" not in columns:
        raise invalid(str(path), "have one column group", ", ".join(columns) or "none")
    return columns["group"]
