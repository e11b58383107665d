"""One pass over all probabilities: the sums of Brier score and NLL, class-wise bins, and the top of every row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, bin_index, edge_precision, expected_error
from calibrant.metrics.tops import Tops
from calibrant.predictions import Predictions, require_predictions


@dataclass(frozen=True)
class Totals:
    """What one pass finds.

    Attributes:
        tops: Confidence and correctness of each row.
        nll: Mean NLL.
        brier: Mean Brier score.
        gap_sum: Shape (n_bins, K): sum over the rows of a class's bin of probability minus (target is that class).
    """

    tops: Tops
    nll: float
    brier: float
    gap_sum: NDArray[np.float64]

    @property
    def classwise_error(self) -> float:
        """Mean over classes of the class's ECE."""
        return float(expected_error(self.gap_sum.ravel(), len(self.tops.correct) * self.gap_sum.shape[1]))


def read_totals(predictions: Predictions, n_bins: int) -> Totals:
    """Walk through the rows once; beyond a chunk at a time, only their tops stay in memory."""
    require_predictions(predictions)
    precision = edge_precision(predictions)
    edges, gap_sum = bin_edges(n_bins, precision), np.zeros((n_bins, predictions.n_classes))
    nll = brier = 0.0
    confidence: NDArray[np.floating] = np.empty(0)
    correct = np.empty(len(predictions), dtype=np.bool_)
    for part, rows, probabilities in predictions.walk():
        if part.start == 0:
            confidence = np.empty(len(predictions), dtype=rows.confidence.dtype)
        targets = predictions.targets[part]
        confidence[part], correct[part] = rows.confidence, rows.predicted == targets
        residual = minus_target(probabilities, targets)
        nll += float(rows.nll.sum())
        brier += float(np.einsum("ij,ij->i", residual, residual).sum())
        gap_sum += sum_gaps(probabilities, residual, edges)
    n = len(predictions)
    return Totals(Tops(confidence, correct, precision), nll / n, brier / n, gap_sum)


def brier_rows(predictions: Predictions) -> NDArray[np.float64]:
    """Brier score of each row."""
    brier = np.empty(len(predictions))
    for part, probabilities in predictions.chunks():
        residual = minus_target(probabilities, predictions.targets[part])
        brier[part] = np.einsum("ij,ij->i", residual, residual)
    return brier


def minus_target(probabilities: NDArray[np.float64], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Probabilities minus the one-hot target, a new array."""
    residual = probabilities.copy()
    residual[np.arange(len(targets)), targets] -= 1.0
    return residual


def sum_gaps(
    probabilities: NDArray[np.float64], residual: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum the residuals of each class over the bins of its probability, shape (n_bins, K). Overwrites `residual`."""
    n_bins, classes = len(edges) - 1, probabilities.shape[1]
    # Rows sum to 1, so only a few entries of each lie above the first bin: sort those, sum the rest by column.
    row, column = np.nonzero(probabilities > edges[1])
    cell = bin_index(probabilities[row, column], edges) * classes + column
    # bincount returns integers for an empty input.
    sums = np.asarray(np.bincount(cell, residual[row, column], n_bins * classes), dtype=np.float64)
    residual[row, column] = 0.0
    sums[:classes] += residual.sum(axis=0)
    return sums.reshape(n_bins, classes)
