"""The table that compares methods: which columns, what their numbers are, and what chance allows to say about them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

import numpy as np

from calibrant.metrics import Evaluation
from calibrant.metrics.intervals import resample_models, share_intervals
from calibrant.metrics.metric import set_metric
from calibrant.metrics.model_comparison import differences
from calibrant.predictions import Predictions, same_targets
from calibrant.report.judged import TARGETS
from calibrant.report.wording import DASH, confidence, fixed, percent


@dataclass(frozen=True)
class Compared:
    """The numbers of one method by name, and what chance allows to say about them.

    `intervals` are of 95 %, `verdicts` are "better" or "worse" than the first method if the data can tell, and `wins`
    names the metrics in which the method is better than every other one. What is not defined is left out.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    verdicts: dict[str, str]
    wins: list[str]


def same_cases(a: Predictions, b: Predictions) -> bool:
    """Whether two methods were measured on the same cases in the same order, judged by targets and ids."""
    if len(a) != len(b) or (a.has_all_classes and b.has_all_classes and a.n_classes != b.n_classes):
        return False
    if not same_targets(a, b).all():
        return False
    return a.ids is None or b.ids is None or bool((a.ids.astype(np.str_) == b.ids.astype(np.str_)).all())


def compared(methods: Sequence[Predictions], evaluations: Sequence[Evaluation], *, n_resamples: int) -> list[Compared]:
    """Intervals and verdicts of every method; the same as `evaluate` and `compare` give, in a fraction of the time.

    All methods on the cases of the first see the same draws, so one pass serves the intervals of each and the paired
    difference of each to the first. Methods on other cases are resampled alone and get no verdict. Without resamples
    only shares have intervals (exact ones).
    """
    results = []
    for evaluation in evaluations:
        values = {name: value for name, value in evaluation.values().items() if value is not None}
        results.append(Compared(values, share_intervals(evaluation), {}, []))
    if not n_resamples:
        return results
    together = [place for place, cases in enumerate(methods) if same_cases(methods[0], cases)]
    alone = [[place] for place in range(len(methods)) if place not in together]
    for places in (together, *alone):
        resampled = resample_models(
            [methods[place] for place in places],
            [evaluations[place] for place in places],
            n_resamples=n_resamples,
            paired=len(places) > 1,
        )
        for place, draws in zip(places, resampled, strict=True):
            verdicts_against = [
                {row.name: str(row.verdict) for row in differences(other, draws) if row.verdict != "cannot tell"}
                for other in resampled
                if other is not draws
            ]
            verdicts, wins = {}, []
            if verdicts_against:
                first = verdicts_against[0]
                wins = [name for name in first if all(other.get(name) == "better" for other in verdicts_against)]
                if draws is not resampled[0]:
                    verdicts = first
            results[place] = Compared(results[place].values, draws.intervals(), verdicts, wins)
    return results


@dataclass(frozen=True)
class Column:
    """One column: the name of its number, the heading, and a sentence for those who do not know it.

    `better` is None for a share at a fixed confidence, which overconfidence makes larger.
    """

    key: str
    label: str
    about: str
    better: Literal["low", "high"] | None = "low"
    unit: Literal["percent", "plain"] = "percent"
    digits: int = 2


class TableCell(NamedTuple):
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
        Column("nll", "NLL", "Negative log-likelihood: punishes confident mistakes.", unit="plain", digits=3),
        Column(
            "auroc",
            "AUROC, right or wrong",
            "How well confidence tells right cases from wrong ones; not the AUROC between two classes.",
            "high",
        ),
        Column("aurc", "AURC", "Mean error over all shares that could be automated."),
        *(
            Column(
                f"promised@{target:g}",
                f"May automate at {percent(target, 0)} promised",
                "Share of cases above the lowest threshold at which the method's own validation cases promise that "
                f"{percent(target, 0)} are right, with 95 % confidence; 0: nothing can be promised.",
                "high",
            )
            for target in TARGETS
        ),
        Column(
            set_metric("share", threshold),
            f"Automated {there}",
            f"Share of cases with confidence {confidence(threshold)} or more. An overconfident model has more of them, "
            "and is wrong in more: it is no measure of quality.",
            None,
        ),
        Column(set_metric("accuracy", threshold), f"Right {there}", "Accuracy of what is automated.", "high"),
        Column(set_metric("ece", threshold), f"ECE {there}", "Calibration error of what is automated."),
        Column("samples_seen", "Samples seen", "Sample updates in training.", unit="plain", digits=0),
        Column("train_seconds", "Training time (s)", "Seconds of training.", unit="plain", digits=1),
    )


def comparison(
    methods: Sequence[Compared], threshold: float, *, comparable: bool = True
) -> tuple[tuple[Column, ...], list[list[TableCell]]]:
    """Columns that at least one method has a number for, and a row of cells for each method.

    A value is marked as the best if it is better than every other one beyond chance: by paired resamples, or because
    its 95 % interval overlaps with no other. Without `comparable`, for methods on different cases, none is marked.
    """
    used = tuple(column for column in columns(threshold) if any(column.key in method.values for method in methods))
    rows = []
    for method in methods:
        others = [other for other in methods if other is not method]
        cells = []
        for column in used:
            best = column.key in method.wins or _stands_apart(column, method, others)
            cells.append(_cell(column, method, best and comparable and column.better is not None))
        rows.append(cells)
    return used, rows


def _stands_apart(column: Column, method: Compared, others: Sequence[Compared]) -> bool:
    """Whether the whole interval of a method is better than those of all others that have a number."""
    pairs = [other.intervals.get(column.key) for other in others if column.key in other.values]
    ends = method.intervals.get(column.key)
    if ends is None or not pairs:
        return False
    if column.better == "low":
        return all(pair is not None and ends[1] < pair[0] for pair in pairs)
    return all(pair is not None and ends[0] > pair[1] for pair in pairs)


def _cell(column: Column, method: Compared, best: bool) -> TableCell:
    value, pair = method.values.get(column.key), method.intervals.get(column.key)
    ends, verdict = "", ""
    if pair is not None:
        ends = f"[{', '.join(_text(column, end).removesuffix('%').rstrip() for end in pair)}]"
    if column.better is not None:
        verdict = method.verdicts.get(column.key, "")
    return TableCell(value, _text(column, value), ends, best, verdict)


def _text(column: Column, value: float | None) -> str:
    if value is None:
        return DASH
    if math.isinf(value):
        return "∞"
    if column.unit == "plain":
        return f"{Decimal(fixed(value, column.digits)):,}"
    return percent(value, column.digits)
