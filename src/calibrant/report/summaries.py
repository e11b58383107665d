"""What the page says about the predictions of one model.

That is what the model decides alone, what chance does to its reliability diagram, its worst classes and its most
confident mistakes. The page repeats `automated` in JavaScript; the browser tests hold the two to the same digits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import printable
from calibrant.metrics import confident_set, reliability_bins
from calibrant.metrics.evaluation import is_confident
from calibrant.metrics.intervals import exact_interval
from calibrant.predictions import Predictions, names_or_numbers, require_predictions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Automated:
    """What a model decides alone if it may decide at confidence `threshold` and above.

    `accuracy`, its interval and `ece` are None if nothing is automated: the mean of nothing is not a number.
    """

    threshold: float
    cases: int
    automated: int
    right: int
    ece: float | None

    @property
    def share(self) -> float:
        """Automation rate |S| / n."""
        return self.automated / self.cases

    @property
    def accuracy(self) -> float | None:
        """Share of the automated cases that is right."""
        if not self.automated:
            return None
        return self.right / self.automated

    @property
    def interval(self) -> tuple[float, float] | None:
        """Exact 95 % interval of the accuracy."""
        if not self.automated:
            return None
        low, high = exact_interval(self.right, self.automated)
        return float(low), float(high)

    @property
    def reviewed(self) -> int:
        """Cases that go to a person."""
        return self.cases - self.automated

    def cost(self, *, error: float, review: float) -> float:
        """Cost of 1,000 cases: wrong automated ones at `error` each, reviewed ones at `review` each."""
        return 1000 * ((self.automated - self.right) * error + self.reviewed * review) / self.cases


def automated(predictions: Predictions, threshold: float, *, n_bins: int = DEFAULT_N_BINS) -> Automated:
    """Count what is decided alone at confidence `threshold` and above."""
    require_predictions(predictions)
    chosen = confident_set(predictions, threshold, n_bins=n_bins)
    # Shares of whole counts: multiplying back is exact after rounding for any set that fits into memory.
    count = round(chosen.share * len(predictions))
    right = round((chosen.accuracy or 0.0) * count)
    return Automated(chosen.threshold, len(predictions), count, right, chosen.ece)


class Tie(NamedTuple):
    """Cases with the same confidence, and the shares of the cases that can be automated without and with them."""

    confidence: float
    cases: int
    below: float
    upto: float


def largest_tie(predictions: Predictions, *, least: float = 0.05) -> Tie | None:
    """The confidence that most cases share; None if fewer than a share of `least` do."""
    values, counts = np.unique(predictions.confidence, return_counts=True)
    place = int(counts.argmax())
    cases = len(predictions)
    if counts[place] < max(2, least * cases):
        return None
    above = int(counts[place + 1 :].sum())
    count = int(counts[place])
    return Tie(float(values[place]), count, above / cases, (above + count) / cases)


class Bands(NamedTuple):
    """The bins of a reliability diagram that hold cases, and what chance does to them: arrays with a value per bin.

    `low` and `high` are the exact 95 % interval of each bin's accuracy. From `floor_low` to `floor_high` lie 95 % of
    the accuracies of a perfectly calibrated model with the same count and mean confidence (binomial quantiles; rows of
    one bin differ little in confidence).
    """

    low_edge: Floats
    high_edge: Floats
    cases: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    floor_low: Floats
    floor_high: Floats

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return float(np.average(np.abs(self.confidence - self.accuracy), weights=self.cases))


def reliability_bands(predictions: Predictions, n_bins: int = DEFAULT_N_BINS) -> Bands:
    """Equal-width bins with the interval of each accuracy and the band of a perfectly calibrated model."""
    from scipy.stats import binom

    require_predictions(predictions)
    bins = reliability_bins(predictions, n_bins)
    some = bins.count > 0
    count, right = bins.count[some], bins.correct_sum[some].astype(np.int64)
    low, high = exact_interval(right, count)
    confidence = bins.confidence[some]
    chance = binom(count, np.clip(confidence, 0.0, 1.0))
    return Bands(
        bins.edges[:-1][some],
        bins.edges[1:][some],
        count,
        right,
        confidence,
        bins.accuracy[some],
        low,
        high,
        chance.ppf(0.025) / count,
        chance.ppf(0.975) / count,
    )


@dataclass(frozen=True)
class ClassRow:
    """One class; all numbers are about the rows whose true class it is.

    `low` and `high` are the exact 95 % interval of the accuracy. `confused_with` is the class most often predicted
    instead, `confused` times.
    """

    name: str
    cases: int
    accuracy: float
    low: float
    high: float
    confidence: float
    automated: float
    automated_wrong: int
    confused_with: str | None
    confused: int


class ClassReport(NamedTuple):
    """Some classes, the worst first, the number of all classes, and the names of those never predicted or seen."""

    rows: tuple[ClassRow, ...]
    classes: int
    never_predicted: tuple[str, ...]
    never_seen: tuple[str, ...]


def class_names(predictions: Predictions) -> tuple[str, ...]:
    """Names of the classes; their numbers if they have none."""
    return tuple(printable(name) for name in names_or_numbers(predictions.class_names, predictions.n_classes))


def has_free_answers(predictions: Predictions) -> bool:
    """Whether a system answers with text, as OCR does, so that most of its many classes have hardly a case."""
    return not predictions.has_all_classes and predictions.n_classes > max(100, len(predictions) / 5)


def worst_classes(predictions: Predictions, *, threshold: float = 0.95, most: int = 12) -> ClassReport:
    """Classes by accuracy, worst first; ties by size, larger first. Cases from `threshold` on are automated.

    There are no rows for free answers.
    """
    if has_free_answers(predictions):
        return ClassReport((), predictions.n_classes, (), ())
    names = class_names(predictions)
    size = np.bincount(predictions.targets, minlength=predictions.n_classes)
    right = np.bincount(predictions.targets[predictions.correct], minlength=predictions.n_classes)
    times_predicted = np.bincount(predictions.predicted, minlength=predictions.n_classes)
    seen = np.flatnonzero(size)
    order = seen[np.lexsort((-size[seen], right[seen] / size[seen]))]
    return ClassReport(
        rows=tuple(_class_row(predictions, int(k), names, threshold) for k in order[:most]),
        classes=predictions.n_classes,
        never_predicted=tuple(names[k] for k in np.flatnonzero((times_predicted == 0) & (size > 0))),
        never_seen=tuple(names[k] for k in np.flatnonzero(size == 0)),
    )


def _class_row(predictions: Predictions, k: int, names: tuple[str, ...], threshold: float) -> ClassRow:
    member = predictions.targets == k
    correct, confidence = predictions.correct[member], predictions.confidence[member]
    automatic = is_confident(predictions, threshold)[member]
    mistaken_for = np.bincount(predictions.predicted[member][~correct], minlength=predictions.n_classes)
    most = int(mistaken_for.argmax())
    low, high = exact_interval(int(correct.sum()), len(correct))
    return ClassRow(
        name=names[k],
        cases=len(correct),
        accuracy=float(correct.mean()),
        low=float(low),
        high=float(high),
        confidence=float(confidence.mean()),
        automated=float(automatic.mean()),
        automated_wrong=int((automatic & ~correct).sum()),
        confused_with=names[most] if mistaken_for[most] else None,
        confused=int(mistaken_for[most]),
    )


class Mistake(NamedTuple):
    """One wrong prediction: its row from 0, its id or "row" and that number, the classes and their probabilities."""

    row: int
    identity: str
    predicted: str
    target: str
    confidence: float
    target_probability: float | None  # None if only the score of the predicted class is known


def confident_mistakes(predictions: Predictions, *, most: int = 12) -> tuple[Mistake, ...]:
    """The wrong predictions with the highest confidence; ties in row order."""
    names = class_names(predictions)
    wrong = np.flatnonzero(~predictions.correct)
    rows = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")[:most]]
    if not len(rows):
        return ()
    chosen = predictions.subset(rows)
    mistakes = []
    for place, (row, k) in enumerate(zip(rows, chosen.targets, strict=True)):
        identity = f"row {row}"
        if chosen.ids is not None:
            identity = str(chosen.ids[place])
        probability = None
        if chosen.has_all_classes:
            probability = float(chosen.probabilities[place, k])
        predicted = names[chosen.predicted[place]]
        mistakes.append(Mistake(int(row), identity, predicted, names[k], float(chosen.confidence[place]), probability))
    return tuple(mistakes)
