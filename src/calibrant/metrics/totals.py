"""What needs every probability, not only the top one: Brier score and class-wise bins, in one pass over chunks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, bin_index, edge_precision, expected_error
from calibrant.predictions import Predictions, require_predictions


@dataclass(frozen=True)
class ClassTotals:
    """Sums over all rows.

    Attributes:
        rows: Number of rows.
        brier: Brier score of each row, float64.
        gap_sum: Shape (n_bins, K): sum over the rows of a class's bin of probability minus (target is that class).
    """

    rows: int
    brier: NDArray[np.float64]
    gap_sum: NDArray[np.float64]

    @property
    def classwise_error(self) -> float:
        """Mean over classes of the class's ECE."""
        return float(expected_error(self.gap_sum.ravel(), self.rows * self.gap_sum.shape[1]))


def class_totals(predictions: Predictions, n_bins: int) -> ClassTotals:
    """Walk through the rows once."""
    require_predictions(predictions)
    edges = bin_edges(n_bins, edge_precision(predictions))
    gap_sum = np.zeros((n_bins, predictions.n_classes))
    brier = np.empty(len(predictions))
    for part, probabilities in predictions.chunks():
        residual = minus_target(probabilities, predictions.targets[part])
        brier[part] = np.einsum("ij,ij->i", residual, residual)
        gap_sum += sum_gaps(probabilities, residual, edges)
    return ClassTotals(len(predictions), brier, gap_sum)


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
