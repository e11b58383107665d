"""Binned calibration errors: how far confidence is from accuracy."""

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics.binning import Bins, bin_edges, check_bins, edge_precision, sum_bins
from calibrant.metrics.tops import SortedTops, Tops, Weights, weighted_rows
from calibrant.metrics.totals import read_totals
from calibrant.predictions import Predictions, require_predictions


def reliability_bins(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, equal_mass: bool = False, weights: Weights | None = None
) -> Bins:
    """Count, confidence and accuracy in bins of confidence.

    Args:
        predictions: What the model said.
        n_bins: Number of bins on [0, 1].
        equal_mass: Bins of equal number of rows instead of equal width.
        weights: Name of an extra column, or one number per row: importance weights. Counts are then sums of weights.
    """
    require_predictions(predictions)
    if weights is not None:
        return weighted_rows(predictions, weights).bins(check_bins(n_bins), equal_mass=equal_mass)
    if equal_mass:
        return SortedTops(Tops.of(predictions)).equal_mass_bins(check_bins(n_bins))
    return sum_bins(predictions.confidence, predictions.correct, bin_edges(n_bins, edge_precision(predictions)))


def expected_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """ECE over equal-width bins: sum over bins of (count / n) * |mean confidence - accuracy| (Guo et al. 2017).

    >>> expected_calibration_error(Predictions.from_probabilities([[0.95, 0.05], [1.0, 0.0]], [0, 1]), 10)
    0.475
    """
    return reliability_bins(predictions, n_bins, weights=weights).expected_error


def equal_mass_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """ECE over bins that hold (almost) the same number of rows; equal confidences stay together."""
    return reliability_bins(predictions, n_bins, equal_mass=True, weights=weights).expected_error


def maximum_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """MCE: the largest |mean confidence - accuracy| of an equal-width bin that is not empty."""
    return reliability_bins(predictions, n_bins, weights=weights).maximum_error


def debiased_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """Debiased L2 calibration error over equal-mass bins (Kumar, Liang and Ma 2019).

    With m rows, gap g and accuracy a in a bin: sqrt(max(0, sum of (m / n) * (g^2 - a (1 - a) / (m - 1)))); the part
    subtracted is what chance adds to g^2. Bins with fewer than two rows count as 0. It is a root mean square, so it
    is compared with other L2 errors, not with the ECE.
    """
    if weights is not None:
        return weighted_rows(predictions, weights).debiased(check_bins(n_bins))
    return debiased_error(reliability_bins(predictions, n_bins, equal_mass=True))


def debiased_error(bins: Bins) -> float:
    """The debiased error of bins."""
    return float(debiased(bins.count, bins.confidence_sum, bins.correct_sum))


def debiased(
    count: NDArray[np.generic], confidence_sum: NDArray[np.float64], correct_sum: NDArray[np.generic]
) -> NDArray[np.float64]:
    """The debiased estimate from sums over bins, which lie along the last axis."""
    m = np.asarray(count, dtype=np.float64)
    some = np.maximum(m, 1.0)
    accuracy = np.asarray(correct_sum, dtype=np.float64) / some
    chance = accuracy * (1.0 - accuracy) / np.maximum(m - 1.0, 1.0)
    square = np.where(m < 2, 0.0, (confidence_sum / some - accuracy) ** 2 - chance)
    total = (m * square).sum(axis=-1) / m.sum(axis=-1)
    return np.asarray(np.sqrt(np.maximum(total, 0.0)))


def classwise_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """Class-wise ECE (static calibration error, SCE): the mean over all K classes of the ECE of that class.

    The ECE of class k bins the probability of k and compares its mean with the share of rows whose target is k.
    Classes that never occur count too: their probabilities should be small.
    """
    require_predictions(predictions)
    if weights is not None:
        return weighted_rows(predictions, weights).classwise(check_bins(n_bins))
    return read_totals(predictions, check_bins(n_bins)).classwise_error


def balanced_error(
    targets: NDArray[np.int64], wrong: NDArray[np.bool_], weights: NDArray[np.float64] | None = None
) -> float:
    """Mean over the classes that have rows of the share of their rows that are wrong."""
    rows, errors = (
        np.bincount(targets, weights),
        np.bincount(targets[wrong], None if weights is None else weights[wrong]),
    )
    errors = np.pad(errors, (0, len(rows) - len(errors)))
    return float((errors[rows > 0] / rows[rows > 0]).mean())
