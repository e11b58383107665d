"""How accuracy and cost change with the share that is automated: tables without a promise, to look at first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.bounds import check_numbers, interval
from calibrant.decisions.choose import build_evidence, route_all
from calibrant.decisions.costs import CostMatrix, check_costs
from calibrant.decisions.rule import Routed, RoutingRule
from calibrant.errors import invalid
from calibrant.predictions import Predictions
from calibrant.tables import ShownFields


@dataclass(frozen=True)
class CoverageRow(ShownFields):
    """One line of the risk-coverage table.

    Attributes:
        threshold: Automate at this confidence and above.
        coverage: Share of cases that are automated.
        automated: Their number.
        errors: How many of them are wrong.
        accuracy: Share of them that is right.
        accuracy_low: Lower end of the interval of `accuracy`. It holds for this line alone, not over a choice of lines.
        accuracy_high: Upper end.
        review_per_1000: How many of 1,000 cases go to a person.
        review_low: Lower end of its interval.
        review_high: Upper end.
        cost_per_1000: Cost of 1,000 cases, where costs were given.
    """

    threshold: float
    coverage: float
    automated: int
    errors: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    review_per_1000: float
    review_low: float
    review_high: float
    cost_per_1000: float | None


def risk_coverage(
    predictions: Predictions,
    coverages: Sequence[float] = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    *,
    confidence: float = 0.95,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
) -> list[CoverageRow]:
    """Accuracy of the most confident part of the cases, for several sizes of that part.

    Equal confidences stay together, so a line may cover somewhat more than asked.

    Args:
        predictions: Labelled cases.
        coverages: Shares of the cases in (0, 1].
        confidence: Confidence level of the intervals (Clopper-Pearson, each for its own line).
        cost_error: Cost of an automated error.
        cost_review: Cost of one review.
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k where y is true.
    """
    shares = check_numbers("coverages", coverages, "be shares in (0, 1], at least one")
    if not shares.all():
        raise invalid("coverages", "be shares in (0, 1], at least one", coverages)
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    routed = route_all(predictions)
    thresholds, automated, errors = _curve(routed, predictions)
    cases = len(predictions)
    change = np.zeros(len(thresholds))
    if costs is not None:
        paid = costs.of_rows(predictions.targets, routed.predicted)
        change = costs.change(automated, errors, routed.confidence, paid)

    def row(at: int) -> CoverageRow:
        count, wrong = int(automated[at]), int(errors[at])
        low, high = interval(count - wrong, count, confidence=confidence)
        share_low, share_high = interval(count, cases, confidence=confidence)
        spent = 0.0 if costs is None else float(change[at]) + costs.review * count
        return CoverageRow(
            threshold=float(thresholds[at]),
            coverage=count / cases,
            automated=count,
            errors=wrong,
            accuracy=1.0 - wrong / count,
            accuracy_low=float(low),
            accuracy_high=float(high),
            review_per_1000=1000.0 * (1.0 - count / cases),
            review_low=float(1000.0 * (1.0 - share_high)),
            review_high=float(1000.0 * (1.0 - share_low)),
            cost_per_1000=None if costs is None else 1000.0 * costs.total(cases, count, wrong, spent) / cases,
        )

    wanted = np.searchsorted(automated, np.ceil(np.sort(shares)[::-1] * cases - 1e-9), side="left")
    return [row(at) for at in dict.fromkeys(wanted.tolist())]


def cheapest_threshold(
    predictions: Predictions,
    *,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
) -> RoutingRule:
    """The threshold with the lowest cost on these cases, without a promise about accuracy.

    Cost at t: cost_error for each error at or above t (or what `cost_matrix` says: row y, column k for deciding k where
    y is true), cost_review for each case below. For a calibrated model the best
    threshold is 1 - cost_review / cost_error. `choose_threshold` with costs adds the promise.

    >>> from calibrant.predictions import Predictions
    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    >>> cheapest_threshold(predictions, cost_error=10, cost_review=1).threshold
    0.8
    """
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    if costs is None:
        raise invalid("cost_error and cost_review", "be given where nothing is promised", "none")
    routed = route_all(predictions)
    thresholds, automated, errors = _curve(routed, predictions)
    paid = costs.of_rows(predictions.targets, routed.predicted)
    change = costs.change(automated, errors, routed.confidence, paid)
    best = len(change) - 1 - int(np.argmin(change[::-1]))
    threshold = float(thresholds[best]) if change[best] < 0 else None
    counts = (0, 0) if threshold is None else (int(automated[best]), int(errors[best]))
    evidence = build_evidence(len(predictions), *counts)
    spent = 0.0 if threshold is None else float(paid[routed.confidence >= threshold].sum())
    nothing = "Reviewing every case costs less than automating at any threshold."
    return RoutingRule(
        threshold=threshold,
        n_classes=predictions.n_classes,
        class_names=predictions.class_names,
        evidence=evidence,
        costs=costs.of_rule(evidence, spent),
        note=nothing if threshold is None else "The cheapest threshold on these cases; it promises no accuracy.",
        fitted_on=predictions.origin.sha256,
    )


def _curve(
    routed: Routed, predictions: Predictions
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every distinct confidence, strictest first, with the cases and the errors at or above it."""
    order = np.argsort(-routed.confidence, kind="stable")
    ranked = routed.confidence[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    wrong = (routed.predicted != predictions.targets)[order]
    return ranked[last], last + 1, np.cumsum(wrong)[last]
