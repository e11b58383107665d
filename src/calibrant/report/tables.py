"""Where the model fails: its worst classes and its most confident mistakes."""

from dataclasses import dataclass

import numpy as np

from calibrant.errors import printable
from calibrant.metrics.evaluation import is_confident
from calibrant.metrics.intervals import wilson
from calibrant.predictions import Predictions, names_or_numbers


@dataclass(frozen=True)
class ClassRow:
    """How one class fares; shares are of the rows whose true class it is.

    Attributes:
        name: Class name, or its number.
        cases: Rows of this class.
        accuracy: Share of them that is recognised (recall).
        low: Lower end of its 95 % Wilson interval.
        high: Upper end.
        confidence: Mean confidence on these rows.
        automated: Share of them at the threshold and above.
        automated_wrong: Number of them that are automated and wrong.
        confused_with: The class most often said instead; None where there is no mistake.
        confused: How often.
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


@dataclass(frozen=True)
class ClassReport:
    """Classes from worst to best, and those that nothing can be said about.

    Attributes:
        rows: The worst classes first, cut to the number asked for.
        classes: Number of classes K.
        never_predicted: Names of classes that occur but were never predicted.
        never_seen: Names of classes without a single row.
    """

    rows: tuple[ClassRow, ...]
    classes: int
    never_predicted: tuple[str, ...]
    never_seen: tuple[str, ...]


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction.

    Attributes:
        row: Row number in the predictions, from 0.
        identity: The id given with the predictions, or "row" and its number.
        predicted: What the model said.
        target: What is true.
        confidence: How sure it was.
        target_probability: What it gave the true class.
    """

    row: int
    identity: str
    predicted: str
    target: str
    confidence: float
    target_probability: float


def class_names(predictions: Predictions) -> tuple[str, ...]:
    """Names of the classes; their numbers where none were given."""
    return tuple(printable(name) for name in names_or_numbers(predictions.class_names, predictions.n_classes))


def worst_classes(predictions: Predictions, *, threshold: float = 0.95, most: int = 12) -> ClassReport:
    """Classes by accuracy, worst first; ties by size, larger first.

    Args:
        predictions: What the model said.
        threshold: From which confidence on cases are automated.
        most: How many rows are made.
    """
    names = class_names(predictions)
    size = np.bincount(predictions.targets, minlength=predictions.n_classes)
    right = np.bincount(predictions.targets[predictions.correct], minlength=predictions.n_classes)
    said = np.bincount(predictions.predicted, minlength=predictions.n_classes)
    seen = np.flatnonzero(size)
    order = seen[np.lexsort((-size[seen], right[seen] / size[seen]))]
    return ClassReport(
        rows=tuple(_class_row(predictions, int(k), names, threshold) for k in order[:most]),
        classes=predictions.n_classes,
        never_predicted=tuple(names[k] for k in np.flatnonzero((said == 0) & (size > 0))),
        never_seen=tuple(names[k] for k in np.flatnonzero(size == 0)),
    )


def _class_row(predictions: Predictions, k: int, names: tuple[str, ...], threshold: float) -> ClassRow:
    member = predictions.targets == k
    correct, confidence = predictions.correct[member], predictions.confidence[member]
    automated = is_confident(predictions, threshold)[member]
    wrong_as = np.bincount(predictions.predicted[member][~correct], minlength=predictions.n_classes)
    most = int(wrong_as.argmax())
    low, high = wilson(int(correct.sum()), len(correct))
    return ClassRow(
        name=names[k],
        cases=len(correct),
        accuracy=float(correct.mean()),
        low=float(low),
        high=float(high),
        confidence=float(confidence.mean()),
        automated=float(automated.mean()),
        automated_wrong=int((automated & ~correct).sum()),
        confused_with=names[most] if wrong_as[most] else None,
        confused=int(wrong_as[most]),
    )


def confident_mistakes(predictions: Predictions, *, most: int = 12) -> tuple[Mistake, ...]:
    """The wrong predictions that the model was surest of; ties in row order."""
    names = class_names(predictions)
    wrong = np.flatnonzero(~predictions.correct)
    chosen = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")[:most]]
    if not len(chosen):
        return ()
    shown = predictions.subset(chosen)
    ids, probabilities = shown.ids, shown.probabilities
    return tuple(
        Mistake(
            row=row,
            identity=f"row {row}" if ids is None else str(ids[place]),
            predicted=names[shown.predicted[place]],
            target=names[shown.targets[place]],
            confidence=float(shown.confidence[place]),
            target_probability=float(probabilities[place, shown.targets[place]]),
        )
        for place, row in enumerate(chosen.tolist())
    )
