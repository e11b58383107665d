"""How accuracy changes with the share that is automated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.bounds import check_numbers, interval
from calibrant.decisions.rule import route_all, threshold_text
from calibrant.errors import invalid
from calibrant.predictions import Predictions
from calibrant.tables import ShownFields, plain_table


@dataclass(frozen=True)
class CoverageRow(ShownFields):
    """One line of the risk-coverage table. Its 95 % interval holds for this line alone, not over a choice of lines."""

    threshold: float  # automate at this confidence and above
    coverage: float  # share of the cases that are automated
    automated: int
    errors: int  # automated cases that are wrong
    accuracy: float
    accuracy_low: float
    accuracy_high: float


def risk_coverage(
    predictions: Predictions,
    coverages: Sequence[float] = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
) -> list[CoverageRow]:
    """Accuracy of the most confident part of the cases, for several sizes of that part.

    Equal confidences stay together, so a line may cover somewhat more than asked.

    Args:
        predictions: Labelled cases.
        coverages: Shares of the cases in (0, 1].
    """
    shares = check_numbers("coverages", coverages, "be shares in (0, 1], at least one")
    if not shares.all():
        raise invalid("coverages", "be shares in (0, 1], at least one", coverages)
    routed = route_all(predictions)
    thresholds, automated, errors = coverage_curve(routed.confidence, routed.predicted != predictions.targets)
    cases = len(predictions)
    wanted = np.searchsorted(automated, np.ceil(np.sort(shares)[::-1] * cases - 1e-9), side="left")
    rows = []
    for at in dict.fromkeys(wanted.tolist()):
        count, wrong = int(automated[at]), int(errors[at])
        low, high = interval(count - wrong, count)
        share, accuracy = count / cases, 1.0 - wrong / count
        rows.append(CoverageRow(float(thresholds[at]), share, count, wrong, accuracy, float(low), float(high)))
    return rows


def coverage_table(rows: list[CoverageRow]) -> str:
    """What `risk_coverage` returned, as text."""
    lines = []
    for row in rows:
        ends = f"{100 * row.accuracy_low:.1f} to {100 * row.accuracy_high:.1f}"
        automated, accuracy = f"{100 * row.coverage:.0f}", f"{100 * row.accuracy:.2f}"
        lines.append((automated, threshold_text(row.threshold), accuracy, ends))
    headings = ("automated %", "threshold", "accuracy %", "interval %")
    return plain_table(headings, lines, title="Risk and coverage (each interval for its own line)")


def coverage_curve(
    confidence: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every distinct confidence, strictest first, with the cases and the errors at or above it."""
    order = np.argsort(-confidence, kind="stable")
    ranked = confidence[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)])
    return ranked[last], last + 1, np.cumsum(wrong[order], dtype=np.int64)[last]
