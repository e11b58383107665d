"""The table that compares methods: which columns, what their numbers are, which is best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from calibrant.metrics.metric import higher_is_better, set_metric
from calibrant.report.judged import TARGETS
from calibrant.report.wording import DASH, confidence, fixed, percent

# Columns that are not metrics.
_COSTS = ("samples_seen", "train_seconds")


@dataclass(frozen=True)
class Column:
    """One column: its number's name in the page's JSON, the heading, and a sentence for those who do not know it."""

    key: str
    label: str
    about: str
    unit: Literal["percent", "plain"] = "percent"
    digits: int = 2

    @property
    def better(self) -> Literal["low", "high"] | None:
        """Which end is good; None for a share at a fixed confidence, which overconfidence makes larger."""
        if self.key.startswith("share@"):
            return None
        if self.key.startswith("promised@"):
            return "high"
        if self.key not in _COSTS and higher_is_better(self.key):
            return "high"
        return "low"


@dataclass(frozen=True)
class TableCell:
    """One cell: the full number for sorting (None if there is none), texts, and whether it is the best of its column.

    The verdict is "better" or "worse" than the first method beyond chance; empty if the data cannot tell.
    """

    value: float | None
    text: str
    interval: str
    best: bool
    verdict: str


def columns(threshold: float) -> tuple[Column, ...]:
    """All columns of the table; a further column is one more line here."""
    there = f"at {confidence(threshold)}"
    return (
        Column("test_error", "Test error", "Share of all cases that is wrong."),
        Column("ece", "ECE", "Expected calibration error: how far confidence is from accuracy, on average."),
        Column("smooth_ece", "Smooth ECE", "The same without bins."),
        Column("nll", "NLL", "Negative log-likelihood: punishes confident mistakes.", "plain", 3),
        Column(
            "auroc",
            "AUROC, right or wrong",
            "How well confidence tells right cases from wrong ones; not the AUROC between two classes.",
        ),
        Column("aurc", "AURC", "Mean error over all shares that could be automated."),
        *(
            Column(
                f"promised@{target:g}",
                f"May automate at {percent(target, 0)} promised",
                "Share of cases above the lowest threshold at which the method's own validation cases promise that "
                f"{percent(target, 0)} are right, with 95 % confidence; 0: nothing can be promised.",
            )
            for target in TARGETS
        ),
        Column(
            set_metric("share", threshold),
            f"Automated {there}",
            f"Share of cases with confidence {confidence(threshold)} or more. An overconfident model has more of them, "
            "and is wrong in more: it is no measure of quality.",
        ),
        Column(set_metric("accuracy", threshold), f"Right {there}", "Accuracy of what is automated."),
        Column(set_metric("ece", threshold), f"ECE {there}", "Calibration error of what is automated."),
        Column("samples_seen", "Samples seen", "Sample updates in training.", "plain", 0),
        Column("train_seconds", "Training time (s)", "Seconds of training.", "plain", 1),
    )


def comparison(
    methods: Sequence[Mapping[str, Any]], threshold: float, *, same_cases: bool = True
) -> tuple[tuple[Column, ...], list[list[TableCell]]]:
    """Columns that at least one method of the page's JSON has a number for, and a row of cells for each method.

    A value is marked as the best if it is better than every other one beyond chance: by paired resamples, or because
    its 95 % interval overlaps with no other. Values of methods on different cases are not marked.
    """
    used = tuple(c for c in columns(threshold) if any(_value(c, method) is not None for method in methods))
    rows = []
    for method in methods:
        others = [other for other in methods if other is not method]
        cells = []
        for column in used:
            best = column.key in method["wins"] or _stands_apart(column, method, others)
            cells.append(_cell(column, method, best and same_cases and column.better is not None))
        rows.append(cells)
    return used, rows


def _value(column: Column, method: Mapping[str, Any]) -> float | None:
    value: float | None = method["metrics"].get(column.key)
    # JSON has no infinity: the NLL of a true class with probability 0 arrives as None.
    if value is None and column.key == "nll" and "nll" in method["metrics"]:
        return math.inf
    return value


def _stands_apart(column: Column, method: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the whole interval of a method is better than those of all others that have a number."""
    pairs = [other["intervals"].get(column.key) for other in others if _value(column, other) is not None]
    own = method["intervals"].get(column.key)
    if own is None or not pairs or None in pairs:
        return False
    if column.better == "low":
        return all(None not in (own[1], pair[0]) and own[1] < pair[0] for pair in pairs)
    return all(None not in (own[0], pair[1]) and own[0] > pair[1] for pair in pairs)


def _cell(column: Column, method: Mapping[str, Any], best: bool) -> TableCell:
    value, pair = _value(column, method), method["intervals"].get(column.key)
    ends, verdict = "", ""
    if pair is not None:
        ends = f"[{', '.join(_text(column, end, sign=False) for end in pair)}]"
    if column.better is not None:
        verdict = method["verdicts"].get(column.key, "")
    return TableCell(value, _text(column, value), ends, best, verdict)


def _text(column: Column, value: float | None, *, sign: bool = True) -> str:
    if (value is None and not sign) or value == math.inf:
        return "∞"
    if value is None:
        return DASH
    if column.unit == "plain":
        return f"{Decimal(fixed(value, column.digits)):,}"
    text = percent(value, column.digits)
    if sign:
        return text
    return text.removesuffix("%").rstrip()
