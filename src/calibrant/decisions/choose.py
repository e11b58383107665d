"""`choose_threshold`: the lowest threshold at which an accuracy can be promised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.decisions.bounds import MOST_CASES, cases_at_rate, cases_without_error, lower_bound
from calibrant.decisions.case_columns import read_members
from calibrant.decisions.certify import Certificate, Starts, certify, parts_of
from calibrant.decisions.risk_coverage import CostMatrix, CostModel, check_costs, last_minimum
from calibrant.decisions.rule import Costs, Evidence, GroupEvidence, RoutingRule, route_all
from calibrant.errors import invalid
from calibrant.metrics.metric import Groups
from calibrant.predictions import Predictions

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
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k if y is true, shape (K, K).
        thresholds: Thresholds to consider, fixed in advance; None for `default_thresholds`.
        starts: Where the search may begin again, fixed in advance; None for `default_starts`.

    Returns:
        A rule; `threshold` is None if nothing can be promised, and `evidence.cases_needed` then says how many cases
        would probably do.
    """
    target_accuracy = fraction("target_accuracy", target_accuracy)
    confidence = fraction("confidence", confidence)
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    routed = route_all(predictions)
    correct = routed.predicted == predictions.targets
    if groups is not None and per_class:
        raise invalid("groups", "be left out with per_class", "both", "Choose one of the two promises.")
    members = read_members(predictions, groups, clusters)
    lines = [np.arange(len(predictions))]
    if per_class:
        lines = [np.flatnonzero(routed.predicted == k) for k in range(predictions.n_classes)]
    level = (1.0 - confidence) / len(lines)
    search = _Search(routed.confidence, correct, members.clusters, target_accuracy, level, thresholds, starts)
    if costs is not None:
        search = replace(search, costs=costs, paid=costs.of_rows(predictions.targets, routed.predicted))
    fewest = cases_without_error(target_accuracy, level * max(parts_of(starts, target_accuracy).values()))
    promised = {name: rows for name, rows in members.groups.items() if len(rows) >= fewest}
    tables = [search.certify(line, *promised.values()) for line in lines]
    cuts = tuple(search.pick(table, line) for table, line in zip(tables, lines, strict=True))
    rule = RoutingRule(cuts[0], predictions.n_classes, target_accuracy, confidence)
    if per_class:
        rule = replace(rule, threshold=None, class_thresholds=cuts)
    automate = routed.confidence >= rule.thresholds[routed.predicted]
    automated, errors = int(automate.sum()), int((automate & ~correct).sum())
    evidence = Evidence.of_counts(len(predictions), automated, errors)
    if any(table.kept.any() for table in tables):
        note = _note_kept(rule)
    else:
        alone = [[search.certify(rows)] for rows in promised.values()]
        needed = _most_needed([tables, *alone], target_accuracy, confidence, len(predictions))
        evidence = replace(evidence, cases_needed=needed.cases)
        crowded = any(search.crowded(line, needed.judged) for line in lines)
        note = _note_nothing(rule, tables[0].largest_part, len(predictions), needed, crowded=crowded)
    group_evidence = members.evidence(automate, correct, promised)
    if group_evidence is not None:
        note = f"{note} {search.note_on_groups(group_evidence, promised, fewest, automated)}"
    if members.n_clusters is not None:
        note = f"{note} Cases of one of the {members.n_clusters:,} clusters may depend on each other."
    return replace(
        rule,
        groups=members.group_column,
        group_evidence=group_evidence,
        clusters=members.n_clusters,
        cluster_column=members.cluster_column,
        largest_cluster=members.largest_cluster,
        class_names=predictions.class_names,
        evidence=evidence,
        costs=search.costs_of(evidence, automate),
        fitted_on=predictions.origin.sha256,
        note=note,
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
    costs: CostModel | None = None
    paid: NDArray[np.float64] | None = None

    def certify(self, rows: NDArray[np.int64], *groups: NDArray[np.int64]) -> Certificate:
        """Which thresholds keep the promise for these rows, and for each of the groups by itself."""
        clusters = self.clusters
        if clusters is not None:
            clusters = clusters[rows]
        return certify(
            self.confidence[rows],
            self.correct[rows],
            target_accuracy=self.target_accuracy,
            level=self.level,
            thresholds=self.thresholds,
            starts=self.starts,
            groups=list(groups),
            clusters=clusters,
        )

    def pick(self, table: Certificate, rows: NDArray[np.int64]) -> float | None:
        """Of the thresholds that are kept the lowest or, with costs, the cheapest for the rows.

        None if no threshold is kept, or if a review of every case is cheaper.
        """
        kept = np.flatnonzero(table.kept)
        if len(kept) == 0:
            return None
        if self.costs is None or self.paid is None:
            return float(table.thresholds[kept[-1]])
        change = self.costs.change(table.cases[kept], table.errors[kept], self.confidence[rows], self.paid[rows])
        best = last_minimum(change)
        if change[best] >= 0:
            return None
        return float(table.thresholds[kept[best]])

    def costs_of(self, evidence: Evidence, automate: NDArray[np.bool_]) -> Costs | None:
        """What the rule costs; None without costs."""
        if self.costs is None or self.paid is None:
            return None
        return self.costs.of_rule(evidence, float(self.paid[automate].sum()))

    def crowded(self, rows: NDArray[np.int64], judged: int) -> bool:
        """Whether cases above every start, where nothing is tested, have no more errors than the target allows."""
        above = rows[self.confidence[rows] > max(parts_of(self.starts, self.target_accuracy))]
        above = above[np.argsort(-self.confidence[above], kind="stable")]
        cases = np.arange(1, len(above) + 1)
        last = np.append(np.diff(self.confidence[above]) != 0, True)  # equal confidences are automated together
        few = np.cumsum(~self.correct[above]) <= (1.0 - self.target_accuracy) * cases
        return bool((few & last[: len(above)] & (cases >= judged)).any())

    def note_on_groups(
        self,
        evidence: tuple[GroupEvidence, ...],
        promised: Mapping[str, NDArray[np.int64]],
        fewest: int,
        automated: int,
    ) -> str:
        """For which groups the promise is made, for which it is not, and what that costs in automation."""
        outside = [group.name for group in evidence if not group.promised]
        sentences = []
        if promised and automated:
            rows = np.arange(len(self.confidence))
            fewer, cut = 0, self.pick(self.certify(rows), rows)
            if cut is not None:
                fewer = int((self.confidence >= cut).sum()) - automated
            price = f"{100 * fewer / len(rows):.1f} points of automation"
            sentences += [
                f"It is promised for all cases and for each of {len(promised)} groups ({_listed(list(promised))}).",
                f"Against a promise for all cases together that costs {price}.",
            ]
        elif promised:
            failing = [name for name, rows in promised.items() if not self.certify(rows).kept.any()]
            why = "no threshold passes in all of them"
            if failing:
                why = f"{_listed(failing)} do not show it at any threshold"
            sentences.append(f"It was asked for each of {len(promised)} groups: {why}.")
        if outside:
            sentences.append(
                f"Nothing is promised for {_listed(outside)} alone: fewer than {fewest:,} cases cannot show it; "
                "the promise covers their cases only as part of all."
            )
        return " ".join(sentences)


def _listed(names: list[str]) -> str:
    if len(names) > 8:
        return f"{', '.join(names[:8])} ..."
    return ", ".join(names)


@dataclass(frozen=True)
class _Needed:
    """How many labelled cases would do.

    Attributes:
        cases: None if the cases exclude the target.
        as_seen: Whether the error rates seen are enough for that, or only the lowest that are still possible.
        judged: How many cases a threshold must have to be judged.
    """

    cases: int | None
    as_seen: bool
    judged: int


def _cases_needed(tables: list[Certificate], target: float, confidence: float, cases: int) -> _Needed:
    """Total cases at which some start would pass if the shares of automated cases stayed as seen.

    First with the error rates as seen. If each of these is above what the target allows, with the lowest rates that
    are compatible with what was seen (one-sided exact bound at `confidence`; 0 if too few cases were seen to judge).
    Only if these too are above it at every threshold do the cases exclude the target.
    """
    # A handful of cases without an error says nothing about a rate; they count only if there is nothing else.
    judged = max(_JUDGED, cases // 50)
    seen: list[tuple[int, int, float]] = []
    for table in tables:
        usable = (table.levels > 0) & (table.cases > 0)
        if (usable & (table.cases >= judged)).any():
            usable &= table.cases >= judged
        columns = table.cases[usable].tolist(), table.errors[usable].tolist(), table.levels[usable].tolist()
        seen += zip(*columns, strict=True)

    def total(rate: Callable[[int, int], float]) -> int | None:
        totals = []
        for count, errors, level in seen:
            automated = cases_at_rate(rate(errors, count), target, level)
            if automated is not None:
                totals.append(max(-(-automated * cases // count), cases + 1))
        if not totals:
            return None
        return min(*totals, MOST_CASES)

    def lowest(errors: int, count: int) -> float:
        if count < _JUDGED:
            return 0.0
        return float(lower_bound(errors, count, confidence))

    as_seen = total(lambda errors, count: errors / count)
    if as_seen is not None:
        return _Needed(as_seen, True, judged)
    return _Needed(total(lowest), False, judged)


def _most_needed(lines: list[list[Certificate]], target: float, confidence: float, cases: int) -> _Needed:
    """What the most demanding line needs: all cases, or a group that is promised the target too."""
    each = [_cases_needed(tables, target, confidence, cases) for tables in lines]
    for needed in each:
        if needed.cases is None:
            return needed
    return max(each, key=lambda needed: needed.cases or 0)


def _promise(rule: RoutingRule) -> str:
    target, confidence = 100 * (rule.target_accuracy or 0.0), 100 * (rule.confidence or 0.0)
    return f"an accuracy of at least {target:.6g} % with {confidence:.6g} % confidence"


def _note_kept(rule: RoutingRule) -> str:
    if not rule.automates:
        return "Reviewing every case costs less than automating at any threshold that keeps the promise."
    if rule.class_thresholds is not None and rule.n_classes > 1:
        return f"What is automated has {_promise(rule)} in every class."
    return f"What is automated has {_promise(rule)}."


def _note_nothing(rule: RoutingRule, largest_part: float, cases: int, needed: _Needed, *, crowded: bool) -> str:
    start = f"No threshold can be promised: {cases} cases do not show {_promise(rule)} at any threshold."
    if needed.cases is None:
        tested = f"{start} Errors are too frequent at every threshold that"
        if crowded:
            return (
                f"{tested} is tested, but not among the most confident cases: confidences crowd near 1. "
                "Calibrate them first, on other cases; route fit --calibrate does both."
            )
        return f"{tested} at least {needed.judged} cases reach: more cases will not help, a better model will."
    about = "About"
    if needed.cases >= MOST_CASES:
        about = "More than"
    errors = "if errors stay as rare"
    if not needed.as_seen:
        errors = "if errors are as rare as these few cases still allow, more if not"
    fewest = cases_without_error(rule.target_accuracy or 0.0, largest_part)
    return (
        f"{start} {about} {needed.cases:,} cases would be needed {errors} "
        f"(at the very least {fewest:,} automated ones without any error)."
    )
