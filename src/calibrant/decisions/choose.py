"""`choose_threshold`: the lowest threshold at which an accuracy can be promised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, number
from calibrant.decisions.bounds import cases_without_error, error_p_value
from calibrant.decisions.case_columns import read_members
from calibrant.decisions.certify import Certificate, Starts, at_least, certify, parts_of
from calibrant.decisions.ranking import GIVEN, Score, choose_score, is_bounded
from calibrant.decisions.risk_coverage import CostMatrix, CostModel, check_costs, last_minimum
from calibrant.decisions.rule import Costs, Evidence, GroupEvidence, RoutingRule, route_all
from calibrant.decisions.shortfall import (
    Needed,
    most_needed,
    needed_in_clusters,
    note_kept,
    note_nothing,
    note_supported,
    supported_accuracy,
)
from calibrant.errors import invalid
from calibrant.metrics.metric import Groups
from calibrant.metrics.subgroups import group_rows
from calibrant.predictions import Predictions, require_predictions

# Share of the cases that the search "split" spends to find its start, and how many quantiles of them it tests.
_SPENT = 0.25
_QUANTILES = 1001


def choose_threshold(
    predictions: Predictions,
    target_accuracy: float = 0.99,
    *,
    confidence: float = 0.95,
    per_class: bool = False,
    groups: Groups | None = None,
    per_group: str | None = None,
    group_confidence: Literal["together", "each"] = "together",
    clusters: Groups | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
    thresholds: Sequence[float] | None = None,
    starts: Starts | None = None,
    search: Literal["fixed", "split"] = "fixed",
    candidates: Sequence[Predictions] = (),
    score: Score | None = None,
    fitting: Predictions | None = None,
    reserve: float = 0.0,
    seed: int = 0,
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
        per_group: Name of an extra column: give each of its groups its own threshold and its own promise. The group of
            a new case must then be known; cases of unknown groups, and of groups with too few cases to promise
            anything, go to a person.
        group_confidence: With `per_group`: "together" if all groups keep their promise with probability `confidence`
            (the level is divided among the groups that have enough cases), "each" if every group does by itself.
        clusters: Name of an extra column, or one value for each case, that says which cases belong together (images of
            one patient). The clusters are then the independent draws, cases of one may depend on each other in any way,
            and no later cluster may have more cases than the largest of these.
        cost_error: Cost of an automated error. With `cost_review`, of the thresholds that keep the promise the cheapest
            is taken instead of the lowest.
        cost_review: Cost of one review.
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k if y is true, shape (K, K).
        thresholds: Thresholds to consider, fixed in advance; None for `default_thresholds`.
        starts: Where the search may begin again, fixed in advance; None for `default_starts`.
        search: Decide on it before you look. "fixed" tests `thresholds` from `starts`. "split" spends a quarter of the
            cases, drawn at random, to find thresholds and a start, and tests on the others: better for models whose
            confidences are far off.
        candidates: The same cases as other models, calibrators or scores see them, in the same order. The level is
            divided among `predictions` and these, so that the rule that automates most may be taken;
            `rule.candidate` is its number, 0 for `predictions`.
        score: How cases are ranked, see `calibrant.decisions.ranking`: None for the largest probability, the name of
            another score, a function of your own from calibrated probabilities (n, K) to n numbers, or "auto" to let
            `choose_score` decide on the cases that find the thresholds. Any score but the largest probability has no
            natural thresholds, so its search is "split".
        fitting: Other cases for the search "split", such as those that fitted the calibrator; None to spend a quarter.
        reserve: Share of the level that is reserved for `rule.supported`, the highest accuracy that the cases show
            if the target cannot be promised. Without a share that figure is exploratory.
        seed: Seed of the random quarter of `search`.

    Returns:
        A rule; `threshold` is None if nothing can be promised. `evidence.cases_needed` then says how many cases would
        probably do, and `supported` what these cases show.
    """
    target_accuracy = fraction("target_accuracy", target_accuracy)
    confidence = fraction("confidence", confidence)
    if (groups is not None) + (per_group is not None) + per_class > 1:
        raise invalid("groups", "be left out with per_class or per_group", "both", "Choose one of the promises.")
    if per_group is not None and cost_review is not None:
        raise invalid("cost_review", "be left out with per_group", cost_review)
    _check_words(search, group_confidence, reserve)
    require_predictions(predictions)
    score = score or {"score": GIVEN}.get(predictions.kind, "probability")
    if score != "probability" and thresholds is None:
        search = "split"
    options: dict[str, Any] = {"per_class": per_class, "groups": groups, "clusters": clusters, "reserve": reserve}
    options |= {"cost_error": cost_error, "cost_review": cost_review, "cost_matrix": cost_matrix}
    options |= {"thresholds": thresholds, "starts": starts}
    seen = [predictions, *candidates]
    _check_same_cases(seen)
    options |= {"level": (1.0 - confidence) / len(seen), "search": search, "seed": seed, "score": score}
    rules = [
        _search_groups(cases, target_accuracy, confidence, per_group, group_confidence, fitting=fitting, **options)
        for cases in seen
    ]
    if len(rules) == 1:
        return rules[0]
    place = 0
    for other, rule in enumerate(rules):
        if _better(rule, rules[place]):
            place = other
    paid = f"It is the best of {len(rules)} that were tried, each tested with 1/{len(rules)} of the error probability."
    return replace(rules[place], candidate=place, note=f"{rules[place].note} {paid}")


def _check_words(search: str, group_confidence: str, reserve: float) -> None:
    if search not in ("fixed", "split"):
        raise invalid("search", "be 'fixed' or 'split'", repr(search))
    if group_confidence not in ("together", "each"):
        raise invalid("group_confidence", "be 'together' or 'each'", repr(group_confidence))
    if not 0 <= number("reserve", reserve) < 1:
        raise invalid("reserve", "be a share of the level, at least 0 and below 1", reserve)


def _check_same_cases(seen: Sequence[Predictions]) -> None:
    for cases in seen[1:]:
        require_predictions(cases)
        if not np.array_equal(cases.targets, seen[0].targets):
            rule = f"be predictions for the same {len(seen[0])} cases, in the same order"
            raise invalid("candidates", rule, f"{len(cases)} cases with other targets")


def _better(rule: RoutingRule, best: RoutingRule) -> bool:
    """Whether a rule costs less or, without costs, automates more."""
    if rule.costs is not None and best.costs is not None:
        return rule.costs.per_1000 < best.costs.per_1000
    return rule.automation_rate > best.automation_rate


def _search_groups(
    predictions: Predictions,
    target_accuracy: float,
    confidence: float,
    column: str | None,
    group_confidence: str,
    *,
    level: float,
    **options: Any,
) -> RoutingRule:
    """One threshold or, with a column, one for each group that has enough cases, tested on its own cases alone."""
    if column is None:
        return _search(predictions, target_accuracy, confidence, level=level, **options)
    together = group_confidence == "together"
    shared = _search(predictions, target_accuracy, confidence, level=level, **{**options, "groups": column})
    clusters = options["clusters"]
    if clusters is not None and not isinstance(clusters, str):
        raise invalid("clusters", "name a column beside per_group", "values")
    rows_of = group_rows(predictions, column)
    # Which groups take part is decided by their numbers of cases alone, never by their labels.
    able = [name for name, rows in rows_of.items() if len(rows) >= cases_without_error(target_accuracy, level)]
    parts = 1
    if together:
        parts = max(len(able), 1)
    thresholds: list[tuple[str, float | None]] = []
    evidence: list[GroupEvidence] = []
    largest_cluster = None
    for name, rows in rows_of.items():
        cut, counts = None, Evidence.of_counts(len(rows), 0, 0)
        if name in able:
            some = predictions.subset(rows)
            rule = _search(some, target_accuracy, confidence, level=level / parts, **options)
            cut, counts = rule.threshold, rule.evidence or counts
            if rule.largest_cluster is not None:
                largest_cluster = max(largest_cluster or 1, rule.largest_cluster)
        thresholds.append((name, cut))
        evidence.append(GroupEvidence(name, counts.cases, counts.automated, counts.errors, cut is not None))
    totals = [sum(getattr(group, each) for group in evidence) for each in ("cases", "automated", "errors")]
    found = Evidence.of_counts(*totals)
    promised = [group.name for group in evidence if group.promised]
    return replace(
        shared,
        threshold=None,
        group_thresholds=tuple(thresholds),
        groups=column,
        group_evidence=tuple(evidence),
        largest_cluster=largest_cluster,
        evidence=found,
        costs=None,
        supported=None,
        note=_note_per_group(shared, column, promised, len(rows_of), found, together=together),
    )


def _note_per_group(
    shared: RoutingRule, column: str, promised: list[str], groups: int, evidence: Evidence, *, together: bool
) -> str:
    if not promised:
        return f"No threshold can be promised in any of the {groups} groups of {column!r}."
    confidence = f"{100 * (shared.confidence or 0.0):.6g} % confidence"
    accuracy = f"an accuracy of at least {100 * (shared.target_accuracy or 0.0):.6g} %"
    way = f"in each group by itself with {confidence}"
    if together:
        way = f"in all of these groups together with {confidence}"
    sentences = [
        f"What is automated has {accuracy} in {len(promised)} of {groups} groups of {column!r} ({_listed(promised)}), "
        f"{way}; the other groups go to a person.",
        f"{100 * evidence.automated / evidence.cases:.1f} % are automated; one threshold for all groups, promised for "
        f"each, would automate {100 * shared.automation_rate:.1f} %.",
    ]
    return " ".join(sentences)


def _search(
    predictions: Predictions,
    target_accuracy: float,
    confidence: float,
    *,
    search: str,
    seed: int,
    fitting: Predictions | None,
    **options: Any,
) -> RoutingRule:
    if search == "fixed":
        return _fixed_search(predictions, target_accuracy, confidence, **options)
    return _split_search(predictions, target_accuracy, confidence, seed, fitting, **options)


def _split_search(
    predictions: Predictions,
    target_accuracy: float,
    confidence: float,
    seed: int,
    fitting: Predictions | None,
    **options: Any,
) -> RoutingRule:
    """Find score, thresholds and a start on some of the cases, or on other ones, and test on the rest.

    The rest knows nothing of that choice, so for it thresholds and start are fixed in advance.
    """
    clusters = options["clusters"]
    if any(column is not None and not isinstance(column, str) for column in (clusters, options["groups"])):
        raise invalid("groups and clusters", "name columns for a search that splits the cases", "values")
    rest, spent = predictions, ""
    if fitting is None:
        fitting, rest = predictions.split(_SPENT, seed=seed, clusters=clusters)
        spent = f" {len(fitting):,} other cases were spent to find where to start."
    if options["score"] == "auto":
        options["score"] = choose_score(fitting)
    options |= _found_thresholds(fitting, options["score"], target_accuracy, len(rest))
    rule = _fixed_search(rest, target_accuracy, confidence, **options)
    return replace(rule, fitted_on=predictions.origin.sha256, note=f"{rule.note}{spent}")


def _found_thresholds(fitting: Predictions, score: Score, target_accuracy: float, n_rest: int) -> dict[str, Any]:
    """Quantiles of the score as thresholds, and where to start among them.

    The start is the quantile whose test would have the smallest p-value if the rest were copies of these cases. Half
    of the level starts at a stricter one, with half as many cases, because that choice is uncertain.
    """
    routed = route_all(fitting, score)
    wrong = routed.ranking[routed.predicted != fitting.targets]
    quantiles = np.linspace(0.0, 1.0, _QUANTILES)
    # Between the cases, too: steps of a hundredth of the cases cost half a point of automation.
    cuts = np.unique(np.quantile(routed.ranking, quantiles))
    if is_bounded(score):
        cuts = np.unique(np.append(cuts, 0.0))  # automates every case
    times = max(n_rest / len(fitting), 1.0)
    cases = np.floor(times * at_least(routed.ranking, cuts)).astype(np.int64)
    # One error more: no error among few cases is no evidence for none among many.
    errors = np.floor(times * (at_least(wrong, cuts) + 1)).astype(np.int64)
    p_values = error_p_value(errors, cases, 1.0 - target_accuracy)
    start = int(np.argmin(p_values))
    stricter = min(int(np.searchsorted(-cases, -cases[start] / 2)), len(cuts) - 1)  # half as many cases
    starts = {float(cuts[start]): 1.0}
    if stricter > start:
        starts = {float(cuts[start]): 0.5, float(cuts[stricter]): 0.5}
    return {"thresholds": cuts.tolist(), "starts": starts}


def _fixed_search(
    predictions: Predictions,
    target_accuracy: float,
    confidence: float,
    *,
    level: float,
    per_class: bool,
    groups: Groups | None,
    clusters: Groups | None,
    cost_error: float | None,
    cost_review: float | None,
    cost_matrix: CostMatrix | None,
    thresholds: Sequence[float] | None,
    starts: Starts | None,
    score: Score,
    reserve: float,
) -> RoutingRule:
    """Test thresholds that were fixed in advance, and take the lowest or the cheapest that is kept."""
    if not per_class:
        predictions = predictions.as_right_or_wrong()
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    routed = route_all(predictions, score)
    correct = routed.predicted == predictions.targets
    members = read_members(predictions, groups, clusters)
    lines = [np.arange(len(predictions))]
    if per_class:
        lines = [np.flatnonzero(routed.predicted == k) for k in range(predictions.n_classes)]
    part = level * (1.0 - reserve) / len(lines)
    bounded = is_bounded(score)
    search = _Tests(routed.ranking, correct, members.clusters, target_accuracy, part, thresholds, starts, bounded)
    if costs is not None:
        search = replace(search, costs=costs, paid=costs.of_rows(predictions.targets, routed.predicted))
    fewest = cases_without_error(target_accuracy, part * max(search.parts.values()))
    promised = {name: rows for name, rows in members.groups.items() if len(rows) >= fewest}
    tables = [search.certify(line, *promised.values()) for line in lines]
    cuts = tuple(search.pick(table, line) for table, line in zip(tables, lines, strict=True))
    rule = RoutingRule(cuts[0], predictions.n_classes, target_accuracy, confidence, score=score)
    if per_class:
        rule = replace(rule, threshold=None, class_thresholds=cuts)
    automate = routed.ranking >= rule.thresholds[routed.predicted]
    automated, errors = int(automate.sum()), int((automate & ~correct).sum())
    evidence = Evidence.of_counts(len(predictions), automated, errors)
    supported = None
    if any(table.kept.any() for table in tables):
        note = note_kept(rule)
    else:
        if score == "probability":
            supported = supported_accuracy(
                routed.confidence,
                correct,
                members.clusters,
                target_accuracy=target_accuracy,
                level=level * (reserve or 1.0),
                reserved=reserve > 0,
            )
        needed = search.needed(tables, promised, confidence)
        evidence = replace(evidence, cases_needed=needed.cases)
        crowded = any(search.crowded(line, needed.judged) for line in lines)
        note = note_nothing(rule, tables[0].largest_part, len(predictions), needed, crowded=crowded)
        if supported is not None:
            note = f"{note} {note_supported(supported)}"
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
        supported=supported,
        note=note,
    )


@dataclass(frozen=True)
class _Tests:
    """Tests and chooses thresholds for some of the cases, with everything else fixed."""

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    clusters: NDArray[np.int64] | None
    target_accuracy: float
    level: float
    thresholds: Sequence[float] | None
    starts: Starts | None
    bounded: bool = True
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
            bounded=self.bounded,
        )

    @property
    def parts(self) -> dict[float, float]:
        """The part of the level that each start gets."""
        return parts_of(self.starts, self.target_accuracy, bounded=self.bounded)

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

    def needed(self, tables: list[Certificate], promised: Mapping[str, NDArray[np.int64]], confidence: float) -> Needed:
        """How many cases would do, for all of them and for each group that is promised the target."""
        if self.clusters is not None and len(tables) == 1 and not promised:
            return needed_in_clusters(self.confidence, self.correct, self.clusters, tables[0], self.target_accuracy)
        alone = [[self.certify(rows)] for rows in promised.values()]
        return most_needed([tables, *alone], self.target_accuracy, confidence, len(self.confidence))

    def costs_of(self, evidence: Evidence, automate: NDArray[np.bool_]) -> Costs | None:
        """What the rule costs; None without costs."""
        if self.costs is None or self.paid is None:
            return None
        return self.costs.of_rule(evidence, float(self.paid[automate].sum()))

    def crowded(self, rows: NDArray[np.int64], judged: int) -> bool:
        """Whether cases above every start, where nothing is tested, have no more errors than the target allows."""
        above = rows[self.confidence[rows] > max(self.parts)]
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
