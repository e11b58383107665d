"""Results as tables for people: in percent, except for metrics such as NLL and Brier score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.errors import printable
from calibrant.metrics.metric import FEWEST_TO_RANK, definition, label
from calibrant.tables import Table

if TYPE_CHECKING:
    from calibrant.metrics.evaluation import Evaluation, Interval, Result
    from calibrant.metrics.model_comparison import Comparison
    from calibrant.metrics.subgroups import GroupedEvaluation

# Names and paths are not folded: people want to copy them.
_UNLIMITED = 10_000


def _number(name: str, value: float | None, *, signed: bool = False) -> str:
    return definition(name).number(value, signed=signed)


def _range(name: str, ends: "Interval | None", *, signed: bool = False) -> str:
    if ends is None:
        return "-"
    if ends[0] == math.inf:
        return "a true class has probability 0"
    return " to ".join(_number(name, end, signed=signed) for end in ends)


def _with_interval(name: str, result: "Evaluation") -> str:
    """The value, and below it the ends of its interval if it has one."""
    ends = (result.intervals or {}).get(name)
    text = _number(name, result.values()[name])
    if ends is None:
        return text
    return f"{text}\n{' to '.join(_number(name, end) for end in ends)}"


def evaluation_overview(evaluation: "Evaluation", *, main: bool = False) -> Table:
    """One row per metric, or per main metric."""
    ends = evaluation.intervals
    headings, rows = ["metric", "value"], []
    for name, value in evaluation.values().items():
        if main and not definition(name).main:
            continue
        # Not defined for scores of the predicted class alone, or for scores that are only ranked.
        if value is None and (definition(name).all_classes or math.isnan(evaluation.noise_floor)):
            continue
        rows.append([label(name), _number(name, value), _range(name, (ends or {}).get(name))])
        if name == "ece":
            upper = f"95 % below {_number(name, evaluation.noise_floor_95)}"
            rows.append(["  by chance alone", _number(name, evaluation.noise_floor), upper])
    title = f"{evaluation.n} rows, {evaluation.n_classes} classes, {evaluation.n_bins} bins"
    if ends is None:
        return Table(title, [row[:2] for row in rows], headings)
    headings.append(f"{100 * (evaluation.level or 0):g} % interval")
    return Table(title, rows, headings, "\n".join(_missing_intervals(evaluation, main=main)))


def _missing_intervals(evaluation: "Evaluation", *, main: bool) -> list[str]:
    """Why metrics have no interval: one sentence for each reason, with the metrics that it is about."""
    reasons: dict[str, list[str]] = {}
    for name, value in evaluation.values().items():
        metric = definition(name)
        if value is None or name in (evaluation.intervals or {}) or (main and not metric.main):
            continue
        reason = metric.no_interval
        if not reason and metric.family == "ranking":
            reason = f"Fewer than {FEWEST_TO_RANK} rows (or clusters) are wrong, or right."
        elif not reason and "@" in name:
            reason = "The set has fewer than 10 rows, or rows have weights or come in clusters."
        elif not reason:
            reason = "No method that covers is known if rows have weights or come in clusters."
        reasons.setdefault(reason, []).append(label(name))
    return [f"No interval of {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def comparison_overview(comparison: "Comparison", *, main: bool = False) -> Table:
    """One row per metric, or per main metric: both values, the difference, its interval, the verdict."""
    rows = []
    for row in comparison.rows:
        if main and not definition(row.name).main:
            continue
        values = _number(row.name, row.a), _number(row.name, row.b), _number(row.name, row.difference, signed=True)
        rows.append((label(row.name), *values, _range(row.name, row.interval, signed=True), row.verdict))
    title = f"{comparison.n} rows, {comparison.n_resamples} paired resamples"
    return Table(title, rows, ("metric", "a", "b", "b - a", f"{100 * comparison.level:g} % interval", "b is"))


def groups_overview(grouped: "GroupedEvaluation") -> Table:
    """One row for each group, all rows first, without intervals."""
    shown = [name for name in grouped.overall.values() if definition(name).main]
    rows = []
    for group, result in {"all": grouped.overall, **grouped.groups}.items():
        values = result.values()
        rows.append((group, f"{result.n:,}", *(_number(name, values[name]) for name in shown)))
    title = f"{len(grouped.groups)} groups, worst by test error: {grouped.worst()}"
    return Table(title, rows, ("group", "rows", *map(label, shown)))


def groups_table(grouped: "GroupedEvaluation") -> str:
    """One row for each group, all rows first, with intervals, and which group is worst."""
    shown = [name for name in grouped.overall.values() if definition(name).main]
    rows = []
    for group, result in {"all": grouped.overall, **grouped.groups}.items():
        rows.append((group, str(result.n), *(_with_interval(name, result) for name in shown)))
    lines = [Table("", rows, ("group", "rows", *map(label, shown))).terminal(width=_UNLIMITED)]
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


def evaluations_table(evaluations: Mapping[str, "Evaluation"]) -> str:
    """One set of predictions with its intervals, or several side by side."""
    results = list(evaluations.values())
    if len(results) == 1:
        return results[0].table()
    rows = [("rows", *(str(result.n) for result in results))]
    rows.append(("classes", *(str(result.n_classes) for result in results)))
    for name in results[0].values():
        rows.append((label(name), *(_with_interval(name, result) for result in results)))
        if name == "ece":
            rows.append(("  by chance alone", *(_number(name, result.noise_floor) for result in results)))
    return Table("", rows, ("metric", *evaluations)).terminal(width=120)


def evaluations_dict(evaluations: Mapping[str, "Result"]) -> dict[str, Any]:
    """One evaluation as plain JSON values, or several by name."""
    if len(evaluations) == 1:
        return next(iter(evaluations.values())).to_dict()
    return {name: evaluation.to_dict() for name, evaluation in evaluations.items()}


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> str:
    """Any table as plain text."""
    return Table(title, list(rows), headings).terminal(width=_UNLIMITED)
