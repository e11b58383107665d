"""Two classes with different weight: promises for sensitivity and specificity, and what a person sees in between."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from calibrant.checks import fraction, whole
from calibrant.decisions.base import Part
from calibrant.decisions.bounds import cases_without_error, interval
from calibrant.errors import InvalidInput, invalid
from calibrant.predictions import Predictions, in_order_of, names_or_numbers, require_predictions
from calibrant.tables import Displayed, ShownFields, Table

Decision = Literal["negative", "positive", "review"]


@dataclass(frozen=True)
class BinaryRates(ShownFields):
    """How a threshold, or two, does on labelled cases of two classes.

    Attributes:
        positives: Cases of the positive class.
        negatives: The others.
        missed: Positive cases that are called negative.
        flagged: Negative cases that are called positive.
        reviewed: Cases that go to a person.
        sensitivity: 1 - missed / positives; None without positive cases.
        specificity: 1 - flagged / negatives; None without negative cases.
        sensitivity_interval: Clopper-Pearson.
        specificity_interval: Likewise.
    """

    positives: int
    negatives: int
    missed: int
    flagged: int
    reviewed: int
    sensitivity: float | None
    specificity: float | None
    sensitivity_interval: tuple[float, float]
    specificity_interval: tuple[float, float]


def binary_rates(
    predictions: Predictions,
    low: float = 0.5,
    high: float | None = None,
    *,
    positive: int = 1,
    confidence: float = 0.95,
) -> BinaryRates:
    """Sensitivity and specificity where cases below `low` are called negative and those from `high` on positive.

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
    upper = low if high is None else high
    missed, flagged = int((ill & (chance < low)).sum()), int((~ill & (chance >= upper)).sum())
    positives = int(ill.sum())
    negatives = len(ill) - positives
    ends = [
        tuple(map(float, interval(count - bad, count, confidence=confidence)))
        for count, bad in ((positives, missed), (negatives, flagged))
    ]
    return BinaryRates(
        positives=positives,
        negatives=negatives,
        missed=missed,
        flagged=flagged,
        reviewed=int(((chance >= low) & (chance < upper)).sum()),
        sensitivity=(positives - missed) / positives if positives else None,
        specificity=(negatives - flagged) / negatives if negatives else None,
        sensitivity_interval=(ends[0][0], ends[0][1]),
        specificity_interval=(ends[1][0], ends[1][1]),
    )


@dataclass(frozen=True, repr=False)
class BinaryRule(Displayed, Part):
    """Call a case negative below `low`, positive from `high` on, and let a person decide in between.

    Attributes:
        low: On the probability of the positive class; 0 where no case may be called negative.
        high: Likewise; None where no case may be called positive.
        positive: Number of the positive class.
        sensitivity: Promised: at most 1 - sensitivity of the positive cases are called negative; None for no promise.
        specificity: Promised: at most 1 - specificity of the negative cases are called positive; None for no promise.
        confidence: Probability with which both hold.
        class_names: Names of the two classes.
        evidence: Counts on the cases that the rule was chosen on.
        note: One sentence for a person.
        fitted_on: SHA-256 of the predictions file that the rule was chosen on, where it was one.
    """

    _what: ClassVar[str] = "binary rule"

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

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be applied."""
        fraction("low", self.low, ends=True)
        if self.high is not None and not self.low <= fraction("high", self.high, ends=True):
            raise invalid("high", "be at least low", self.high)
        if whole("positive", self.positive, 0) > 1:
            raise invalid("positive", "be 0 or 1", self.positive)

    def overview_rows(self) -> list[tuple[str, object]]:
        """What it promises and what it was chosen on, one line each."""
        promised = "at least {:g}, with probability {:g}"
        rows: list[tuple[str, object]] = [
            ("negative below", self.low),
            ("positive from", "nothing is called positive" if self.high is None else self.high),
        ]
        for name, value in (("sensitivity", self.sensitivity), ("specificity", self.specificity)):
            if value is not None:
                rows.append((f"promised {name}", promised.format(value, self.confidence)))
        if (seen := self.evidence) is not None:
            rows += [
                ("positive cases missed", f"{seen.missed:,} of {seen.positives:,}"),
                ("negative cases flagged", f"{seen.flagged:,} of {seen.negatives:,}"),
                ("cases for a person", f"{seen.reviewed:,} of {seen.positives + seen.negatives:,}"),
            ]
        if self.note:
            rows.append(("note", self.note))
        return rows

    def _overview(self) -> Table:
        names = names_or_numbers(self.class_names, 2)
        return Table(f"positive is {names[self.positive]}", self.overview_rows())

    def in_own_order(self, predictions: Predictions, *, where: str = "predictions") -> Predictions:
        """`predictions` in the order of the rule's two classes, by their names; refused where they have others."""
        require_predictions(predictions)
        if predictions.n_classes != 2:
            raise invalid(where, "have two classes", predictions.n_classes)
        return in_order_of(self.class_names, predictions, where=where)

    def decide(self, predictions: Predictions) -> list[Decision]:
        """What is called negative, what positive, and what a person sees; targets are not looked at.

        Classes are found by their names, in whatever order the columns stand.

        >>> cases = Predictions.from_binary([0.1, 0.4, 0.9], [0, 0, 1], kind="probabilities")
        >>> BinaryRule(0.2, 0.8, 1, 0.95, 0.9, 0.95).decide(cases)
        ['negative', 'review', 'positive']
        """
        chance, _ = _of_positive(self.in_own_order(predictions), self.positive)
        upper = np.inf if self.high is None else self.high
        return np.where(chance < self.low, "negative", np.where(chance >= upper, "positive", "review")).tolist()  # type: ignore[no-any-return] # NumPy types tolist as Any

    def check(self, predictions: Predictions, *, confidence: float = 0.95) -> dict[str, Any]:
        """Counts on new labelled cases, and whether each promise is contradicted: its whole interval lies below it."""
        inner = 1.0 - (1.0 - confidence) / 2.0
        upper = np.inf if self.high is None else self.high
        rates = binary_rates(self.in_own_order(predictions), self.low, upper, positive=self.positive, confidence=inner)
        held = {
            name: promised is None or ends[1] >= promised
            for name, promised, ends in (
                ("sensitivity", self.sensitivity, rates.sensitivity_interval),
                ("specificity", self.specificity, rates.specificity_interval),
            )
        }
        return {**asdict(rates), "held": held}


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
    an order statistic of the scores of one class, which is exact for any model and any number of cases; where both are
    promised each has half of the error probability. With one promise alone, every case is decided at its threshold.

    Args:
        predictions: Labelled held-out cases of two classes; they were used for nothing else.
        sensitivity: To promise; None for no such promise.
        specificity: To promise; None for no such promise.
        confidence: Probability with which the promises hold.
        positive: Number of the positive class.
    """
    fraction("confidence", confidence)
    if sensitivity is None and specificity is None:
        raise InvalidInput("sensitivity or specificity must be promised, got neither.")
    chance, ill = _of_positive(predictions, positive)
    level = (1.0 - confidence) / ((sensitivity is not None) + (specificity is not None))
    low = high = may_miss = may_flag = None
    if sensitivity is not None:
        positives = np.sort(chance[ill])
        may_miss = _allowed(len(positives), 1.0 - fraction("sensitivity", sensitivity), level)
        if may_miss is not None:
            low = float(positives[may_miss])
    if specificity is not None:
        # The probability itself is ordered, from the largest down. 1 - probability is exactly 1 for everything below
        # 1e-16, so that its order would be lost for scores of a saturated model.
        negatives = np.sort(chance[~ill])[::-1]
        may_flag = _allowed(len(negatives), 1.0 - fraction("specificity", specificity), level)
        if may_flag is not None:
            # Called positive from the next number on: the case at the limit itself is called negative.
            high = float(np.nextafter(negatives[may_flag], 2.0))
    lower, upper = _joined(low, high, sensitivity, specificity)
    rates = binary_rates(predictions, lower, np.inf if upper is None else upper, positive=positive)
    for promised, count, allowed in (("sensitivity", rates.missed, may_miss), ("specificity", rates.flagged, may_flag)):
        if allowed is not None and count > allowed:
            raise RuntimeError(f"the rule breaks its {promised} on its own cases: {count} errors, {allowed} allowed")
    names = predictions.class_names
    return BinaryRule(
        low=lower,
        high=upper,
        positive=positive,
        sensitivity=sensitivity if low is not None else None,
        specificity=specificity if high is not None else None,
        confidence=confidence,
        class_names=names,
        evidence=rates,
        note=f"Positive is {names_or_numbers(names, 2)[positive]}. "
        + _note(rates, (sensitivity, low), (specificity, high), confidence, level),
        fitted_on=predictions.origin.sha256,
    )


def _of_positive(predictions: Predictions, positive: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    require_predictions(predictions)
    if predictions.n_classes != 2:
        raise invalid("predictions", "have two classes", predictions.n_classes)
    if whole("positive", positive, 0) > 1:
        raise invalid("positive", "be 0 or 1", positive)
    return np.minimum(predictions.probabilities[:, positive], 1.0), predictions.targets == positive


def _allowed(cases: int, most: float, level: float) -> int | None:
    """How many of `cases` may lie on the wrong side of a threshold that lets at most `most` of them through.

    A threshold at the value with k smaller ones (for the other class: larger ones) lets more than `most` of the
    distribution through only if at most k of the cases fell into that part: a binomial probability, which is at most
    `level` for the k returned. None if that holds for no k.
    """
    fine = np.flatnonzero(bdtr(np.arange(cases), cases, most) <= level)
    return None if len(fine) == 0 else int(fine[-1])


def _joined(
    low: float | None, high: float | None, sensitivity: float | None, specificity: float | None
) -> tuple[float, float | None]:
    """Both thresholds; where only one promise is asked for, or the two overlap, one serves both."""
    if specificity is None:
        lower = 0.0 if low is None else low
        return lower, lower
    if sensitivity is None:
        return (0.0, None) if high is None else (min(high, 1.0), high if high <= 1.0 else None)
    lower = 0.0 if low is None else low
    if high is None or high > 1.0:
        return lower, None
    return lower, max(lower, high)


def _note(
    rates: BinaryRates,
    of_positives: tuple[float | None, float | None],
    of_negatives: tuple[float | None, float | None],
    confidence: float,
    level: float,
) -> str:
    sentences = []
    for name, which, count, (promised, cut) in (
        ("sensitivity", "positive", rates.positives, of_positives),
        ("specificity", "negative", rates.negatives, of_negatives),
    ):
        if promised is None:
            continue
        share = f"{name} of at least {100 * promised:.6g} %"
        if cut is None:
            needed = cases_without_error(promised, level)
            told = f"No {share} can be promised: {count:,} {which} cases, at least {needed:,} are needed."
        else:
            told = f"A {share} is promised with {100 * confidence:.6g} % confidence, from {count:,} {which} cases."
        sentences.append(told)
    total = rates.positives + rates.negatives
    called = f"{rates.missed:,} positive cases are called negative and {rates.flagged:,} negative ones positive"
    sentences.append(f"Of these {called}. A person sees {rates.reviewed:,} of {total:,} cases.")
    return " ".join(sentences)
