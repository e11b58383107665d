"""The noise floor: the ECE that a perfectly calibrated model with the same confidences would show by chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import DEFAULT_N_BINS, bin_edges, bin_index, check_bins, edge_precision
from calibrant.predictions import Predictions, require_predictions

# Bins larger than this are drawn from the limit law of their sum instead of row by row.
_LARGE = 10_000


@dataclass(frozen=True)
class NoiseFloor:
    """Chance alone.

    Attributes:
        mean: Mean ECE over simulations.
        upper: Their 95 % quantile; an ECE below it is what chance gives to perfect calibration.
    """

    mean: float
    upper: float


def noise_floor(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, draws: int = 400, seed: int = 0
) -> NoiseFloor:
    """Simulate targets that are right with exactly the stated confidence, and measure the ECE of each simulation."""
    require_predictions(predictions)
    generator = np.random.default_rng(seed)
    confidence = predictions.confidence
    index = bin_index(confidence, bin_edges(check_bins(n_bins), edge_precision(predictions)))
    order = np.argsort(index, kind="stable")
    groups = np.split(confidence[order], np.searchsorted(index[order], np.arange(1, n_bins)))
    total = np.zeros(draws)
    for group in groups:
        if len(group):
            total += np.abs(_surplus(group, draws, generator))
    return NoiseFloor(float(total.mean() / len(confidence)), float(np.quantile(total, 0.95) / len(confidence)))


def _surplus(confidence: NDArray[np.float64], draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draws of (number right - sum of confidence) for one bin."""
    expected = float(confidence.sum())
    variance = float((confidence * (1.0 - confidence)).sum())
    if len(confidence) <= _LARGE:
        right = [np.count_nonzero(generator.random(len(confidence)) < confidence) for _ in range(draws)]
        return np.asarray(right, dtype=np.float64) - float(expected)
    if variance >= 100.0:
        return generator.normal(0.0, np.sqrt(variance), draws)
    # Many rows, hardly any variance: the rare outcome is Poisson to within the sum of squared probabilities.
    rare_wrong = expected > len(confidence) / 2
    rate = len(confidence) - expected if rare_wrong else expected
    surplus = generator.poisson(max(rate, 0.0), draws).astype(np.float64) - rate
    return -surplus if rare_wrong else surplus
