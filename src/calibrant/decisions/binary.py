"""Two classes with different weight: promises for sensitivity and specificity, and what a person sees in between."""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, whole
from calibrant.decisions.bounds import cases_without_error, interval, tolerance_rank
from calibrant.decisions.rule import Part
from calibrant.errors import InvalidInput, invalid
from calibrant.predictions import Predictions, in_order_of, names_or_numbers, require_predictions
from calibrant.tables import ShownFields

Decision = Literal["negative", "positive", "review"]


@dataclass(frozen=True)
class BinaryRates(ShownFields):
    """How a threshold, or two, does on labelled cases of two classes; intervals are those of Clopper and Pearson."""

    positives: int
    negatives: int
    missed: int  # positive cases that are called negative
    flagged: int  # negative cases that are called positive
    reviewed: int  # cases that go to a person
    sensitivity: float | None  # share of positive cases that are not missed; None without cases
    specificity: float | None  # share of negative cases that are not flagged
    sensitivity_interval: tuple[float, float]
    specificity_interval: tuple[float, float]

    @property
    def cases(self) -> int:
        """All cases."""
        return self.positives + self.negatives


def binary_rates(
    predictions: Predictions,
    low: float = 0.5,
    high: float | None = None,
    *,
    positive: int = 1,
    confidence: float = 0.95,
) -> BinaryRates:
    """Sensitivity and specificity if cases below `low` are called negative and those from `high` on positive.

    Args:
        predictions: Labelled cases of two classes.
        low: On the probability of the positive class.
        high: Likewise; None for the same as `low`, so that no case goes to a person.
        positive: Number of the positive class.
        confidence: Of each interval.

    >>> cases = Predictions.from_binary([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1], kind="probabilities")
    >>> rates = binary_rates(cases, 0.5)
    >>> rates.sensitivity, rates.specificity
    (0.5, 0.5)
    """
    chance, ill = _of_positive(predictions, positive)
    if high is None:
        high = low
    missed, flagged = int((ill & (chance < low)).sum()), int((~ill & (chance >= high)).sum())
    positives, negatives = int(ill.sum()), int((~ill).sum())
    reviewed = int(((chance >= low) & (chance < high)).sum())
    sensitivity, of_sensitivity = _rate(positives, missed, confidence)
    specificity, of_specificity = _rate(negatives, flagged, confidence)
    shares = sensitivity, specificity, of_sensitivity, of_specificity
    return BinaryRates(positives, negatives, missed, flagged, reviewed, *shares)


def _rate(cases: int, errors: int, confidence: float) -> tuple[float | None, tuple[float, float]]:
    """Share of cases that is right, None without cases, and its interval."""
    low, high = interval(cases - errors, cases, confidence=confidence)
    return (cases - errors) / cases if cases else None, (float(low), float(high))


@dataclass(frozen=True, repr=False)
class BinaryRule(Part):
    """Call a case negative below `low`, positive from `high` on, and let a person decide in between.

    Attributes:
        low: On the probability of the positive class; 0 if no case may be called negative.
        high: Likewise; None if no case may be called positive.
        positive: Number of the positive class.
        sensitivity: Promised: at most 1 - sensitivity of the positive cases are called negative; None for no promise.
        specificity: Promised: at most 1 - specificity of the negative cases are called positive; None for no promise.
        confidence: Probability with which both hold.
        evidence, note: Counts on the cases that the rule was chosen on, and one sentence for a person.
        fitted_on, weight_column, weight_seed: As in `RoutingRule`.
    """

    _what: ClassVar[str] = "binary rule"
    kind: ClassVar[str] = "binary"
    automates: ClassVar[bool] = True
    # What only a `RoutingRule` may have.
    n_classes: ClassVar[int] = 2
    class_thresholds: ClassVar[None] = None
    groups: ClassVar[None] = None
    cluster_column: ClassVar[None] = None
    largest_cluster: ClassVar[None] = None

    low: float
    high: float | None
    positive: int
    sensitivity: float | None
    specificity: float | None
    confidence: float
    class_names: tuple[str, ...] | None = None
    evidence: BinaryRates | None = None
    note: str = ""
    fitted_on: str | None = None
    weight_column: str | None = None
    weight_seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be applied."""
        fraction("low", self.low, ends=True)
        if self.high is not None and not self.low <= fraction("high", self.high, ends=True):
            raise invalid("high", "be at least low", self.high)
        if whole("positive", self.positive, 0) > 1:
            raise invalid("positive", "be 0 or 1", self.positive)

    def overview_rows(self) -> list[tuple[str, object]]:
        """What it promises and what it was chosen on, one line each."""
        rows: list[tuple[str, object]] = [("negative below", self.low), ("positive from", self.high)]
        if self.high is None:
            rows[1] = ("positive from", "nothing is called positive")
        for name, value in (("sensitivity", self.sensitivity), ("specificity", self.specificity)):
            if value is not None:
                rows.append((f"promised {name}", f"at least {value:g}, with probability {self.confidence:g}"))
        if (seen := self.evidence) is not None:
            rows += [
                ("positive cases missed", f"{seen.missed:,} of {seen.positives:,}"),
                ("negative cases flagged", f"{seen.flagged:,} of {seen.negatives:,}"),
                ("cases for a person", f"{seen.reviewed:,} of {seen.cases:,}"),
            ]
        return rows

    def _heading(self) -> str:
        return f"positive is {names_or_numbers(self.class_names, 2)[self.positive]}"

    @property
    def upper(self) -> float:
        """From this probability on a case is called positive; infinity if none is."""
        if self.high is None:
            return np.inf
        return self.high

    def decide(self, predictions: Predictions) -> list[Decision]:
        """What is called negative, what positive, and what a person sees; targets are not looked at.

        Classes are found by their names, in whatever order the columns stand.

        >>> cases = Predictions.from_binary([0.1, 0.4, 0.9], [0, 0, 1], kind="probabilities")
        >>> BinaryRule(0.2, 0.8, 1, 0.95, 0.9, 0.95).decide(cases)
        ['negative', 'review', 'positive']
        """
        chance, _ = _of_positive(self.in_own_order(predictions), self.positive)
        decisions = np.where(chance >= self.upper, "positive", "review")
        return np.where(chance < self.low, "negative", decisions).tolist()  # type: ignore[no-any-return] # NumPy types tolist as Any

    def check(self, predictions: Predictions, *, confidence: float = 0.95) -> dict[str, Any]:
        """Counts on new labelled cases, and whether each promise is contradicted: its whole interval lies below it."""
        own = self.in_own_order(predictions)
        each = 1.0 - (1.0 - confidence) / 2.0
        rates = binary_rates(own, self.low, self.upper, positive=self.positive, confidence=each)
        held = {
            "sensitivity": self.sensitivity is None or rates.sensitivity_interval[1] >= self.sensitivity,
            "specificity": self.specificity is None or rates.specificity_interval[1] >= self.specificity,
        }
        return {**asdict(rates), "held": held}

    def in_own_order(self, predictions: Predictions, *, where: str = "predictions") -> Predictions:
        """`predictions` in the order of the rule's two classes, by their names. Other classes are refused."""
        _require_two(predictions, where)
        return in_order_of(self.class_names, predictions, where=where)


def choose_binary_rule(
    predictions: Predictions,
    *,
    sensitivity: float | None = 0.95,
    specificity: float | None = None,
    confidence: float = 0.95,
    positive: int = 1,
) -> BinaryRule:
    """The rule that leaves least to a person while sensitivity and specificity are promised.

    The promise: over draws of the labelled cases, with probability at least `confidence`, at most 1 - sensitivity of
    all positive cases are called negative and at most 1 - specificity of all negative ones positive. Each threshold is
    an order statistic of the scores of one class, which is exact for any model and any number of cases; if both are
    promised each has half of the error probability. With one promise alone, every case is decided at its threshold.

    Args:
        predictions: Labelled held-out cases of two classes; they were used for nothing else.
        sensitivity: To promise; None for no such promise.
        specificity: To promise; None for no such promise.
        confidence: Probability with which the promises hold.
        positive: Number of the positive class.
    """
    level = level_of_each(sensitivity, specificity, confidence)
    chance, ill = _of_positive(predictions, positive)
    # The probability itself is ordered, for negative cases from the largest down. 1 - probability is exactly 1 for
    # everything below 1e-16, so that its order would be lost for scores of a saturated model.
    of_positives = _Limit("sensitivity", "positive", sensitivity, np.sort(chance[ill]), level)
    of_negatives = _Limit("specificity", "negative", specificity, np.sort(chance[~ill])[::-1], level)
    low, high = of_positives.value, of_negatives.value
    if high is not None:
        high = float(np.nextafter(high, 2.0))  # the case at the limit itself is called negative
    lower, upper = _joined(low, high, sensitivity, specificity)
    rule = BinaryRule(
        low=lower,
        high=upper,
        positive=positive,
        sensitivity=of_positives.promised,
        specificity=of_negatives.promised,
        confidence=confidence,
        class_names=predictions.class_names,
        fitted_on=predictions.origin.sha256,
    )
    rates = binary_rates(predictions, rule.low, rule.upper, positive=positive)
    for limit, errors in ((of_positives, rates.missed), (of_negatives, rates.flagged)):
        if limit.promised is not None and errors >= limit.rank:
            raise RuntimeError(f"the rule breaks its {limit.name} on its own cases: {errors} errors")
    called = f"{rates.missed:,} positive cases are called negative and {rates.flagged:,} negative ones positive"
    sentences = [
        f"Positive is {names_or_numbers(rule.class_names, 2)[positive]}.",
        *of_positives.sentences(confidence),
        *of_negatives.sentences(confidence),
        f"Of these {called}. A person sees {rates.reviewed:,} of {len(ill):,} cases.",
    ]
    return replace(rule, evidence=rates, note=" ".join(sentences))


def level_of_each(sensitivity: float | None, specificity: float | None, confidence: float) -> float:
    """The error probability of each promise; refused if nothing is promised or a share is none."""
    promised = {"sensitivity": sensitivity, "specificity": specificity}
    shares = [fraction(name, share) for name, share in promised.items() if share is not None]
    if not shares:
        raise InvalidInput("sensitivity or specificity must be promised, got neither.")
    return (1.0 - fraction("confidence", confidence)) / len(shares)


class _Limit:
    """A bound on how many cases of one class are decided wrongly, from the sorted scores of that class.

    A threshold at the value with k smaller ones (for the other class: larger ones) lets more than 1 - target of the
    distribution through only if at most k of the cases fell into that part: a binomial probability, which is at most
    `level` for the k taken.
    """

    def __init__(self, name: str, which: str, target: float | None, values: NDArray[np.float64], level: float) -> None:
        self.name, self.which, self.target, self.level, self.cases = name, which, target, level, len(values)
        self.value: float | None = None
        self.promised: float | None = None
        self.rank = 0
        if target is not None:
            self.rank = tolerance_rank(self.cases, 1.0 - target, level)
        if self.rank:
            self.value, self.promised = float(values[self.rank - 1]), target

    def sentences(self, confidence: float) -> list[str]:
        """What is promised, or why nothing is; nothing if no promise was asked for."""
        if self.target is None:
            return []
        share, cases = f"{self.name} of at least {100 * self.target:.6g} %", f"{self.cases:,} {self.which} cases"
        if self.promised is not None:
            return [f"A {share} is promised with {100 * confidence:.6g} % confidence, from {cases}."]
        needed = cases_without_error(self.target, self.level)
        return [f"No {share} can be promised: {cases}, at least {needed:,} are needed."]


def _require_two(predictions: Predictions, where: str = "predictions") -> None:
    require_predictions(predictions)
    if predictions.n_classes != 2:
        raise invalid(where, "have two classes", predictions.n_classes)


def _of_positive(predictions: Predictions, positive: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    _require_two(predictions)
    if whole("positive", positive, 0) > 1:
        raise invalid("positive", "be 0 or 1", positive)
    return np.minimum(predictions.probabilities[:, positive], 1.0), predictions.targets == positive


def _joined(
    low: float | None, high: float | None, sensitivity: float | None, specificity: float | None
) -> tuple[float, float | None]:
    """Both thresholds; if only one promise is asked for, or the two overlap, one serves both."""
    lower = low or 0.0
    if specificity is None:
        return lower, lower
    if high is None:
        return lower, None
    if high > 1.0:  # not even a probability of 1 is called positive
        if sensitivity is None:
            lower = 1.0
        return lower, None
    if sensitivity is None:
        return high, high
    return lower, max(lower, high)
