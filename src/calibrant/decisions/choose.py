"""`choose_threshold`: the lowest threshold at which an accuracy can be promised."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.decisions.bounds import MOST_CASES, cases_at_rate, cases_without_error, interval, lower_bound
from calibrant.decisions.certify import Certificate, Starts, certify, parts_of
from calibrant.decisions.costs import CostMatrix, CostModel, check_costs
from calibrant.decisions.members import check_members, group_evidence, group_note
from calibrant.decisions.rule import Evidence, GroupEvidence, Routed, RoutingRule
from calibrant.metrics.metric import Groups
from calibrant.predictions import Predictions, require_predictions

# With fewer cases than this at a threshold nothing is said about its error rate.
_JUDGED = 10


def choose_threshold(
    predictions: Predictions,
    target_accuracy: float = 0.99,
    *,
    confidence: float = 0.95,
    per_class: bool = False,
    groups: Groups | None = None,
    clusters: Groups | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
    thresholds: Sequence[float] | None = None,
    starts: Starts | None = None,
) -> RoutingRule:
    """Find the lowest threshold at which the accuracy of what is automated is at least the target.

    The promise: over draws of the labelled cases, the rule's true accuracy on automated cases is below the target with
    probability at most 1 - confidence. It holds for any model and any number of cases, calibrated or not, as long as
    the cases are independent draws from the stream that the rule will meet, and were used for nothing else: not to
    train, not to fit a calibrator, not to choose between models. See `certify` for why the search does not spoil it.

    Args:
        predictions: Labelled held-out cases, calibrated if the rule is to decide on calibrated scores.
        target_accuracy: The accuracy to promise.
        confidence: Probability with which the promise holds.
        per_class: Give each predicted class its own threshold, and promise the target for every class at once; each
            class is tested at (1 - confidence) / K.
        groups: Name of an extra column, or one value for each case: promise the target for all cases and for every
            group by itself, with one common threshold, so that nobody needs to know the group of a new case. A group
            with fewer cases than could ever show the target is promised nothing, and the rule's note says so.
        clusters: Name of an extra column, or one value for each case, that says which cases belong together (images of
            one patient). The clusters are then the independent draws, cases of one may depend on each other in any way,
            and no later cluster may have more cases than the largest of these.
        cost_error: Cost of an automated error. With `cost_review`, of the thresholds that keep the promise the cheapest
            is taken instead of the lowest.
        cost_review: Cost of one review.
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k where y is true, shape (K, K).
        thresholds: Thresholds to consider, fixed in advance; None for `default_thresholds`.
        starts: Where the search may begin again, fixed in advance; None for `default_starts`.

    Returns:
        A rule; `threshold` is None where nothing can be promised, and `evidence.cases_needed` then says how many cases
        would probably do.
    """
    target_accuracy = fraction("target_accuracy", target_accuracy)
    confidence = fraction("confidence", confidence)
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    routed = route_all(predictions)
    correct = routed.predicted == predictions.targets
    members = check_members(predictions, groups, clusters, per_class=per_class)
    lines = [np.arange(len(predictions))]
    if per_class:
        lines = [np.flatnonzero(routed.predicted == k) for k in range(predictions.n_classes)]
    level = (1.0 - confidence) / len(lines)
    paid = None if costs is None else costs.of_rows(predictions.targets, routed.predicted)
    search = _Search(
        routed.confidence, correct, members.clusters, target_accuracy, level, thresholds, starts, costs, paid
    )
    fewest = cases_without_error(target_accuracy, level * max(parts_of(starts, target_accuracy).values()))
    promised = {name: rows for name, rows in members.groups.items() if len(rows) >= fewest}
    tables = [search.certify(line, *promised.values()) for line in lines]
    found = tuple(search.pick(table, line) for table, line in zip(tables, lines, strict=True))
    rule = RoutingRule(
        threshold=None if per_class else found[0],
        n_classes=predictions.n_classes,
        class_thresholds=found if per_class else None,
    )
    automate = routed.confidence >= rule.thresholds[routed.predicted]
    needed = None
    if not any(table.kept.any() for table in tables):
        alone = [search.certify(rows) for rows in promised.values()]
        needed = _most_needed([tables, *([table] for table in alone)], target_accuracy, confidence, len(predictions))
    counts = int(automate.sum()), int((automate & ~correct).sum())
    evidence = build_evidence(len(predictions), *counts, None if needed is None else needed.cases)
    shown = group_evidence(members, automate, correct, promised)
    crowded = needed is not None and any(search.crowded(line, needed.judged) for line in lines)
    notes = [_note(rule, tables, evidence, needed, target_accuracy, confidence, crowded=crowded)]
    if groups is not None:
        notes.append(search.note_on_groups(shown, promised, fewest, automated=counts[0]))
    if members.n_clusters is not None:
        notes.append(f"Cases of one of the {members.n_clusters:,} clusters may depend on each other.")
    return replace(
        rule,
        groups=members.column,
        group_evidence=shown or None,
        clusters=members.n_clusters,
        cluster_column=members.cluster_column,
        largest_cluster=members.largest_cluster,
        target_accuracy=target_accuracy,
        confidence=confidence,
        class_names=predictions.class_names,
        evidence=evidence,
        costs=None if costs is None or paid is None else costs.of_rule(evidence, float(paid[automate].sum())),
        fitted_on=predictions.origin.sha256,
        note=" ".join(notes),
    )


@dataclass(frozen=True)
class _Search:
    """Tests and chooses thresholds for some of the cases, with everything else fixed."""

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    clusters: NDArray[np.int64] | None
    target_accuracy: float
    level: float
    thresholds: Sequence[float] | None
    starts: Starts | None
    costs: CostModel | None
    paid: NDArray[np.float64] | None

    def certify(self, rows: NDArray[np.int64], *groups: NDArray[np.int64]) -> Certificate:
        """Which thresholds keep the promise for these rows, and for each of the groups by itself."""
        return certify(
            self.confidence[rows],
            self.correct[rows],
            target_accuracy=self.target_accuracy,
            level=self.level,
            thresholds=self.thresholds,
            starts=self.starts,
            groups=list(groups),
            clusters=None if self.clusters is None else self.clusters[rows],
        )

    def note_on_groups(
        self,
        shown: tuple[GroupEvidence, ...],
        promised: Mapping[str, NDArray[np.int64]],
        fewest: int,
        *,
        automated: int,
    ) -> str:
        """`group_note`; what the groups cost is counted against the rule of all cases together."""
        rows = np.arange(len(self.confidence))
        alone = self.pick(self.certify(rows), rows)
        more = 0 if alone is None else int((self.confidence >= alone).sum()) - automated
        return group_note(shown, fewest, more, len(rows), lambda name: bool(self.certify(promised[name]).kept.any()))

    def pick(self, table: Certificate, rows: NDArray[np.int64]) -> float | None:
        """Of the thresholds that are kept the lowest or, with costs, the cheapest for the rows.

        None where no threshold is kept, and where a review of every case is cheaper.
        """
        kept = np.flatnonzero(table.kept)
        if len(kept) == 0:
            return None
        if self.costs is None or self.paid is None:
            return float(table.thresholds[kept[-1]])
        change = self.costs.change(table.cases[kept], table.errors[kept], self.confidence[rows], self.paid[rows])
        best = len(kept) - 1 - int(np.argmin(change[::-1]))
        return float(table.thresholds[kept[best]]) if change[best] < 0 else None

    def crowded(self, rows: NDArray[np.int64], judged: int) -> bool:
        """Whether cases above every start, where nothing is tested, have no more errors than the target allows."""
        above = rows[self.confidence[rows] > max(parts_of(self.starts, self.target_accuracy))]
        above = above[np.argsort(-self.confidence[above], kind="stable")]
        cases = np.arange(1, len(above) + 1)
        last = np.append(np.diff(self.confidence[above]) != 0, True)  # equal confidences are automated together
        few = np.cumsum(~self.correct[above]) <= (1.0 - self.target_accuracy) * cases
        return bool((few & last[: len(above)] & (cases >= judged)).any())


def route_all(predictions: Predictions) -> Routed:
    """Confidence and predicted class of every case as a rule will see them."""
    require_predictions(predictions)
    return RoutingRule(None, predictions.n_classes, class_names=predictions.class_names).route(predictions)


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


def _most_needed(lines: list[list[Certificate]], target: float, confidence: float, cases: int) -> _Needed:
    """What the line takes that takes most: all cases, or a group that is promised the target too."""
    found = [_cases_needed(tables, target, confidence, cases) for tables in lines]
    return max(found, key=lambda each: math.inf if each.cases is None else each.cases)


def build_evidence(cases: int, automated: int, errors: int, cases_needed: int | None = None) -> Evidence:
    """Counts of a rule on labelled cases, with the interval of the automated share."""
    low, high = interval(automated, cases)
    return Evidence(cases, automated, errors, float(low), float(high), cases_needed)


def _note(
    rule: RoutingRule,
    tables: list[Certificate],
    evidence: Evidence,
    needed: _Needed | None,
    target: float,
    confidence: float,
    *,
    crowded: bool,
) -> str:
    promise = f"an accuracy of at least {100 * target:.6g} % with {100 * confidence:.6g} % confidence"
    if rule.automates:
        return f"What is automated has {promise}{' in every class' if len(tables) > 1 else ''}."
    if needed is None:
        return "Reviewing every case costs less than automating at any threshold that keeps the promise."
    start = f"No threshold can be promised: {evidence.cases} cases do not show {promise} at any threshold."
    if needed.cases is None:
        tested = f"{start} Errors are too frequent at every threshold that"
        if crowded:
            return (
                f"{tested} is tested, but not among the most confident cases: confidences crowd near 1. "
                "Calibrate them first, on other cases; route fit --calibrate does both."
            )
        return f"{tested} at least {needed.judged} cases reach: more cases will not help, a better model will."
    fewest = cases_without_error(target, tables[0].largest_part)
    errors = "if errors stay as rare"
    if not needed.as_seen:
        errors = "if errors are as rare as these few cases still allow, more if not"
    about = "About" if needed.cases < MOST_CASES else "More than"
    return (
        f"{start} {about} {needed.cases:,} cases would be needed {errors} "
        f"(at the very least {fewest:,} automated ones without any error)."
    )
