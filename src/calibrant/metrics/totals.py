"""What needs every probability, not only the top one: Brier score and class-wise bins, in one pass over chunks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, bin_index, edge_precision
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class ClassTotals:
    """Sums over all rows.

    Attributes:
        rows: Number of rows.
        brier: Brier score of each row, float64.
        gap_sum: Shape (K, n_bins): sum over the rows of a class's bin of probability minus (target is that class).
    """

    rows: int
    brier: NDArray[np.float64]
    gap_sum: NDArray[np.float64]

    @property
    def classwise_error(self) -> float:
        """Mean over classes of the class's ECE."""
        classes = self.gap_sum.shape[0]
        return float(np.abs(self.gap_sum).sum() / (self.rows * classes))


def class_totals(predictions: Predictions, n_bins: int) -> ClassTotals:
    """Walk through the rows once."""
    classes = predictions.classes
    edges = bin_edges(n_bins, edge_precision(predictions))
    gap_sum = np.zeros(classes * n_bins)
    brier = np.empty(len(predictions))
    for part, probabilities in predictions.chunks():
        targets = predictions.targets[part]
        rows = np.arange(len(targets))
        residual = probabilities.copy()
        residual[rows, targets] -= 1.0
        brier[part] = np.einsum("ij,ij->i", residual, residual)
        # Rows sum to 1, so only a few entries of each lie above the first bin: sort those, sum the rest by column.
        high = np.nonzero(probabilities > edges[1])
        cell = high[1] * n_bins + bin_index(probabilities[high], edges)
        gap_sum += np.bincount(cell, weights=residual[high], minlength=classes * n_bins)
        residual[high] = 0.0
        gap_sum[::n_bins] += residual.sum(axis=0)
    return ClassTotals(len(predictions), brier, gap_sum.reshape(classes, n_bins))
