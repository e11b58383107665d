"""The noise floor: the ECE that a perfectly calibrated model with the same confidences would show by chance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.display import ShownFields
from calibrant.metrics.binning import bin_edges, bin_index, check_bins, expected_error
from calibrant.metrics.tops import Tops, Weights, weighted_rows
from calibrant.predictions import Predictions

# Bins larger than this are drawn from the limit law of their sum instead of row by row.
_LARGE = 10_000


@dataclass(frozen=True)
class NoiseFloor(ShownFields):
    """Chance alone.

    Attributes:
        mean: Mean ECE over simulations.
        upper: Their 95 % quantile; an ECE below it is what chance gives to perfect calibration.
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
    if weights is not None:
        return weighted_rows(predictions, weights).noise(check_bins(n_bins), draws=draws, seed=seed)
    return noise_of(Tops.of(predictions), check_bins(n_bins), draws=draws, seed=seed)


def noise_of(tops: Tops, n_bins: int, *, draws: int = 400, seed: int = 0) -> NoiseFloor:
    """The noise floor of confidences."""
    return noise_of_bins(noise_bins(tops, n_bins), draws=draws, seed=seed)


def noise_of_bins(bins: Sequence["NoiseBin"], *, draws: int = 400, seed: int = 0) -> NoiseFloor:
    """The noise floor of confidences in bins."""
    generator = np.random.default_rng(seed)
    surplus = [_surplus(one, draws, generator) for one in bins if one.rows]
    total = expected_error(np.stack(surplus, axis=-1), sum(one.rows for one in bins))
    return NoiseFloor(float(total.mean()), float(np.quantile(total, 0.95)))


@dataclass
class NoiseBin:
    """A bin: its rows, the sums of their confidences c and of c (1 - c), and all c where the rows are few."""

    rows: int = 0
    expected: float = 0.0
    variance: float = 0.0
    confidence: tuple[NDArray[np.float64], ...] = ()

    def add(self, confidence: NDArray[np.float64]) -> None:
        """Add some rows."""
        self.rows += len(confidence)
        self.expected += float(confidence.sum())
        self.variance += float((confidence * (1.0 - confidence)).sum())
        self.confidence = (*self.confidence, confidence) if self.rows <= _LARGE else ()

    def merge(self, other: "NoiseBin") -> None:
        """Add the rows of another part, which come after those that are here."""
        self.rows, self.expected = self.rows + other.rows, self.expected + other.expected
        self.variance += other.variance
        self.confidence = (*self.confidence, *other.confidence) if self.rows <= _LARGE else ()


def noise_bins(tops: Tops, n_bins: int) -> list[NoiseBin]:
    """The confidences in equal-width bins."""
    edges, groups = bin_edges(n_bins, tops.precision), [NoiseBin() for _ in range(n_bins)]
    for confidence, _ in tops.blocks():
        index = bin_index(confidence, edges)
        for number in np.unique(index):
            groups[number].add(confidence[index == number])
    return groups


def _surplus(group: NoiseBin, draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draws of (number right - sum of confidence) for one bin."""
    if group.rows <= _LARGE:
        confidence = np.concatenate(group.confidence)
        right = [np.count_nonzero(generator.random(group.rows) < confidence) for _ in range(draws)]
        return np.asarray(right, dtype=np.float64) - group.expected
    if group.variance >= 100.0:
        return generator.normal(0.0, np.sqrt(group.variance), draws)
    # Many rows, hardly any variance: the rare outcome is Poisson to within the sum of squared probabilities.
    rare_wrong = group.expected > group.rows / 2
    rate = group.rows - group.expected if rare_wrong else group.expected
    surplus = generator.poisson(max(rate, 0.0), draws).astype(np.float64) - rate
    return -surplus if rare_wrong else surplus
