"""Every metric as a function of predictions, the noise floor of the ECE, and the list of built-in metrics.

docs/metrics.md defines each metric. Wherever `weights` is an argument, it is the name of an extra column or one number
per row: importance weights, of which only the ratios matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import digamma

from calibrant.checks import whole
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics.binning import (
    Bins,
    Floats,
    bin_edges,
    bin_index,
    check_bins,
    debiased_errors,
    edge_precision,
    expected_errors,
    maximum_errors,
)
from calibrant.metrics.confidences import Confidences, RowConfidences, Step
from calibrant.metrics.metric import (
    METRICS,
    SET_METRICS,
    Chunk,
    Metric,
    Weights,
    optional_weights,
    read_chunks,
    weighted_sum,
)
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
    own_weights = optional_weights(predictions, weights)
    rows = predictions.confidence, predictions.correct
    confidences = RowConfidences(*rows, check_bins(n_bins), edge_precision(predictions), own_weights)
    if predictions.kind == "score":
        return confidences.only_ranked()
    return confidences


# -- calibration errors ------------------------------------------------------------------------------------------------


def reliability_bins(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, equal_mass: bool = False, weights: Weights | None = None
) -> Bins:
    """Count, confidence and accuracy in bins of equal width or equal mass; with weights, counts are sums of weights."""
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
    return float(maximum_errors(confidences_of(predictions, n_bins, weights).bins()))


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
    predictions.require_all_classes("The class-wise ECE")
    own_weights = optional_weights(predictions, weights)
    edges = bin_edges(check_bins(n_bins), edge_precision(predictions))
    total = np.zeros((n_bins, predictions.n_classes))
    for _, chunk in read_chunks(predictions, edges, own_weights):
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


# -- the noise floor ---------------------------------------------------------------------------------------------------


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

    def __init__(self, confidence: Floats, weights: Floats | None = None) -> None:
        self.rows = len(confidence)
        self.weights = [] if weights is None else [weights]
        own = np.ones(self.rows) if weights is None else weights
        self.size, self.expected = float(own.sum()), float((own * confidence).sum())
        self.variance = float((confidence * (1.0 - confidence)).sum())
        self.confidence = [] if self.is_large else [confidence]

    @property
    def is_large(self) -> bool:
        """Whether the limit law of the sum is used."""
        return self.rows > _LARGE and not self.weights

    def merge(self, other: "NoiseBin") -> None:
        """Add the rows of another part, which come after those that are here."""
        self.rows += other.rows
        self.size += other.size
        self.expected += other.expected
        self.variance += other.variance
        self.confidence += other.confidence
        if self.is_large:
            self.confidence.clear()

    def surplus(self, draws: int, generator: np.random.Generator) -> Floats:
        """Draws of (number right - sum of confidence)."""
        if not self.is_large:
            confidence, right = np.concatenate(self.confidence), np.empty(draws)
            weights = np.concatenate(self.weights) if self.weights else np.ones(self.rows)
            for draw in range(draws):
                right[draw] = weights[generator.random(self.rows) < confidence].sum()
            return right - self.expected
        if self.variance >= 100.0:
            return generator.normal(0.0, np.sqrt(self.variance), draws)
        # Many rows, hardly any variance: the rare outcome is Poisson to within the sum of squared probabilities.
        sign, rate = 1.0, self.expected
        if self.expected > self.rows / 2:
            sign, rate = -1.0, self.rows - self.expected
        return np.asarray(sign * (generator.poisson(max(rate, 0.0), draws) - rate))


def noise_bins(
    confidence: NDArray[np.floating], n_bins: int, precision: Precision, weights: Floats | None = None
) -> list[NoiseBin]:
    """The confidences in equal-width bins."""
    wide = confidence.astype(np.float64, copy=False)
    index = bin_index(wide, bin_edges(n_bins, precision))
    bins = []
    for number in range(n_bins):
        inside = index == number
        bins.append(NoiseBin(wide[inside], None if weights is None else weights[inside]))
    return bins


def simulate_noise(bins: Sequence[NoiseBin], *, draws: int = 400, seed: int = 0) -> NoiseFloor:
    """The noise floor of confidences in bins."""
    generator = np.random.default_rng(seed)
    surplus = np.stack([each.surplus(draws, generator) for each in bins if each.rows], axis=-1)
    errors = np.abs(surplus).sum(axis=-1) / sum(each.size for each in bins)
    return NoiseFloor(float(errors.mean()), float(np.quantile(errors, 0.95)))


# -- accuracy, proper scores and rankings ------------------------------------------------------------------------------


def accuracy(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Share of rows whose prediction is the target."""
    require_predictions(predictions)
    return _mean(predictions, predictions.correct, weights)


def error_rate(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Test error: share of rows whose prediction is not the target."""
    require_predictions(predictions)
    return _mean(predictions, ~predictions.correct, weights)


def negative_log_likelihood(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean of minus the log probability of the target, in nats; infinite if a target has probability 0."""
    require_predictions(predictions)
    return _mean(predictions, predictions.nll, weights)


def brier_score(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean over rows of the squared distance to the one-hot target, summed over classes: in 0..2."""
    require_predictions(predictions)
    predictions.require_all_classes("The Brier score")
    values = np.empty(len(predictions))
    for part, chunk in read_chunks(predictions):
        values[part] = squared_distance(chunk)
    return _mean(predictions, values, weights)


def squared_distance(chunk: Chunk) -> Floats:
    """Brier score of each row."""
    return np.asarray(np.einsum("ij,ij->i", chunk.residual, chunk.residual))


def _mean(predictions: Predictions, values: NDArray[np.generic], weights: Weights | None) -> float:
    return weighted_sum(values, optional_weights(predictions, weights)) / len(predictions)


def auroc(predictions: Predictions, *, weights: Weights | None = None) -> float | None:
    """How well confidence separates right from wrong: the probability that a right row is more confident than a wrong.

    Ties count one half. This is the refinement of the paper. None if all rows are right or all are wrong: there is
    nothing to separate.

    >>> auroc(Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]], [0, 0, 1]))
    0.75
    """
    return METRICS["auroc"].value(confidences_of(predictions, weights=weights))


def ranking_areas(confidences: Confidences) -> Floats:
    """AUROC of each resample; NaN if all rows are right or all are wrong."""
    ranked = confidences.ranked
    beaten = np.zeros(len(ranked.size))
    for step in ranked.steps():
        # A right row beats every wrong row below its group and half of those inside it.
        beaten += np.einsum("ij,ij->i", step.size - step.wrong, step.errors - step.wrong / 2.0)
    pairs = (ranked.total - ranked.total_wrong) * ranked.total_wrong
    defined = pairs > 1e-12 * ranked.total**2
    return np.where(defined, beaten / np.where(defined, pairs, 1.0), np.nan)


def ranking_area_influence(wrong: Floats, right: Floats) -> tuple[float, Floats, Floats]:
    """Each row of a pair that is ordered, or not, moves the share of ordered pairs."""
    all_wrong, all_right = wrong.sum(), right.sum()
    if all_wrong <= 0.0 or all_right <= 0.0:
        return np.nan, wrong, right
    beaten = (np.cumsum(wrong) - wrong / 2.0) / all_wrong
    beats = 1.0 - (np.cumsum(right) - right / 2.0) / all_right
    value = float(right @ beaten / all_right)
    return value, (beats - value) / all_wrong, (beaten - value) / all_right


def aurc(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Area under the risk-coverage curve: the mean over k = 1..n of the error rate among the k most confident rows.

    Equal confidences have no order; their curve is the mean over all orders, so the value does not depend on the order
    of the rows: position j of a group of m rows with e errors adds j e / m errors to those before the group.
    """
    return float(risk_areas(confidences_of(predictions, weights=weights)).item())


def risk_areas(confidences: Confidences) -> Floats:
    """AURC of each resample.

    With a rows and E errors above a group of m rows and e errors, the sum over j = 1..m of (E + j e / m) / (a + j) is
    e + (E - a e / m) (H(a + m) - H(a)), H being harmonic numbers.
    """
    ranked = confidences.ranked
    risk = np.zeros(len(ranked.size))
    for step in ranked.steps():
        above = np.maximum(ranked.total[:, None] - step.count, 0.0)
        errors_above = ranked.total_wrong[:, None] - step.errors
        rate = step.wrong / np.where(step.size > 0.0, step.size, 1.0)  # a resample can lack a group
        if ranked.square is None:
            harmonic = _harmonic_steps(above, step)
        else:
            # The same for any amount of weight: H(x) is digamma(x + 1) but for a constant.
            harmonic = digamma(above + step.size + 1.0) - digamma(above + 1.0)
        risk += step.wrong.sum(axis=1) + np.einsum("ij,ij->i", errors_above - above * rate, harmonic)
    return risk / ranked.total


def _harmonic_steps(above: Floats, step: Step) -> Floats:
    """H(a + m) - H(a) for numbers of rows, from a table of the harmonic numbers that occur."""
    start = above.astype(np.int64)
    lowest, highest = int(start.min()), int((start[:, 0] + step.size[:, 0]).max())
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(lowest + 1, highest + 1))])
    start -= lowest
    at_start = harmonic[start]
    # The next group up begins where this one ends.
    at_end = np.empty_like(at_start)
    at_end[:, 1:] = at_start[:, :-1]
    at_end[:, 0] = harmonic[start[:, 0] + step.size[:, 0].astype(np.int64)]
    at_end -= at_start
    return at_end


def risk_area_influence(wrong: Floats, right: Floats) -> tuple[float, Floats, Floats]:
    """A row adds the risk at its own confidence, and changes the risk at every lower one."""
    size = wrong + right
    above, wrong_above = np.cumsum(size[::-1])[::-1], np.cumsum(wrong[::-1])[::-1]
    used = above > 1e-12 * above[0]
    risk = np.divide(wrong_above, above, out=np.zeros_like(above), where=used)
    part = np.divide(size, above, out=np.zeros_like(above), where=used)
    value = float(size @ risk / above[0])
    lower, expected = np.cumsum(part), np.cumsum(part * risk)
    of_right = risk - value - expected
    return value, (of_right + lower) / above[0], of_right / above[0]


@dataclass(frozen=True)
class AccuracyCoverage(ShownFields):
    """What remains if only confident rows are kept, from the most confident group to all rows.

    Attributes:
        threshold: Distinct confidences, descending.
        coverage: Share of rows, or of weight, with at least that confidence.
        accuracy: Share of those that are right.
    """

    threshold: Floats
    coverage: Floats
    accuracy: Floats


def accuracy_coverage(predictions: Predictions, *, weights: Weights | None = None) -> AccuracyCoverage:
    """Accuracy against coverage as the threshold falls; rows without weight are left out."""
    ranked = confidences_of(predictions, weights=weights).ranked
    size, wrong = (each[0, ::-1].astype(np.float64) for each in (ranked.size, ranked.wrong))
    count, right = np.cumsum(size), np.cumsum(size - wrong)
    threshold = ranked.confidence[::-1].astype(np.float64)
    return AccuracyCoverage(threshold, count / len(predictions), np.minimum(right / count, 1.0))


# -- the built-in metrics in the order of tables -----------------------------------------------------------------------

_ALL_ROWS = (
    Metric("test_error", "test error", "lower", "share", lambda chunk: ~chunk.correct, main=True),
    Metric(
        "nll", "NLL", "lower", "mean", lambda chunk: chunk.nll, scale="log", percent=False, main=True, all_classes=True
    ),
    Metric(
        "brier",
        "Brier score",
        "lower",
        "mean",
        squared_distance,
        scale="log",
        percent=False,
        highest=2.0,
        all_classes=True,
    ),
    Metric("ece", "ECE", "lower", "calibration", lambda rows: expected_errors(rows.bins()), main=True),
    Metric("ece_equal_mass", "ECE, equal mass", "lower", "calibration", lambda rows: expected_errors(rows.equal_mass)),
    Metric(
        "mce",
        "MCE",
        "lower",
        "calibration",
        lambda rows: maximum_errors(rows.bins()),
        no_interval="One bin with a few rows decides it, and none of the methods tried covers its true value.",
    ),
    Metric(
        "classwise_ece",
        "class-wise ECE",
        "lower",
        "table",
        class_gaps,
        finish=class_error,
        all_classes=True,
        no_interval="How far noise raises it depends on whether the true gaps lie in many cells or in a few.",
    ),
    Metric("smooth_ece", "smooth ECE", "lower", "calibration", smooth_errors),
    Metric(
        "debiased_ece",
        "debiased ECE",
        "lower",
        "calibration",
        lambda rows: debiased_errors(rows.equal_mass),
        counts_rows=True,
        no_interval="It is 0 whenever the noise that it subtracts is the larger part, in very different worlds.",
    ),
    Metric("ks", "KS error", "lower", "calibration", ks_errors),
    # Not the area between two classes: how well confidence separates right rows from wrong ones.
    Metric(
        "auroc",
        "AUROC, right or wrong",
        "higher",
        "ranking",
        ranking_areas,
        influence=ranking_area_influence,
        scale="logit",
    ),
    Metric("aurc", "AURC", "lower", "ranking", risk_areas, influence=risk_area_influence, scale="log"),
)
_SETS = (
    Metric("share", "share, ≥ {} % sure", "higher", "share", lambda rows: rows.rows / rows.all_rows, main=True),
    Metric("accuracy", "accuracy, ≥ {} % sure", "higher", "share", lambda rows: rows.right / rows.rows, main=True),
    Metric("ece", "ECE, ≥ {} % sure", "lower", "calibration", lambda rows: expected_errors(rows.bins())),
    Metric(
        "ece_inside",
        "ECE, ≥ {} % sure, own bins",
        "lower",
        "calibration",
        lambda rows: expected_errors(rows.bins(rows.low)),
    ),
)
METRICS.update({metric.name: metric for metric in _ALL_ROWS})
SET_METRICS.update({metric.name: metric for metric in _SETS})
