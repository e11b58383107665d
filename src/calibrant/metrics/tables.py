"""Results as tables for people: in percent, except for NLL and Brier score."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.display import Overview
from calibrant.errors import printable

if TYPE_CHECKING:
    from calibrant.metrics.comparison import Comparison
    from calibrant.metrics.evaluation import Evaluation
    from calibrant.metrics.groups import GroupedEvaluation
    from calibrant.metrics.result import Result

LABELS = {
    "test_error": "test error",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE",
    "ece_equal_mass": "ECE, equal mass",
    "mce": "MCE",
    "classwise_ece": "class-wise ECE",
    "smooth_ece": "smooth ECE",
    "debiased_ece": "debiased ECE",
    "ks": "KS error",
    # Not the area that a classifier of two classes is judged by: how well confidence tells right cases from wrong ones.
    "auroc": "AUROC, right or wrong",
    "aurc": "AURC",
}
_SET_LABELS = {
    "share": "share, ≥ {} % sure",
    "accuracy": "accuracy, ≥ {} % sure",
    "ece": "ECE, ≥ {} % sure",
    "ece_inside": "ECE, ≥ {} % sure, own bins",
}


# Names and paths are not folded: whoever reads a line of text wants to copy them.
_UNLIMITED = 10_000


def label(name: str) -> str:
    """Name for people of a flat metric name: "share@0.95" is "share, ≥ 95 % sure"."""
    if "@" not in name:
        return LABELS[name]
    metric, threshold = name.split("@")
    # Decimal: 100 * 0.07 is not 7, and six digits may not tell two thresholds apart.
    return _SET_LABELS[metric].format(f"{(100 * Decimal(threshold)).normalize():f}")


def number(name: str, value: float | None, *, signed: bool = False) -> str:
    """A value as text: percent with two digits, NLL and Brier with four; a dash where it is not defined."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    sign = "+" if signed else ""
    return f"{value:{sign}.4f}" if name in {"nll", "brier"} else f"{100 * value:{sign}.2f} %"


def is_main(name: str) -> bool:
    """Whether a metric is among the few that a prompt shows."""
    return name in {"test_error", "nll", "ece"} or name.startswith(("share@", "accuracy@"))


def evaluation_overview(evaluation: "Evaluation", shown: Callable[[str], bool] = lambda _: True) -> Overview:
    """One row per metric.

    Args:
        evaluation: The metrics.
        shown: Which of them are shown, by flat name.
    """
    ends = evaluation.intervals
    headings = ["metric", "value", *([] if ends is None else [f"{100 * (evaluation.level or 0):g} % interval"])]
    rows = []
    for name, value in evaluation.values().items():
        if not shown(name):
            continue
        beside = [] if ends is None else [_range(name, ends.get(name))]
        rows.append([label(name), number(name, value), *beside])
        if name == "ece":
            below = [] if ends is None else [f"95 % below {number(name, evaluation.noise_floor_95)}"]
            rows.append(["  by chance alone", number(name, evaluation.noise_floor), *below])
    title = f"{evaluation.n} rows, {evaluation.n_classes} classes, {evaluation.n_bins} bins"
    return Overview(title, rows, headings)


def evaluations_table(evaluations: Mapping[str, "Evaluation"]) -> str:
    """One set of predictions with its intervals, or several side by side."""
    if len(evaluations) == 1:
        return next(iter(evaluations.values())).table()
    table = Table(box=box.SIMPLE)
    table.add_column("metric")
    for name in evaluations:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    results = list(evaluations.values())
    table.add_row("rows", *(str(result.n) for result in results))
    table.add_row("classes", *(str(result.n_classes) for result in results))
    for name in results[0].values():
        table.add_row(label(name), *(_with_interval(name, result) for result in results))
        if name == "ece":
            table.add_row("  by chance alone", *(number(name, result.noise_floor) for result in results))
    return _render(table)


def _with_interval(name: str, result: "Evaluation") -> str:
    """The value, and below it the ends of its interval where it has one."""
    ends = None if result.intervals is None else result.intervals.get(name)
    text = number(name, result.values()[name])
    return text if ends is None else f"{text}\n{' to '.join(number(name, end) for end in ends)}"


def groups_overview(grouped: "GroupedEvaluation") -> Overview:
    """One row for each group, all cases first, without intervals."""
    shown = [name for name in grouped.overall.values() if is_main(name)]
    rows = [
        (group, f"{result.n:,}", *(number(name, result.values()[name]) for name in shown))
        for group, result in (("all", grouped.overall), *grouped.groups.items())
    ]
    title = f"{len(grouped.groups)} groups, worst by test error: {grouped.worst()}"
    return Overview(title, rows, ("group", "rows", *map(label, shown)))


def groups_table(grouped: "GroupedEvaluation") -> str:
    """One row for each group, all cases first, and which group is worst."""
    shown = ["test_error", "nll", "ece"]
    shown += [name for name in grouped.overall.values() if name.startswith(("share@", "accuracy@"))]
    table = Table(box=box.SIMPLE)
    table.add_column("group", overflow="fold")
    table.add_column("rows", justify="right")
    for name in shown:
        table.add_column(label(name), justify="right")
    for group, result in {"all": grouped.overall, **grouped.groups}.items():
        table.add_row(Text(printable(group)), str(result.n), *(_with_interval(name, result) for name in shown))
    lines = [_render(table, width=max(120, 24 + 22 * len(shown)))]
    lines.append(f"Worst by test error: {printable(str(grouped.worst()))}.")
    if grouped.level is not None:
        apart = ", ".join(map(printable, grouped.stand_out())) or "none"
        lines.append(
            f"Intervals of the {len(grouped.groups)} groups hold together with {100 * grouped.level:g} % for each "
            f"metric (Bonferroni). Worse than all cases beyond chance: {apart}."
        )
    return "\n".join(lines)


def grouped_table(grouped: Mapping[str, "GroupedEvaluation"]) -> str:
    """The groups of one set of predictions, or of several, one below the other with its name."""
    if len(grouped) == 1:
        return groups_table(next(iter(grouped.values())))
    return "\n".join(f"{printable(name)}\n{groups_table(each)}" for name, each in grouped.items())


def grouped_dict(grouped: Mapping[str, "GroupedEvaluation"]) -> dict[str, Any]:
    """The groups of one set of predictions as plain JSON values, or of several by name."""
    return evaluations_dict(grouped)


def evaluations_dict(evaluations: Mapping[str, "Result"]) -> dict[str, Any]:
    """One evaluation as plain JSON values, or several by name."""
    if len(evaluations) == 1:
        return next(iter(evaluations.values())).to_dict()
    return {name: evaluation.to_dict() for name, evaluation in evaluations.items()}


def comparison_overview(comparison: "Comparison", shown: Callable[[str], bool] = lambda _: True) -> Overview:
    """One row per metric: both values, the difference, its interval, the verdict.

    Args:
        comparison: The metrics of both models.
        shown: Which of them are shown, by flat name.
    """
    rows = [
        (
            label(row.name),
            number(row.name, row.a),
            number(row.name, row.b),
            number(row.name, row.difference, signed=True),
            _range(row.name, row.interval, signed=True),
            row.verdict,
        )
        for row in comparison.rows
        if shown(row.name)
    ]
    title = f"{comparison.n} rows, {comparison.n_resamples} paired resamples"
    return Overview(title, rows, ("metric", "a", "b", "b - a", f"{100 * comparison.level:g} % interval", "b is"))


def _range(name: str, ends: tuple[float, float] | None, *, signed: bool = False) -> str:
    if ends is not None and ends[0] == math.inf:
        return "a true class has probability 0"
    return "-" if ends is None else " to ".join(number(name, end, signed=signed) for end in ends)


def rendered(overview: Overview) -> str:
    """An overview as plain text."""
    table = Table(box=box.SIMPLE, title=overview.title)
    for heading in overview.columns:
        table.add_column(heading, justify="left" if heading in {"metric", "b is"} else "right")
    for row in overview.rows:
        table.add_row(*map(str, row))
    return _render(table)


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> str:
    """Any table as plain text; nothing in it is read as markup."""
    table = Table(box=box.SIMPLE, title=Text(title) if title else None)
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return _render(table, width=_UNLIMITED)


def _render(table: Table, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
