"""`choose_threshold`: the lowest threshold at which an accuracy can be promised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.checks import fraction, positive
from calibrant.errors import invalid
from calibrant.predictions import Predictions, require_predictions
from calibrant.routing.bounds import MOST_CASES, cases_at_rate, cases_without_error, interval, lower_bound
from calibrant.routing.certify import Certificate, Starts, certify
from calibrant.routing.rule import Costs, Evidence, Routed, RoutingRule

# With fewer cases than this at a threshold nothing is said about its error rate.
_JUDGED = 10


def choose_threshold(
    predictions: Predictions,
    target_accuracy: float = 0.99,
    *,
    confidence: float = 0.95,
    per_class: bool = False,
    cost_error: float | None = None,
    cost_review: float | None = None,
    thresholds: Sequence[float] | None = None,
    starts: Starts | None = None,
    temperature: float | None = None,
) -> RoutingRule:
    """Find the lowest threshold at which the accuracy of what is automated is at least the target.

    The promise: over draws of the labelled cases, the rule's true accuracy on automated cases is below the target with
    probability at most 1 - confidence. It holds for any model and any number of cases, calibrated or not, as long as
    the cases are independent draws from the stream that the rule will meet, and were used for nothing else: not to
    train, not to fit a calibrator, not to choose between models. See `certify` for why the search does not spoil it.

    Args:
        predictions: Labelled held-out cases.
        target_accuracy: The accuracy to promise.
        confidence: Probability with which the promise holds.
        per_class: Give each predicted class its own threshold, and promise the target for every class at once; each
            class is tested at (1 - confidence) / K.
        cost_error: Cost of an automated error. With `cost_review`, of the thresholds that keep the promise the cheapest
            is taken instead of the lowest.
        cost_review: Cost of one review.
        thresholds: Thresholds to consider, fixed in advance; None for `default_thresholds`.
        starts: Where the search may begin again, fixed in advance; None for `default_starts`.
        temperature: Divide scores by this first, and keep it in the rule; it must have been fitted on other cases.

    Returns:
        A rule; `threshold` is None where nothing can be promised, and `evidence.cases_needed` then says how many cases
        would probably do.
    """
    target_accuracy = fraction("target_accuracy", target_accuracy)
    confidence = fraction("confidence", confidence)
    costs = check_costs(cost_error, cost_review)
    routed = route_all(predictions, temperature)
    correct = routed.predicted == predictions.targets
    groups = [routed.predicted == k for k in range(predictions.n_classes)] if per_class else [slice(None)]
    tables = [
        certify(
            routed.confidence[group],
            correct[group],
            target_accuracy=target_accuracy,
            level=(1.0 - confidence) / len(groups),
            thresholds=thresholds,
            starts=starts,
        )
        for group in groups
    ]
    found = tuple(_pick(table, costs) for table in tables)
    rule = RoutingRule(
        threshold=None if per_class else found[0],
        n_classes=predictions.n_classes,
        class_thresholds=found if per_class else None,
    )
    automate = routed.confidence >= rule.thresholds[routed.predicted]
    needed = None
    if not any(table.kept.any() for table in tables):
        needed = _cases_needed(tables, target_accuracy, confidence, len(predictions))
    counts = int(automate.sum()), int((automate & ~correct).sum())
    evidence = build_evidence(len(predictions), *counts, None if needed is None else needed.cases)
    return replace(
        rule,
        target_accuracy=target_accuracy,
        confidence=confidence,
        class_names=predictions.class_names,
        temperature=temperature,
        evidence=evidence,
        costs=None if costs is None else build_costs(costs, evidence),
        fitted_on=predictions.origin.sha256,
        calibrated_by=predictions.origin.calibrated_by,
        note=_note(rule, tables, evidence, needed, target_accuracy, confidence),
    )


def route_all(predictions: Predictions, temperature: float | None) -> Routed:
    """Confidence and predicted class of every case as a rule with this temperature will see them."""
    require_predictions(predictions)
    names = predictions.class_names
    return RoutingRule(None, predictions.n_classes, class_names=names, temperature=temperature).route(predictions)


def check_costs(cost_error: float | None, cost_review: float | None) -> tuple[float, float] | None:
    """Both or none, positive."""
    if cost_error is None and cost_review is None:
        return None
    if cost_error is None or cost_review is None:
        raise invalid("cost_error and cost_review", "be given together", f"{cost_error} and {cost_review}")
    return positive("cost_error", cost_error), positive("cost_review", cost_review)


def _pick(table: Certificate, costs: tuple[float, float] | None) -> float | None:
    kept = np.flatnonzero(table.kept)
    if len(kept) == 0:
        return None
    if costs is None:
        return float(table.thresholds[kept[-1]])
    # What automating at t changes against a person seeing every case: errors are paid, reviews saved.
    change = costs[0] * table.errors[kept] - costs[1] * table.cases[kept]
    best = len(kept) - 1 - int(np.argmin(change[::-1]))
    return float(table.thresholds[kept[best]]) if change[best] < 0 else None


@dataclass(frozen=True)
class _Needed:
    """How many labelled cases would do.

    Attributes:
        cases: None where the cases exclude the target.
        as_seen: Whether the error rates seen are enough for that, or only the lowest that are still possible.
        judged: How many cases a threshold must have to be judged.
    """

    cases: int | None
    as_seen: bool
    judged: int


def _cases_needed(tables: list[Certificate], target: float, confidence: float, cases: int) -> _Needed:
    """Total cases at which some start would pass if the shares of automated cases stayed as seen.

    First with the error rates as seen. Where each of these is above what the target allows, with the lowest rates that
    are compatible with what was seen (one-sided exact bound at `confidence`; 0 where too few cases were seen to judge).
    Only where these too are above it at every threshold do the cases exclude the target.
    """
    # A handful of cases without an error says nothing about a rate; they count only where there is nothing else.
    judged = max(_JUDGED, cases // 50)
    seen: list[tuple[int, int, float]] = []
    for table in tables:
        tested = (table.levels > 0) & (table.cases > 0)
        enough = tested & (table.cases >= judged)
        chosen = np.flatnonzero(enough if enough.any() else tested)
        seen += [(int(table.cases[j]), int(table.errors[j]), float(table.levels[j])) for j in chosen]

    def total(rate: Callable[[int, int], float]) -> int | None:
        found = [(count, cases_at_rate(rate(errors, count), target, level)) for count, errors, level in seen]
        totals = [max(-(-more * cases // count), cases + 1) for count, more in found if more is not None]
        return min(*totals, MOST_CASES) if totals else None

    def lowest(errors: int, count: int) -> float:
        return float(lower_bound(errors, count, confidence)) if count >= _JUDGED else 0.0

    as_seen = total(lambda errors, count: errors / count)
    return _Needed(total(lowest) if as_seen is None else as_seen, as_seen is not None, judged)


def build_evidence(cases: int, automated: int, errors: int, cases_needed: int | None = None) -> Evidence:
    """Counts of a rule on labelled cases, with the interval of the automated share."""
    low, high = interval(automated, cases)
    return Evidence(cases, automated, errors, float(low), float(high), cases_needed)


def build_costs(costs: tuple[float, float], evidence: Evidence) -> Costs:
    """What a rule costs for 1,000 cases like its evidence."""
    error, review = costs
    total = error * evidence.errors + review * (evidence.cases - evidence.automated)
    return Costs(error, review, 1000.0 * total / evidence.cases, 1000.0 * review)


def _note(
    rule: RoutingRule,
    tables: list[Certificate],
    evidence: Evidence,
    needed: _Needed | None,
    target: float,
    confidence: float,
) -> str:
    promise = f"an accuracy of {target:.4g} with confidence {confidence:.4g}"
    if rule.automates:
        return f"What is automated has {promise}{' in every class' if len(tables) > 1 else ''}."
    if needed is None:
        return "Reviewing every case costs less than automating at any threshold that keeps the promise."
    start = f"No threshold can be promised: {evidence.cases} cases do not show {promise} at any threshold."
    if needed.cases is None:
        return (
            f"{start} Errors are too frequent at every threshold that at least {needed.judged} cases reach: "
            "more cases will not help, a better model will."
        )
    fewest = cases_without_error(target, tables[0].largest_part)
    errors = "if errors stay as rare"
    if not needed.as_seen:
        errors = "if errors are as rare as these few cases still allow, more if not"
    about = "About" if needed.cases < MOST_CASES else "More than"
    return (
        f"{start} {about} {needed.cases:,} cases would be needed {errors} "
        f"(at the very least {fewest:,} automated ones without any error)."
    )
