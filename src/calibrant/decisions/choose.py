"""`choose_threshold`: the lowest threshold at which an accuracy can be promised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, number, whole
from calibrant.decisions.bounds import cases_without_error, error_p_value
from calibrant.decisions.certify import Certificate, Starts, at_least, certify, parts_of
from calibrant.decisions.costs import CostMatrix, automated_costs, check_costs
from calibrant.decisions.ranking import GIVEN, Score, choose_score, is_bounded
from calibrant.decisions.rule import Costs, Evidence, GroupEvidence, RoutingRule, route_all
from calibrant.decisions.shortfall import (
    cases_needed,
    needed_in_clusters,
    note_kept,
    note_needed,
    note_nothing,
    note_on_groups,
    note_per_group,
    note_supported,
    supported_accuracy,
)
from calibrant.errors import invalid
from calibrant.metrics.metric import check_clusters
from calibrant.metrics.subgroups import group_rows, split_groups
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
    groups: str | None = None,
    per_group: str | None = None,
    group_confidence: Literal["together", "each"] = "together",
    clusters: str | None = None,
    largest_cluster: int | None = None,
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
        per_class: Give each predicted class its own threshold, and promise the target for every class at once.
        groups: Name of an extra column: promise the target for all cases and for every group by itself, with one common
            threshold. A group with fewer cases than could ever show the target is promised nothing.
        per_group: Name of an extra column: give each of its groups its own threshold and its own promise. Cases of
            unknown groups, and of groups with too few cases, go to a person.
        group_confidence: With `per_group`: "together" if all groups keep their promise with probability `confidence`
            (the level is divided among the groups that have enough cases), "each" if every group does by itself.
        clusters: Name of an extra column that says which cases belong together (images of one patient). The clusters
            are then the independent draws.
        largest_cluster: The most cases that a later cluster can have. None for the largest of these: right only if the
            cases cannot lack the largest ones.
        cost_error: Cost of an automated error. With `cost_review`, of the thresholds that keep the promise the cheapest
            is taken instead of the lowest. A person is taken to decide rightly.
        cost_review: Cost of one review.
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k if y is true, shape (K, K).
        thresholds: Thresholds to consider, fixed in advance; None for `default_thresholds`.
        starts: Where the search may begin again, fixed in advance; None for `default_starts`.
        search: Decide on it before you look. "fixed" tests `thresholds` from `starts`. "split" spends a quarter of the
            cases, drawn at random, to find thresholds and a start, and tests on the others.
        candidates: The same cases as other models, calibrators or scores see them, in the same order. The level is
            divided among `predictions` and these, and the rule that automates most is taken.
        score: How cases are ranked, see `calibrant.decisions.ranking`: None for the largest probability, the name of
            another score, a function of your own from calibrated probabilities (n, K) to n numbers, or "auto" to let
            `choose_score` decide. Any score but the largest probability is searched by "split".
        fitting: Other cases for the search "split", such as those that fitted the calibrator; None to spend a quarter.
        reserve: Share of the level that is reserved for `rule.supported`, which is exploratory without one.
        seed: Seed of the random quarter of `search`.

    Returns:
        A rule. If nothing can be promised, `threshold` is None, `evidence.cases_needed` says how many cases would
        probably do, and `supported` what these cases show.
    """
    if (groups is not None) + (per_group is not None) + per_class > 1:
        raise invalid("groups", "be left out with per_class or per_group", "both", "Choose one of the promises.")
    for name, column in (("groups", groups), ("per_group", per_group), ("clusters", clusters)):
        refuse_values(name, column)
    if per_group is not None and cost_review is not None:
        raise invalid("cost_review", "be left out with per_group", cost_review)
    if group_confidence not in ("together", "each"):
        raise invalid("group_confidence", "be 'together' or 'each'", repr(group_confidence))
    require_predictions(predictions)
    score = score or {"score": GIVEN}.get(predictions.kind, "probability")
    seen = [predictions, *candidates]
    for cases in seen[1:]:
        require_predictions(cases)
        if not np.array_equal(cases.targets, predictions.targets):
            rule = f"be predictions for the same {len(predictions)} cases, in the same order"
            raise invalid("candidates", rule, f"{len(cases)} cases with other targets")
    confidence = fraction("confidence", confidence)
    wanted = _Search(
        target_accuracy=fraction("target_accuracy", target_accuracy),
        confidence=confidence,
        level=(1.0 - confidence) / len(seen),
        per_class=per_class,
        groups=groups,
        clusters=clusters,
        largest_cluster=_largest_cluster(seen, clusters, largest_cluster),
        costs=(cost_error, cost_review, cost_matrix),
        thresholds=thresholds,
        starts=starts,
        search=search,
        seed=seed,
        fitting=fitting,
        score=score,
        reserve=reserve,
    )
    if per_group is None:
        rules = [wanted.run(cases) for cases in seen]
    else:
        rules = [wanted.run_per_group(cases, per_group, together=group_confidence == "together") for cases in seen]
    if len(rules) == 1:
        return rules[0]
    place = max(range(len(rules)), key=lambda number: _worth(rules[number]))
    paid = f"It is the best of {len(rules)} that were tried, each tested with 1/{len(rules)} of the error probability."
    return replace(rules[place], candidate=place, note=f"{rules[place].note} {paid}")


def refuse_values(argument: str, column: Any) -> None:
    """Refuse groups or clusters that are no name of a column."""
    if not isinstance(column, str | None):
        hint = "Put the values into a column: Predictions(..., extras={'patient': values})."
        raise invalid(argument, "name a column, which checks and the monitor need as well", "values", hint)


def _largest_cluster(seen: Sequence[Predictions], column: str | None, limit: int | None) -> int | None:
    """Most cases that a cluster can have; None without clusters."""
    if column is None:
        if limit is not None:
            raise invalid("largest_cluster", "be left out without clusters", limit)
        return None
    largest = max(int(np.bincount(check_clusters(cases, column)).max()) for cases in seen)
    if limit is None:
        return largest
    if whole("largest_cluster", limit, 1) < largest:
        raise invalid("largest_cluster", f"be at least the largest cluster of these cases, {largest}", limit)
    return limit


def _worth(rule: RoutingRule) -> float:
    """More for a rule that costs less or, without costs, automates more."""
    if rule.costs is not None:
        return -rule.costs.per_1000
    return rule.automation_rate


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The arguments of `choose_threshold` that one search needs; `level` is its error probability."""

    target_accuracy: float
    confidence: float
    level: float
    per_class: bool
    groups: str | None
    clusters: str | None
    largest_cluster: int | None  # of all cases, also those that other classes and groups have
    costs: tuple[float | None, float | None, CostMatrix | None]
    thresholds: Sequence[float] | None
    starts: Starts | None
    search: str
    seed: int
    fitting: Predictions | None
    score: Score
    reserve: float

    def __post_init__(self) -> None:
        if self.search not in ("fixed", "split"):
            raise invalid("search", "be 'fixed' or 'split'", repr(self.search))
        if not 0 <= number("reserve", self.reserve) < 1:
            raise invalid("reserve", "be a share of the level, at least 0 and below 1", self.reserve)

    @property
    def splits(self) -> bool:
        """Whether some of the cases find the thresholds: by choice, or because the score has none of its own."""
        return self.search == "split" or (self.score != "probability" and self.thresholds is None)

    def run(self, predictions: Predictions) -> RoutingRule:
        """One threshold, or one for each class. A search that splits tests on cases that do not know its choices."""
        if not self.splits:
            return _Tests(self, predictions).rule()
        fitting, rest, spent = self.fitting, predictions, ""
        if fitting is None:
            fitting, rest, spent = self.split(predictions)
        wanted = self
        if self.score == "auto":
            wanted = replace(self, score=choose_score(fitting))
        # If "auto" keeps the default, it is the plain rule: thresholds found on few cases can lose what they gain.
        if wanted.splits:
            found = _found_thresholds(fitting, wanted.score, self.target_accuracy, len(rest))
            wanted = replace(wanted, **found)
        rule = _Tests(wanted, rest).rule()
        return replace(rule, fitted_on=predictions.origin.sha256, note=f"{rule.note}{spent}")

    def split(self, predictions: Predictions) -> tuple[Predictions, Predictions, str]:
        """The cases that find where to start, those that are tested, and a sentence about it."""
        fitting, rest = predictions.split(_SPENT, seed=self.seed, clusters=self.clusters)
        return fitting, rest, f" {len(fitting):,} other cases were spent to find where to start."

    def run_per_group(self, predictions: Predictions, column: str, *, together: bool) -> RoutingRule:
        """One threshold for each group that has enough cases, tested on its own cases alone."""
        wanted, fitting, rest, spent = self, self.fitting, predictions, ""
        of_groups: dict[str, Predictions] = {}
        if self.splits and fitting is None:
            fitting, rest, spent = self.split(predictions)
            of_groups = split_groups(fitting, column)
        # A rule has one score, so it is chosen once for all groups.
        if self.score == "auto" and fitting is not None:
            wanted = replace(self, score=choose_score(fitting))
        wanted = replace(wanted, fitting=fitting)
        shared = replace(wanted, groups=column).run(rest)
        rows_of = group_rows(rest, column)
        # Which groups take part is decided by their numbers of cases alone, never by their labels.
        fewest = cases_without_error(self.target_accuracy, self.level)
        able = [name for name, rows in rows_of.items() if len(rows) >= fewest]
        own = wanted
        if together:
            own = replace(wanted, level=self.level / max(len(able), 1))
        thresholds: list[tuple[str, float | None]] = []
        groups: list[GroupEvidence] = []
        missing: dict[str, int | None] = {}
        for name, rows in rows_of.items():
            cut, counts = None, Evidence(len(rows), 0, 0)
            if name in able:
                rule = replace(own, fitting=of_groups.get(name, fitting)).run(rest.subset(rows))
                cut, counts = rule.threshold, rule.evidence or counts
                if cut is None:
                    missing[name] = counts.cases_needed
            thresholds.append((name, cut))
            groups.append(GroupEvidence(name, counts.cases, counts.automated, counts.errors, cut is not None))
        totals = [sum(getattr(group, each) for group in groups) for each in ("cases", "automated", "errors")]
        rule = replace(
            shared,
            threshold=None,
            group_thresholds=tuple(thresholds),
            group_evidence=tuple(groups),
            evidence=Evidence(*totals),
            costs=None,
            supported=None,
        )
        note = note_per_group(rule, shared.automation_rate, together=together)
        note += note_needed([name for name in rows_of if name not in able], fewest, missing)
        return replace(rule, note=f"{note}{spent}")


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


class _Tests:
    """Tests thresholds that were fixed in advance, and takes the lowest or the cheapest that is kept."""

    def __init__(self, search: _Search, predictions: Predictions) -> None:
        if not search.per_class:
            predictions = predictions.as_right_or_wrong()
        self.search, self.predictions, self.target = search, predictions, search.target_accuracy
        self.routed = route_all(predictions, search.score)
        self.ranking, self.correct = self.routed.ranking, self.routed.predicted == predictions.targets
        self.costs = check_costs(*search.costs, predictions)
        self.spent = np.zeros(len(predictions))  # what each case costs if it is automated
        if self.costs is not None:
            self.spent = automated_costs(self.costs[0], predictions.targets, self.routed.predicted)
        self.groups: dict[str, NDArray[np.int64]] = {}
        if search.groups is not None:
            self.groups = group_rows(predictions, search.groups)
        self.clusters = None
        if search.clusters is not None:
            self.clusters = check_clusters(predictions, search.clusters)
        self.lines = [np.arange(len(predictions))]
        if search.per_class:
            self.lines = [np.flatnonzero(self.routed.predicted == k) for k in range(predictions.n_classes)]
        self.level = search.level * (1.0 - search.reserve) / len(self.lines)
        self.starts = parts_of(search.starts, self.target, bounded=is_bounded(search.score))
        self.fewest = cases_without_error(self.target, self.level * max(self.starts.values()))
        self.promised = {name: rows for name, rows in self.groups.items() if len(rows) >= self.fewest}

    def certify(self, rows: NDArray[np.int64], groups: Iterable[NDArray[np.int64]] = ()) -> Certificate:
        """Which thresholds keep the promise for these rows, and for each of the groups by itself."""
        clusters = None if self.clusters is None else self.clusters[rows]
        return certify(
            self.ranking[rows],
            self.correct[rows],
            target_accuracy=self.target,
            level=self.level,
            thresholds=self.search.thresholds,
            starts=self.search.starts,
            groups=list(groups),
            clusters=clusters,
            largest_cluster=self.search.largest_cluster,
            bounded=is_bounded(self.search.score),
        )

    def pick(self, table: Certificate, rows: NDArray[np.int64]) -> float | None:
        """The lowest threshold that is kept or, with costs, the cheapest; None if reviewing all is the way."""
        kept = np.flatnonzero(table.kept)
        if len(kept) == 0:
            return None
        best = len(kept) - 1
        if self.costs is not None:
            surest_first = rows[np.argsort(-self.ranking[rows], kind="stable")]
            spent = np.append(0.0, np.cumsum(self.spent[surest_first]))
            automated = table.cases[kept]
            change = spent[automated] - self.costs[1] * automated
            best = int(np.flatnonzero(change == change.min())[-1])  # of equal costs the one that automates most
            if change[best] >= 0:
                return None
        return float(table.thresholds[kept[best]])

    def rule(self) -> RoutingRule:
        """The rule, its evidence and its note."""
        search, cases = self.search, self.predictions
        tables = [self.certify(line, self.promised.values()) for line in self.lines]
        cuts = tuple(self.pick(table, line) for table, line in zip(tables, self.lines, strict=True))
        rule = RoutingRule(
            cuts[0],
            cases.n_classes,
            self.target,
            search.confidence,
            class_names=cases.class_names,
            fitted_on=cases.origin.sha256,
            score=search.score,
        )
        if search.per_class:
            rule = replace(rule, threshold=None, class_thresholds=cuts)
        automate = self.ranking >= rule.thresholds[self.routed.predicted]
        evidence = Evidence(len(cases), int(automate.sum()), int((automate & ~self.correct).sum()))
        rule = replace(rule, evidence=evidence)
        if self.costs is not None:
            error, review = self.costs
            total = float(self.spent[automate].sum()) + review * float((~automate).sum())
            rule = replace(rule, costs=Costs(error, review, 1000.0 * total / len(cases), 1000.0 * review))
        if any(table.kept.any() for table in tables):
            rule = replace(rule, note=note_kept(rule))
        else:
            rule = self._promising_nothing(rule, tables)
        if search.groups is not None:
            counts = []
            for name, rows in self.groups.items():
                inside = automate[rows]
                errors = int((inside & ~self.correct[rows]).sum())
                counts.append(GroupEvidence(name, len(rows), int(inside.sum()), errors, name in self.promised))
            rule = replace(rule, groups=search.groups, group_evidence=tuple(counts))
            failing = []
            if not rule.automates:
                failing = [name for name, rows in self.promised.items() if not self.certify(rows).kept.any()]
            rule = replace(rule, note=f"{rule.note} {note_on_groups(rule, self.fewest, failing)}")
        if self.clusters is not None and search.clusters is not None:
            count = int(self.clusters.max()) + 1
            rule = replace(
                rule,
                clusters=count,
                cluster_column=search.clusters,
                largest_cluster=search.largest_cluster,
                note=f"{rule.note} Cases of one of the {count:,} clusters may depend on each other.",
            )
        return rule

    def _promising_nothing(self, rule: RoutingRule, tables: list[Certificate]) -> RoutingRule:
        """The rule with what the cases support instead, and how many would do."""
        search, clusters, cases = self.search, self.clusters, len(self.correct)
        largest = search.largest_cluster
        if clusters is not None and largest is not None and len(tables) == 1 and not self.promised:
            needed = needed_in_clusters(self.ranking, self.correct, clusters, tables[0], self.target, largest)
        else:
            groups = [self.certify(rows) for rows in self.promised.values()]
            needed = cases_needed(tables, groups, self.target, search.confidence, cases)
        note = note_nothing(rule, tables[0].largest_part, cases, needed)
        supported = None
        if search.score == "probability":
            level = search.level * (search.reserve or 1.0)
            supported = supported_accuracy(
                self.ranking,
                self.correct,
                clusters,
                largest_cluster=largest,
                target=self.target,
                level=level,
                reserved=search.reserve > 0,
            )
        if supported is not None:
            note = f"{note} {note_supported(supported)}"
        evidence = replace(rule.evidence or Evidence(cases, 0, 0), cases_needed=needed.cases)
        return replace(rule, evidence=evidence, supported=supported, note=note)
