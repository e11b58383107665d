"""Calibration errors: how far confidence is from accuracy, and how large such an error is by chance alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from calibrant.checks import whole
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics.binning import Bins, Floats, bin_edges, bin_index, check_bins, debiased_errors, edge_precision
from calibrant.metrics.confidences import Confidences, RowConfidences
from calibrant.metrics.metric import Chunk, read_chunks
from calibrant.metrics.weights import Weights, check_weights
from calibrant.predictions import Predictions, require_predictions
from calibrant.predictions.rows import Precision
from calibrant.tables import ShownFields

# Smallest bandwidth of the smooth ECE: two cells of its grid.
_SMALLEST = 1e-3
_BISECTIONS = 10
# Bins larger than this are drawn from the limit law of their sum instead of row by row.
_LARGE = 10_000


def confidences_of(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, weights: Weights | None = None
) -> RowConfidences:
    """Confidence and correctness of predictions, as metrics read them."""
    require_predictions(predictions)
    own = None if weights is None else check_weights(predictions, weights)
    rows = predictions.confidence, predictions.correct
    return RowConfidences(*rows, check_bins(n_bins), edge_precision(predictions), own)


def reliability_bins(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, equal_mass: bool = False, weights: Weights | None = None
) -> Bins:
    """Count, confidence and accuracy in bins of confidence.

    Args:
        predictions: What the model said.
        n_bins: Number of bins on [0, 1].
        equal_mass: Bins with an equal number of rows instead of equal width.
        weights: Name of an extra column, or one number per row: importance weights. Counts are then sums of weights.
    """
    confidences = confidences_of(predictions, n_bins, weights)
    if not equal_mass:
        return confidences.bins()
    bins = confidences.equal_mass
    count, confidence_sum, correct_sum = bins.count[0], bins.confidence_sum[0], bins.correct_sum[0]
    if bins.square_sum is None:
        return Bins(bins.edges, count.astype(np.int64), confidence_sum, correct_sum.astype(np.int64))
    return Bins(bins.edges, count, confidence_sum, correct_sum, bins.square_sum[0])


def expected_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """ECE over equal-width bins: sum over bins of (count / n) * |mean confidence - accuracy| (Guo et al. 2017).

    >>> expected_calibration_error(Predictions.from_probabilities([[0.95, 0.05], [1.0, 0.0]], [0, 1]), 10)
    0.475
    """
    return confidences_of(predictions, n_bins, weights).bins().expected_error


def equal_mass_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """ECE over bins that hold (almost) the same number of rows; equal confidences stay together."""
    return reliability_bins(predictions, n_bins, equal_mass=True, weights=weights).expected_error


def maximum_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """MCE: the largest |mean confidence - accuracy| of an equal-width bin that is not empty."""
    return confidences_of(predictions, n_bins, weights).bins().maximum_error


def debiased_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """Debiased L2 calibration error over equal-mass bins (Kumar, Liang and Ma 2019).

    With m rows, gap g and accuracy a in a bin: sqrt(max(0, sum of (m / n) * (g^2 - a (1 - a) / (m - 1)))); the part
    subtracted is what chance adds to g^2. Bins with fewer than two rows count as 0. With weights, m - 1 becomes
    (sum of w)^2 / (sum of w^2) - 1. The result is a root mean square: compare it with other L2 errors, not with the
    ECE.
    """
    return float(debiased_errors(confidences_of(predictions, n_bins, weights).equal_mass).item())


def classwise_calibration_error(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> float:
    """Class-wise ECE (static calibration error, SCE): the mean over all K classes of the ECE of that class.

    The ECE of class k bins the probability of k and compares its mean with the share of rows whose target is k.
    Classes that never occur count too: their probabilities should be small.
    """
    return class_error(class_gap_sums(predictions, n_bins, weights), len(predictions))


def class_gap_sums(predictions: Predictions, n_bins: int, weights: Weights | None = None) -> Floats:
    """The sums of `class_gaps` over all rows."""
    require_predictions(predictions)
    own = None if weights is None else check_weights(predictions, weights)
    edges = bin_edges(check_bins(n_bins), edge_precision(predictions))
    total = np.zeros((n_bins, predictions.n_classes))
    for _, chunk in read_chunks(predictions, edges, own):
        total += class_gaps(chunk)
    return total


def class_gaps(chunk: Chunk) -> Floats:
    """Sums over each class's bins of its probability minus (target is that class), shape (n_bins, classes)."""
    classes, n_bins = chunk.probabilities.shape[1], len(chunk.edges) - 1
    residual = chunk.residual
    if chunk.weights is not None:
        residual = residual * chunk.weights[:, None]
    # Rows sum to 1, so only a few entries of each row lie above the first bin: bin those, and sum the rest by column.
    probabilities = chunk.probabilities.ravel()
    places = np.flatnonzero(probabilities > chunk.edges[1])
    column, values = places % classes, residual.ravel()[places]
    cell = bin_index(probabilities[places], chunk.edges) * classes + column
    sums = np.bincount(cell, values, n_bins * classes).astype(np.float64, copy=False)
    sums[:classes] += residual.sum(axis=0) - np.bincount(column, values, classes)
    return sums.reshape(n_bins, classes)


def class_error(gap_sums: Floats, rows: float) -> float:
    """Class-wise ECE from the sums of `class_gaps` over that many rows."""
    return float(np.abs(gap_sums).sum() / (rows * gap_sums.shape[1]))


def smooth_calibration_error(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Smooth ECE (Blasiok and Nakkiran 2023): no bins, and a bandwidth chosen by the data.

    With r = confidence - correct and a reflected Gaussian kernel K, smECE_s is the integral over [0, 1] of
    |(1/n) sum_i r_i K_s(t, c_i)|. It falls as the bandwidth s grows; the result is its value at the s that equals it
    (searched in 0.001..1).
    """
    return float(smooth_errors(confidences_of(predictions, weights=weights)).item())


def smooth_errors(confidences: Confidences) -> Floats:
    """Smooth ECE of each resample."""
    spread = np.atleast_2d(confidences.spread) / np.reshape(confidences.rows, (-1, 1))
    # Reflection at 0 and 1 makes the Gaussian diagonal in the cosine basis: this is heat flow in an insulated rod.
    waves = fft.dct(spread, type=2, axis=-1)
    frequency = np.pi * np.arange(spread.shape[-1])

    def error(bandwidth: Floats) -> Floats:
        damped = waves * np.exp(-0.5 * (bandwidth[:, None] * frequency) ** 2)
        result: Floats = np.abs(fft.idct(damped, type=2, axis=-1)).sum(axis=-1)
        return result

    low, high = np.full(len(spread), _SMALLEST), np.ones(len(spread))
    over, under = error(low) - low, error(high) - high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        excess = error(middle) - middle
        above = excess > 0
        low, over = np.where(above, middle, low), np.where(above, excess, over)
        high, under = np.where(above, high, middle), np.where(above, under, excess)
    # The error falls almost linearly over so short an interval. If even the smallest bandwidth is above the error
    # (over <= 0), the bracket has closed on it.
    return error(np.where(over > 0, low + (high - low) * over / np.maximum(over - under, 1e-300), low))


def ks_calibration_error(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al. 2021), without bins.

    The largest |(1/n) * sum of (confidence - correct) over rows with confidence <= t| over all t.
    """
    return float(ks_errors(confidences_of(predictions, weights=weights)).item())


def ks_errors(confidences: Confidences) -> Floats:
    """KS error of each resample."""
    largest = np.zeros(len(confidences.ranked.size))
    for step in confidences.ranked.steps():
        largest = np.maximum(largest, np.maximum(step.gap.max(axis=1), -step.gap.min(axis=1)))
    return largest / confidences.ranked.total


@dataclass(frozen=True)
class NoiseFloor(ShownFields):
    """The ECE that chance alone gives a perfectly calibrated model.

    Attributes:
        mean: Mean ECE over simulations.
        upper: Their 95 % quantile; an ECE below it is no evidence of miscalibration.
    """

    mean: float
    upper: float


def noise_floor(
    predictions: Predictions,
    n_bins: int = DEFAULT_N_BINS,
    *,
    draws: int = 400,
    seed: int = 0,
    weights: Weights | None = None,
) -> NoiseFloor:
    """Simulate targets that are right with exactly the stated confidence, and measure the ECE of each simulation."""
    whole("draws", draws, 1)
    rows = confidences_of(predictions, n_bins, weights)
    return simulate_noise(noise_bins(rows.confidence, n_bins, rows.precision, rows.weights), draws=draws, seed=seed)


class NoiseBin:
    """The rows of a bin as the simulation needs them; parts of the data add up.

    If rows count alike and are many, the sums of their confidences c and of c (1 - c) are enough.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.size = self.expected = self.variance = 0.0
        self.confidence: list[Floats] = []
        self.weights: list[Floats] = []

    @property
    def is_large(self) -> bool:
        """Whether the limit law of the sum is used."""
        return self.rows > _LARGE and not self.weights

    def add(self, confidence: Floats, weights: Floats | None = None) -> None:
        """Add some rows."""
        self.rows += len(confidence)
        self.variance += float((confidence * (1.0 - confidence)).sum())
        if weights is None:
            self.size += len(confidence)
            self.expected += float(confidence.sum())
        else:
            self.size += float(weights.sum())
            self.expected += float((weights * confidence).sum())
            self.weights.append(weights)
        self.confidence.append(confidence)
        if self.is_large:
            self.confidence.clear()

    def merge(self, other: "NoiseBin") -> None:
        """Add the rows of another part, which come after those that are here."""
        self.rows, self.size = self.rows + other.rows, self.size + other.size
        self.expected, self.variance = self.expected + other.expected, self.variance + other.variance
        self.confidence += other.confidence
        if self.is_large:
            self.confidence.clear()

    def surplus(self, draws: int, generator: np.random.Generator) -> Floats:
        """Draws of (number right - sum of confidence)."""
        if not self.is_large:
            return self._draw_rows(draws, generator) - self.expected
        if self.variance >= 100.0:
            return generator.normal(0.0, np.sqrt(self.variance), draws)
        # Many rows, hardly any variance: the rare outcome is Poisson to within the sum of squared probabilities.
        rare_wrong = self.expected > self.rows / 2
        rate = self.rows - self.expected if rare_wrong else self.expected
        surplus = generator.poisson(max(rate, 0.0), draws).astype(np.float64) - rate
        return -surplus if rare_wrong else surplus

    def _draw_rows(self, draws: int, generator: np.random.Generator) -> Floats:
        confidence, found = np.concatenate(self.confidence), np.empty(draws)
        weights = np.concatenate(self.weights) if self.weights else None
        for draw in range(draws):
            right = generator.random(self.rows) < confidence
            found[draw] = np.count_nonzero(right) if weights is None else weights[right].sum()
        return found


def noise_bins(
    confidence: NDArray[np.floating], n_bins: int, precision: Precision, weights: Floats | None = None
) -> list[NoiseBin]:
    """The confidences in equal-width bins."""
    wide = confidence.astype(np.float64, copy=False)
    index, bins = bin_index(wide, bin_edges(n_bins, precision)), [NoiseBin() for _ in range(n_bins)]
    for number in np.unique(index):
        inside = index == number
        bins[number].add(wide[inside], None if weights is None else weights[inside])
    return bins


def simulate_noise(bins: Sequence[NoiseBin], *, draws: int = 400, seed: int = 0) -> NoiseFloor:
    """The noise floor of confidences in bins."""
    generator = np.random.default_rng(seed)
    surplus = np.stack([each.surplus(draws, generator) for each in bins if each.rows], axis=-1)
    errors = np.abs(surplus).sum(axis=-1) / sum(each.size for each in bins)
    return NoiseFloor(float(errors.mean()), float(np.quantile(errors, 0.95)))
