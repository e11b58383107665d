"""How accuracy and cost change with the share that is automated: tables and rules without a promise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import positive
from calibrant.decisions.bounds import check_numbers, interval
from calibrant.decisions.rule import Costs, Evidence, RoutingRule, route_all, threshold_text
from calibrant.errors import invalid
from calibrant.predictions import Predictions
from calibrant.tables import ShownFields, plain_table


def check_costs(cost_error: float | None, cost_review: float | None) -> tuple[float, float] | None:
    """The cost of an automated error and of a review, in one unit; None if neither is given.

    A person who looks at a case is taken to decide it rightly.
    """
    if cost_error is None and cost_review is None:
        return None
    return positive("cost_error", cost_error), positive("cost_review", cost_review)


@dataclass(frozen=True)
class CoverageRow(ShownFields):
    """One line of the risk-coverage table.

    Attributes:
        threshold: Automate at this confidence and above.
        coverage, automated, errors: Share and number of cases that are automated, and the wrong ones of these.
        accuracy, accuracy_low, accuracy_high: Share of them that is right, and its 95 % interval (Clopper-Pearson). The
            interval holds for this line alone, not over a choice of lines.
    """

    threshold: float
    coverage: float
    automated: int
    errors: int
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


def cheapest_threshold(
    predictions: Predictions, *, cost_error: float | None = None, cost_review: float | None = None
) -> RoutingRule:
    """The threshold with the lowest cost on these cases, without a promise about accuracy.

    Cost at t: `cost_error` for each error at or above t, `cost_review` for each case below. For a calibrated model the
    best threshold is 1 - cost_review / cost_error. `choose_threshold` with costs adds the promise.

    >>> from calibrant.predictions import Predictions
    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    >>> cheapest_threshold(predictions, cost_error=10, cost_review=1).threshold
    0.8
    """
    predictions = predictions.as_right_or_wrong()
    costs = check_costs(cost_error, cost_review)
    if costs is None:
        raise invalid("cost_error and cost_review", "be given where nothing is promised", "none")
    error, review = costs
    routed = route_all(predictions)
    thresholds, automated, errors = coverage_curve(routed.confidence, routed.predicted != predictions.targets)
    change = error * errors - review * automated
    best = last_minimum(change)
    threshold = None
    evidence = Evidence(len(predictions), 0, 0)
    note = "Reviewing every case costs less than automating at any threshold."
    if change[best] < 0:
        threshold = float(thresholds[best])
        evidence = Evidence(len(predictions), int(automated[best]), int(errors[best]))
        note = "The cheapest threshold on these cases; it promises no accuracy."
    return RoutingRule(
        threshold=threshold,
        n_classes=predictions.n_classes,
        class_names=predictions.class_names,
        evidence=evidence,
        costs=Costs.of_evidence(error, review, evidence),
        note=note,
        fitted_on=predictions.origin.sha256,
    )


def last_minimum(values: NDArray[np.float64]) -> int:
    """Place of the smallest value, the last of equal ones: the threshold that automates most."""
    return len(values) - 1 - int(np.argmin(values[::-1]))


def coverage_curve(
    confidence: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every distinct confidence, strictest first, with the cases and the errors at or above it."""
    order = np.argsort(-confidence, kind="stable")
    ranked = confidence[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)])
    return ranked[last], last + 1, np.cumsum(wrong[order], dtype=np.int64)[last]
