"""For cases that go to a person: the few classes to look at first, with a promise that the true one is among them."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, number
from calibrant.decisions.bounds import (
    cases_without_error,
    cluster_interval,
    cluster_p_value,
    interval,
    tolerance_rank,
)
from calibrant.decisions.ranking import GIVEN, Score
from calibrant.decisions.rule import Part, RoutingRule
from calibrant.decisions.weights import as_in_use
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.metric import check_clusters
from calibrant.predictions import Kind, Predictions, names_or_numbers, require_predictions
from calibrant.predictions.readings import plain_label, shortened
from calibrant.tables import ShownFields

# Matrix products round differently in blocks of another size, so that a calibrator may give other last digits. A level
# that is a little lower lists the same classes all the same, and it keeps the promise.
_SLACK = 1 - 1e-9
# Least probabilities that are tested, the smallest first, if cases come in clusters. They are fixed in advance.
_LEVELS = np.concatenate([np.geomspace(1e-9, 1e-3, 12, endpoint=False), np.geomspace(1e-3, 1.0, 120)])


@dataclass(frozen=True, repr=False)
class Shortlist(Part):
    """List every class whose probability is at least `least`, and always the most probable one.

    A system that names a class and a score may name further candidates (columns `predicted_2`, `confidence_2` and so
    on): then the predicted class is listed, and every further candidate whose confidence is at least `least`.

    Attributes:
        least: The smallest probability that is listed; 0 lists every class, if nothing less could be promised.
        coverage, confidence: Promised share of cases whose true class is listed, and how probably it holds.
        cases, missed, mean_length: Labelled cases that it was chosen on (with a rule, those that go to a person), how
            many of them have their true class off the list, and how many classes are listed on average.
        note: One sentence for a person.
        fitted_on: SHA-256 of the predictions file that it was chosen on, if it was a file.
        threshold, class_thresholds, score: The rule's: the promise is for what that rule sends to a person. None for
            all.
    """

    _what: ClassVar[str] = "shortlist"

    least: float
    n_classes: int
    coverage: float
    confidence: float
    class_names: tuple[str, ...] | None = None
    cases: int = 0
    missed: int = 0
    mean_length: float = 0.0
    note: str = ""
    fitted_on: str | None = None
    threshold: float | None = None
    class_thresholds: tuple[float | None, ...] | None = None
    score: Score = "probability"

    def __post_init__(self) -> None:
        """Refuse one that cannot be applied."""
        if not math.isfinite(number("least", self.least)):
            raise invalid("least", "be finite", self.least)
        fraction("coverage", self.coverage)
        fraction("confidence", self.confidence)
        self.reader()

    def listed(self, scores: Predictions | Any, kind: Kind = "probabilities") -> NDArray[np.bool_]:
        """Which classes are listed, shape (n, K).

        Args:
            scores: Shape (n, K), calibrated, NumPy or torch; or `Predictions`.
            kind: What they are; `Predictions` say it themselves.

        >>> shortlist = Shortlist(least=0.2, n_classes=3, coverage=0.95, confidence=0.95)
        >>> shortlist.listed([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1]]).tolist()
        [[True, True, True], [True, False, False]]
        """
        reader = self.reader()
        if not isinstance(scores, Predictions):
            return self.within(reader.probabilities(scores, kind))
        return np.concatenate([self.within(block) for _, block in reader.in_own_order(scores).chunks()])

    def within(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """The same for checked probabilities, or for the scores of `candidates`."""
        mask: NDArray[np.bool_] = scores >= self.least
        mask[np.arange(len(mask)), scores.argmax(axis=1)] = True
        return mask

    def holds_true(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Whether the true class of each case is listed."""
        held = []
        for scores, targets in _scores_and_targets(predictions, np.ones(len(predictions), dtype=np.bool_)):
            held.append(self.within(scores)[np.arange(len(scores)), targets] & (targets >= 0))
        return np.concatenate(held)

    def names(self, scores: NDArray[np.float64], called: NDArray[Any] | None = None) -> list[list[str]]:
        """The listed classes of each row by name, best first. With the scores of `candidates` pass their names."""
        if called is None:
            called = np.array(names_or_numbers(self.class_names, self.n_classes), dtype=object)
        names = np.broadcast_to(called, scores.shape)
        return [names[row, classes].tolist() for row, classes in enumerate(best_first(self.within(scores), scores))]

    def check_fits(self, rule: RoutingRule) -> None:
        """Refuse a rule with other classes or thresholds: it sends other cases to a person."""
        reader = self.reader()
        for name in ("n_classes", "class_names", "thresholds", "score"):
            ours, theirs = getattr(reader, name), getattr(rule, name)
            if not np.array_equal(ours, theirs):
                ours, theirs = (shortened([str(value) for value in np.atleast_1d(part)]) for part in (ours, theirs))
                hint = "Choose the shortlist with this rule."
                raise invalid(f"{name} of the shortlist", f"be the rule's ({theirs})", ours, hint)

    def reader(self) -> RoutingRule:
        """A rule that sends to a person what the promise is for; it also checks scores."""
        return RoutingRule(
            self.threshold,
            self.n_classes,
            class_thresholds=self.class_thresholds,
            class_names=self.class_names,
            score=self.score,
        )

    def overview_rows(self) -> list[tuple[str, object]]:
        """What it promises and what it was chosen on, one line each."""
        return [
            ("promised coverage", f"{self.coverage:g}, with probability {self.confidence:g}"),
            ("least confidence", f"{self.least:.6f}"),
            ("chosen on", f"{self.cases:,} cases"),
            ("true class not listed", f"{self.missed:,}"),
            ("mean length", f"{self.mean_length:.2f}"),
        ]


def best_first(listed: NDArray[np.bool_], scores: NDArray[np.float64]) -> list[list[int]]:
    """The numbers of the listed classes of each row, best first, the lower class first of equals."""
    # Only what is listed is sorted: few of many classes are. The sort is stable, so that the lower class is first.
    rows, classes = np.nonzero(listed)
    ordered = classes[np.lexsort((-scores[rows, classes], rows))].tolist()
    ends = np.cumsum(listed.sum(axis=1)).tolist()
    return [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def choose_shortlist(
    predictions: Predictions,
    coverage: float = 0.95,
    *,
    confidence: float = 0.95,
    rule: RoutingRule | None = None,
) -> Shortlist:
    """Find the shortest lists that hold the true class in at least `coverage` of the cases.

    The promise: over draws of the labelled cases, the true share of cases whose class is listed is below `coverage`
    with probability at most 1 - confidence. It holds for any model, calibrated or not, if the cases are independent
    draws from the stream to come and were used for nothing else, also not to choose the rule.

    Why it holds: sort the probabilities that the n cases give to their true classes. A class is listed from the k-th
    smallest of these on. Let t be the largest level that the probability of a true class reaches in at least `coverage`
    of the stream. The list misses too often only if the k-th smallest lies above t, which means that fewer than k cases
    have a probability of at most t. Each case has one with probability at least 1 - coverage, so this happens with
    probability at most P(Binomial(n, 1 - coverage) < k). The k taken is the largest for which that is at most
    1 - confidence (the tolerance limits of Wilks 1941; inductive conformal prediction, Vovk 2012).

    If the rule was chosen on clusters, clusters are the independent draws here, too: levels that are fixed in advance
    are tested one after the other, the smallest first, by bets on the clusters (`bounds.cluster_p_value`).

    Args:
        predictions: Labelled held-out cases. A class and a score needs further candidates, of which any number of a
            case may be empty: columns `predicted_2`, `confidence_2`, `predicted_3` and so on.
        coverage: The share to promise.
        confidence: Probability with which the promise holds.
        rule: Make it for the cases that this rule sends to a person, calibrated as the rule expects. If it was chosen
            on clusters, the cases need the same column.
    """
    coverage, confidence = fraction("coverage", coverage), fraction("confidence", confidence)
    require_predictions(predictions)
    if rule is not None and rule.group_thresholds is not None:
        raise invalid("rule", "have thresholds that do not depend on groups", f"one per group of {rule.groups!r}")
    stated = predictions.as_right_or_wrong()
    score: Score = {"score": GIVEN}.get(stated.kind, "probability")
    reader = rule or RoutingRule(None, stated.n_classes, class_names=stated.class_names, score=score)
    predictions = reader.in_own_order(predictions)
    reviewed = ~reader.decide_all(predictions).automate
    of_true = np.concatenate(
        [
            np.where(targets < 0, -np.inf, scores[np.arange(len(scores)), targets])
            for scores, targets in _scores_and_targets(predictions, reviewed)
        ]
    )
    ranked = np.sort(of_true)
    rank, least = tolerance_rank(len(ranked), 1 - coverage, 1 - confidence), 0.0
    clusters = None
    if rule is not None and rule.cluster_column is not None:
        if not predictions.has_all_classes:
            raise invalid("rule", "be chosen without clusters for a shortlist of candidates", rule.cluster_column)
        clusters = _Clusters(predictions, rule, reviewed)
        least = clusters.least(of_true, coverage, confidence)
    elif not predictions.has_all_classes:
        least = _least_of_candidates(predictions, ranked, rank, coverage)
    elif rank:
        least = min(_SLACK * float(ranked[rank - 1]), 1.0)  # rounded probabilities may be a little more than 1
    draft = Shortlist(
        least,
        reader.n_classes,
        coverage,
        confidence,
        reader.class_names,
        fitted_on=predictions.origin.sha256,
        threshold=reader.threshold,
        class_thresholds=reader.class_thresholds,
        score=reader.score,
    )
    cases, missed, length = _evidence(draft, predictions)
    among = "candidates"
    if predictions.has_all_classes:
        among = f"of {draft.n_classes} classes"
    which = "cases"
    if rule is not None:
        which = "cases that go to a person"
    note = _note(draft, rank, cases, f"{length:.2f} {among}", which)
    if clusters is not None:
        note = clusters.note(draft, note)
    return replace(draft, cases=cases, missed=missed, mean_length=length, note=note)


@dataclass(frozen=True)
class ShortlistCheck(ShownFields):
    """What new cases say about a shortlist's promise."""

    coverage: float  # the promised share
    cases: int  # labelled cases that go to a person
    missed: int  # those of them whose true class is off the list
    covered: float | None  # share of them whose true class is listed; None without cases
    low: float  # ends of its interval
    high: float
    mean_length: float  # mean number of classes listed
    held: bool  # False if the whole interval lies below the promised share

    def describe(self) -> str:
        """Whether the promise held for new cases that went to a person."""
        if self.covered is None:
            return "No case goes to a person: nothing is said of the shortlist."
        verdict = "is contradicted"
        if self.covered >= self.coverage:
            verdict = "holds"
        elif self.held:
            verdict = "is missed, but by no more than chance"
        return (
            f"Shortlists of {self.mean_length:.2f} classes hold the true one in {100 * self.covered:.2f} % of "
            f"{self.cases:,} cases ({100 * self.low:.2f} to {100 * self.high:.2f} %): "
            f"the promised share of {100 * self.coverage:.6g} % {verdict}."
        )


def check_shortlist(
    shortlist: Shortlist, predictions: Predictions, *, rule: RoutingRule | None = None, confidence: float = 0.95
) -> ShortlistCheck:
    """Compare a shortlist's promise with labelled cases that it was not chosen on.

    The promise is for what the rule of `choose_shortlist` sends to a person, and only these cases count, also without
    `rule`. With it, a shortlist that was chosen with another one is refused, and cases are drawn by its weights and
    the interval goes by its clusters, if it has any.
    """
    predictions = shortlist.reader().in_own_order(predictions)
    if rule is not None:
        shortlist.check_fits(rule)
        predictions = as_in_use(rule, predictions)
    cases, missed, length = _evidence(shortlist, predictions)
    low, high = interval(cases - missed, cases, confidence=confidence)
    if rule is not None and rule.cluster_column is not None:
        reviewed = ~shortlist.reader().decide_all(predictions).automate
        clusters = _Clusters(predictions, rule, reviewed)
        low, high = clusters.interval(~shortlist.holds_true(predictions)[reviewed], confidence)
    covered = None
    if cases:
        covered = (cases - missed) / cases
    held = bool(high >= shortlist.coverage)
    return ShortlistCheck(shortlist.coverage, cases, missed, covered, float(low), float(high), length, held)


class _Clusters:
    """The clusters of the cases that go to a person."""

    def __init__(self, predictions: Predictions, rule: RoutingRule, reviewed: NDArray[np.bool_]) -> None:
        numbers = check_clusters(predictions, rule.cluster_column)
        sizes = np.bincount(numbers)
        self.count, self.largest = len(sizes), max(int(sizes.max()), rule.largest_cluster or 1)
        self.numbers = numbers[reviewed]
        self.cases = np.bincount(self.numbers, minlength=self.count)

    def missed(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many cases of each cluster are missed."""
        return np.bincount(self.numbers[which], minlength=self.count)

    def least(self, of_true: NDArray[np.float64], coverage: float, confidence: float) -> float:
        """The last of the levels up to which every one is shown to keep the promise; 0 if the first is not."""
        least = 0.0
        for level in _LEVELS.tolist():
            missed = self.missed(of_true < level)
            if cluster_p_value(self.cases, missed, 1.0 - coverage, self.largest) > 1.0 - confidence:
                break
            least = level
        return least * _SLACK

    def interval(self, missed: NDArray[np.bool_], confidence: float) -> tuple[float, float]:
        """Interval of the share of cases that are not missed."""
        return cluster_interval(self.cases, self.missed(missed), self.largest, confidence=confidence)

    def note(self, draft: "Shortlist", kept: str) -> str:
        """What is promised, in one or two sentences; `kept` is the first if something is."""
        if draft.least == 0.0:
            cases = f"{self.cases.sum():,} cases of {self.count:,} clusters"
            return f"No list shorter than all {draft.n_classes} classes can be promised from {cases}."
        return f"{kept} Cases of one of the {self.count:,} clusters may depend on each other."


def _least_of_candidates(predictions: Predictions, scores: NDArray[np.float64], rank: int, coverage: float) -> float:
    """The confidence from which on further candidates are listed. Nobody can list a class that no candidate names."""
    if rank == 0 or scores[rank - 1] == -np.inf:
        named = int((scores > -np.inf).sum())
        hint = "Promise a smaller share, or use more cases or more candidates."
        rule = f"name the true class often enough to promise {coverage:g} of the cases"
        raise invalid("candidates", rule, f"{named:,} of {len(scores):,} cases that go to a person", hint)
    if scores[rank - 1] == np.inf:  # the predicted class is enough: only the surest of the others are listed
        return float(candidates(predictions)[0][:, 1:].max(initial=0.0))
    return float(scores[rank - 1])


def _evidence(shortlist: Shortlist, predictions: Predictions) -> tuple[int, int, float]:
    """Cases that go to a person, how many of them miss their true class, and the mean length of their lists."""
    reviewed = ~shortlist.reader().decide_all(predictions).automate
    cases, length = int(reviewed.sum()), 0
    missed = int((~shortlist.holds_true(predictions))[reviewed].sum())
    for scores, _ in _scores_and_targets(predictions, reviewed):
        length += int(shortlist.within(scores).sum())
    return cases, missed, length / max(cases, 1)


def _scores_and_targets(
    predictions: Predictions, kept: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """What can be listed for some cases, and the column of their true class, -1 if it has none, block by block."""
    if predictions.has_all_classes:
        for part, probabilities in predictions.chunks():
            yield probabilities[kept[part]], predictions.targets[part][kept[part]]
        return
    scores, names = candidates(predictions)
    classes = np.array(names_or_numbers(predictions.class_names, predictions.n_classes), dtype=object)
    is_true = (names == classes[predictions.targets][:, None]) & (scores > -np.inf)
    yield scores[kept], np.where(is_true.any(axis=1), is_true.argmax(axis=1), -1)[kept]


def candidate_columns(columns: Collection[str]) -> list[tuple[str, str]]:
    """The columns of further candidates and of their confidences: predicted_2, confidence_2, and so on."""
    pairs: list[tuple[str, str]] = []
    for place in range(2, len(columns) + 2):
        predicted, confidence = f"predicted_{place}", f"confidence_{place}"
        if predicted not in columns or confidence not in columns:
            break
        pairs.append((predicted, confidence))
    if not pairs:
        needed = "A shortlist for a class and a score needs further candidates: columns predicted_2 and confidence_2."
        raise InvalidInput(f"{needed} Other columns here: {shortened(list(columns), 12) or 'none'}.")
    return pairs


def candidates(predictions: Predictions) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Scores and names of all candidates of a class and a score, shape (n, candidates).

    The score of the predicted class, which is always listed, is infinity; that of an empty candidate minus infinity.
    """
    classes = np.array(names_or_numbers(predictions.class_names, predictions.n_classes), dtype=object)
    names = [classes[predictions.predicted]]
    scores = [np.full(len(predictions), np.inf)]
    for predicted, confidence in candidate_columns(predictions.extras):
        called = np.array([str(name).strip() for name in predictions.extras[predicted].tolist()], dtype=object)
        if predictions.class_names is None:
            called = np.array([plain_label(name) for name in called.tolist()], dtype=object)
        named = ~np.isin(called, ("", "nan"))
        values = np.full(len(called), -np.inf)
        for row in np.flatnonzero(named).tolist():
            values[row] = _confidence(predictions.extras[confidence][row], confidence, row)
        names.append(called)
        scores.append(values)
    return np.stack(scores, axis=1), np.stack(names, axis=1)


def _confidence(value: Any, column: str, row: int) -> float:
    try:
        confidence = float(value)
    except ValueError:
        confidence = math.nan
    if not math.isfinite(confidence):
        raise invalid(column, "be a number for every candidate that is named", f"{str(value)!r} in row {row}")
    return confidence


def _note(draft: Shortlist, rank: int, cases: int, length: str, which: str) -> str:
    if rank == 0:
        needed = cases_without_error(draft.coverage, 1 - draft.confidence)
        return (
            f"No list shorter than all {draft.n_classes} classes can be promised from {cases} {which}: "
            f"a share of {draft.coverage:g} with confidence {draft.confidence:g} takes at least {needed}."
        )
    if draft.least == 0.0:
        return f"Every class is listed: too many of the {cases} {which} have a true class of probability 0."
    return (
        f"With confidence {draft.confidence:g} the list holds the true class of at least {draft.coverage:g} of the "
        f"{which}; it has {length} on average."
    )
