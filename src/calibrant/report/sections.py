"""Further parts of the page, each with a table and a picture: the groups of a model, or the tables of a study."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.metrics import Evaluation, evaluate_groups
from calibrant.metrics.metric import Groups, label
from calibrant.metrics.subgroups import GroupedEvaluation
from calibrant.predictions import Predictions, read_table
from calibrant.report.entries import png_uri
from calibrant.report.figures import group_reliability
from calibrant.report.style import png_bytes
from calibrant.report.wording import confidence
from calibrant.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nobody reads more rows than this; the worst groups are kept.
_ROWS = 50


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        grid: A table; its caption is shown above it.
        figure: A picture above the table, or None.
        described: What the picture shows, for those who cannot see it.
        leads: Whether it is shown at the top of the page, not below the comparison.
    """

    title: str
    grid: Table
    figure: "Figure | None" = None
    described: str = ""
    leads: bool = False

    @property
    def picture(self) -> str:
        """The figure inside an address; empty without one."""
        if self.figure is None:
            return ""
        return png_uri(png_bytes(self.figure))


def group_section(
    name: str, predictions: Predictions, groups: Groups, *, threshold: float, n_bins: int, n_resamples: int
) -> Section:
    """The groups of one model: a table with intervals that hold in all groups at once, and reliability diagrams."""
    grouped = evaluate_groups(predictions, groups, n_bins=n_bins, thresholds=(threshold,), n_resamples=n_resamples)
    title = f"Groups: {name}"
    if isinstance(groups, str):
        title = f"Groups by {groups}: {name}"
    figure = group_reliability(predictions, groups, n_bins=n_bins)
    described = "Reliability diagrams of all cases and of the largest groups; the numbers are in the table."
    return Section(title, _group_table(grouped), figure, described)


def _group_table(grouped: GroupedEvaluation) -> Table:
    """All cases, then the groups, the worst first."""
    metrics = [name for name in grouped.overall.values() if name in ("test_error", "ece")]
    metrics += [name for name in grouped.overall.values() if name.startswith(("share@", "accuracy@"))]
    worst_first = sorted(grouped.groups.items(), key=lambda item: -item[1].test_error)
    rows = [
        (group, f"{result.n:,}", *(_group_cell(result, metric) for metric in metrics))
        for group, result in (("all", grouped.overall), *worst_first[:_ROWS])
    ]
    headings = ("group", "cases", *(_group_heading(metric) for metric in metrics))
    return Table("Groups", rows, headings, _group_caption(grouped))


def _group_heading(metric: str) -> str:
    kind, _, threshold = metric.partition("@")
    if kind == "share":
        return f"automated at {confidence(float(threshold))}, %"
    if kind == "accuracy":
        return "right among these, %"
    return f"{label(metric)} %"


def _group_caption(grouped: GroupedEvaluation) -> str:
    sentences = [f"In percent. Worst by test error: {grouped.worst()}."]
    if grouped.level is not None:
        worse = ", ".join(grouped.stand_out()[:_ROWS]) or "none"
        sentences.append(
            f"Intervals of the {len(grouped.groups):,} groups hold together with {100 * grouped.level:g} % for each "
            f"metric (Bonferroni). Worse than all cases beyond chance: {worse}."
        )
    left_out = len(grouped.groups) - _ROWS
    if left_out > 0:
        sentences.append(f"The {left_out:,} groups with the lowest test error are left out.")
    return " ".join(sentences)


def _group_cell(result: Evaluation, metric: str) -> str:
    value, ends = result.values()[metric], (result.intervals or {}).get(metric)
    if value is None:
        return "-"
    if ends is None:
        return f"{100 * value:.2f}"
    return f"{100 * value:.2f} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def read_groups(path: str | Path) -> list[str]:
    """Read the group of each test case, in the order of the test set, from a CSV file with a column `group`."""
    columns = read_table(as_path(path, "groups"))
    if "group" not in columns:
        raise invalid(str(path), "have one column group", ", ".join(columns) or "none")
    return columns["group"]
