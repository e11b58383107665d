"""Error and calibration of each class: what an average over rows hides where some classes are rare."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.display import FEW, Displayed, Overview, ShownFields
from calibrant.metrics.binning import check_bins
from calibrant.metrics.errors import balanced_error
from calibrant.metrics.tops import Weights, weighted_rows
from calibrant.metrics.totals import read_totals
from calibrant.predictions import Predictions, names_or_numbers, require_predictions


@dataclass(frozen=True)
class ClassMetrics(ShownFields):
    """One class.

    Attributes:
        name: Its name, or its number as text.
        n: Rows of this class.
        error: Share of these rows that are predicted as another class; None without rows, or without weight on them.
        predicted: Rows that are predicted as this class.
        gap: Mean probability of this class minus its share, over all rows; above 0: said too often.
        ece: Calibration error of this class's probability against all others.
    """

    name: str
    n: int
    error: float | None
    predicted: int
    gap: float
    ece: float


@dataclass(frozen=True, repr=False)
class ClassEvaluation(Displayed):
    """All classes.

    Attributes:
        balanced_error: Mean error of the classes that have rows: each class counts as much as any other.
        classes: In the order of the labels.
    """

    balanced_error: float
    classes: tuple[ClassMetrics, ...]

    @property
    def worst(self) -> ClassMetrics:
        """The class with the largest error, the first of them on a tie."""
        return max((each for each in self.classes if each.error is not None), key=lambda each: each.error or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings and cells of a table for people, in percent."""
        percent: list[tuple[str, ...]] = [
            (
                each.name,
                f"{each.n:,}",
                "-" if each.error is None else f"{100 * each.error:.2f}",
                f"{each.predicted:,}",
                f"{100 * each.gap:+.2f}",
                f"{100 * each.ece:.2f}",
            )
            for each in self.classes
        ]
        return ("class", "cases", "error %", "predicted", "said - true share %", "ECE %"), percent

    def _overview(self) -> Overview:
        headings, rows = self.rows()
        more = [(f"{len(rows) - FEW:,} more", *[""] * (len(headings) - 1))] if len(rows) > FEW else []
        return Overview(self.describe(), [*rows[:FEW], *more], headings)

    def describe(self) -> str:
        """One sentence for a person."""
        worst = self.worst
        return (
            f"balanced error {100 * self.balanced_error:.2f} % (each class counts alike); "
            f"worst: {worst.name}, {100 * (worst.error or 0.0):.2f} % of {worst.n:,}"
        )


def evaluate_classes(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> ClassEvaluation:
    """Error and calibration class by class.

    Args:
        predictions: What the model said.
        n_bins: Bins of each class's calibration error.
        weights: Name of an extra column, or one number per row: importance weights. Only their ratios matter; `n` and
            `predicted` are numbers of rows all the same.

    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 0, 0, 1])
    >>> evaluate_classes(predictions).balanced_error
    0.5
    """
    require_predictions(predictions)
    check_bins(n_bins)
    count, n, targets, correct = predictions.n_classes, len(predictions), predictions.targets, predictions.correct
    if weights is None:
        own, gaps = None, read_totals(predictions, n_bins).gap_sum
    else:
        rows = weighted_rows(predictions, weights)
        own, gaps = rows.weights, rows.class_gaps(n_bins)
    weight = np.bincount(targets, own, count)
    right = np.bincount(targets[correct], None if own is None else own[correct], count)
    size, predicted = (np.bincount(each, minlength=count) for each in (targets, predictions.predicted))
    names = names_or_numbers(predictions.class_names, count)
    classes = tuple(
        ClassMetrics(
            name=str(names[k]),
            n=int(size[k]),
            error=1.0 - float(right[k]) / float(weight[k]) if weight[k] else None,
            predicted=int(predicted[k]),
            gap=float(gaps[:, k].sum()) / n,
            ece=float(np.abs(gaps[:, k]).sum()) / n,
        )
        for k in range(count)
    )
    return ClassEvaluation(balanced_error(targets, ~correct, own), classes)
