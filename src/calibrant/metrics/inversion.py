"""Intervals of calibration errors by inverting tests: which worlds could have shown this value?

A calibration error is made of absolute values, so noise can only raise it. Resampling adds the noise a second time:
percentile intervals lie too high, and those of a calibrated model never reach 0. Here the question is turned round. In
world t a row with confidence c is right with probability c - t * d(c), where d has the shape of the observed gap; t = 0
is perfect calibration. The error that each world would show is simulated, and a world is kept unless the observed value
lies in an outer tail of its simulations. The interval runs from the smallest to the largest true error of those kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, expected_error, rounded
from calibrant.metrics.names import set_metric
from calibrant.metrics.smooth import grid_position, smooth_error
from calibrant.metrics.tops import SortedTops, Tops
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
Errors = Callable[[Floats, Floats], dict[str, Floats]]
_WORLDS = (0.0, 0.15, 0.35, 0.6, 0.85, 1.0, 1.15, 1.4, 2.0, 3.0, 5.0)
# Simulations work on groups of neighbouring rows instead of rows; more than so many change no digit that matters.
_GROUPS = 128
# The same for the grid of the smooth ECE, whose bandwidth is rarely below a hundredth.
_CELLS = 128
# Draws to see the tails of a high level (that of many groups at once) are cheap, but not endless.
_MOST_FOR_TAILS = 1000
# The error of a set of fewer rows takes so few different values that its interval holds too much, and says nothing.
_ENOUGH = 10
# So many times the rows have no noise left, and every error is that of the world itself.
_ENDLESS = 1e9


class Plausible(NamedTuple):
    """True errors that could have shown the observed value.

    Attributes:
        low: The smallest.
        centre: The one whose simulations lie above the observed value as often as below it.
        high: The largest.
    """

    low: float
    centre: float
    high: float


def calibration_errors(
    predictions: Predictions, n_bins: int, thresholds: list[float], *, n_resamples: int, seed: int, level: float
) -> dict[str, Plausible]:
    """The plausible true values of every calibration error but MCE, class-wise and debiased ECE, by flat name.

    Errors of sets of fewer than ten rows are left out.
    """
    # Half of the draws for each of the two signs that a gap can have, but enough to see the tails.
    draws = max(-(-n_resamples // 2), min(_MOST_FOR_TAILS, math.ceil(2.0 / (1.0 - level))))
    tails = (1.0 - level) / 2.0, 0.5, (1.0 + level) / 2.0
    tops, generator = Tops.of(predictions), np.random.default_rng([seed, 1])
    rows = SortedTops(tops)
    width = bin_edges(n_bins, tops.precision)
    groups = _Groups.of(rows, 0, [width, rows.equal_mass_edges(n_bins)])
    found = _invert(groups, groups.all_errors, draws, tails, generator)
    for threshold in thresholds:
        limit = float(rounded(np.asarray([threshold]), tops.precision)[0])
        start = int(rows.places(np.nextafter(np.asarray([limit], dtype=tops.confidence.dtype), 0))[0])
        if len(rows) - start >= _ENOUGH:
            inside = bin_edges(n_bins, tops.precision, low=threshold)
            groups = _Groups.of(rows, start, [width, inside, rows.equal_mass_edges(n_bins, start)])
            own = _invert(groups, groups.set_errors, draws, tails, generator)
            found |= {set_metric(name, threshold): value for name, value in own.items()}
    return found


@dataclass(frozen=True)
class _Groups:
    """Groups of neighbouring rows that no bin cuts through.

    Attributes:
        size: Rows of each.
        confidence: Their mean confidence.
        right: How many of them are right.
        parts: For each set of edges, the first group of each bin. The last set cuts bins of equal mass.
    """

    size: NDArray[np.int64]
    confidence: Floats
    right: Floats
    parts: list[NDArray[np.int64]]

    @classmethod
    def of(cls, rows: SortedTops, start: int, edges: list[Floats]) -> "_Groups":
        """Groups of the rows from place `start` on."""
        places = [np.unique(np.append(rows.places(each[1:-1]), start)) for each in edges]
        places = [each[(each >= start) & (each < len(rows))] for each in places]
        fine = np.linspace(start, len(rows) - 1, min(_GROUPS, len(rows) - start), dtype=np.int64)
        cuts = np.unique(np.concatenate([*places, rows.places(rows.confidence(fine))]))
        cuts = np.append(cuts[cuts < len(rows)], len(rows))
        bins = rows.sums(np.empty(0), cuts)
        return cls(
            bins.count, bins.confidence, bins.correct_sum.astype(np.float64), [np.searchsorted(cuts, p) for p in places]
        )

    def shape(self) -> Floats:
        """The observed gap of each group's bin of equal mass, all with the sign of the whole gap.

        The size of a gap is what errors of bins see. The sign matters to the KS and the smooth error alone, where gaps
        of both signs hide each other: with one sign their upper ends are on the safe side.
        """
        starts = self.parts[-1]
        count = np.add.reduceat(self.size, starts)
        surplus = np.add.reduceat(self.size * self.confidence - self.right, starts)
        # Never less than the noise of the bin: a gap that happens to be 0 is not known to be 0. The 1 / count makes the
        # worlds reach far enough where a few rows are all right.
        mean = np.add.reduceat(self.size * self.confidence, starts) / count
        gap = np.maximum(np.abs(surplus / count), np.sqrt((mean * (1.0 - mean) + 1.0 / count) / count))
        return np.repeat(gap, np.diff(starts, append=len(self.size))) * (1.0 if surplus.sum() >= 0.0 else -1.0)

    def all_errors(self, size: Floats, right: Floats) -> dict[str, Floats]:
        """The errors of counts of shape (r, groups)."""
        total, gap = size.sum(axis=1), size * self.confidence - right
        width, mass = self.parts
        return {
            "ece": expected_error(np.add.reduceat(gap, width, axis=1), total),
            "ece_equal_mass": expected_error(np.add.reduceat(gap, mass, axis=1), total),
            "ks": np.abs(np.cumsum(gap, axis=1)).max(axis=1) / total,
            "smooth_ece": self._smooth(gap / total[:, None]),
        }

    def set_errors(self, size: Floats, right: Floats) -> dict[str, Floats]:
        """The errors of a high-confidence set; see `all_errors`."""
        total, gap = size.sum(axis=1), size * self.confidence - right
        names = ("ece", "ece_inside")
        return {
            name: expected_error(np.add.reduceat(gap, part, axis=1), total)
            for name, part in zip(names, self.parts, strict=False)
        }

    def _smooth(self, gap: Floats) -> Floats:
        low, part = grid_position(self.confidence, _CELLS)
        cells, starts = np.unique(low, return_index=True)
        spread, upper = np.zeros((len(gap), _CELLS + 1)), gap * part
        spread[:, cells] = np.add.reduceat(gap - upper, starts, axis=1)
        spread[:, cells + 1] += np.add.reduceat(upper, starts, axis=1)
        return smooth_error(spread[:, :_CELLS])


def _invert(
    groups: _Groups, errors: Errors, n_resamples: int, tails: tuple[float, ...], generator: np.random.Generator
) -> dict[str, Plausible]:
    # How many rows fall into which group is chance, too.
    rows = int(groups.size.sum())
    size = generator.multinomial(rows, groups.size / rows, size=n_resamples)
    shape = groups.shape()
    seen = _worlds(groups, errors, shape, size, tails, generator)
    # Gaps of the other sign, too, can hide behind a small error.
    other = _worlds(groups, errors, -shape, size, tails, generator)
    return {name: each._replace(high=max(each.high, other[name].high)) for name, each in seen.items()}


def _worlds(
    groups: _Groups,
    errors: Errors,
    shape: Floats,
    size: NDArray[np.int64],
    tails: tuple[float, ...],
    generator: np.random.Generator,
) -> dict[str, Plausible]:
    observed = errors(groups.size[None].astype(np.float64), groups.right[None])
    quantiles: dict[str, list[Floats]] = {name: [] for name in observed}
    truths: dict[str, list[float]] = {name: [] for name in observed}
    for world in _WORLDS:
        accuracy = np.clip(groups.confidence - world * shape, 0.0, 1.0)
        right = generator.binomial(size, accuracy)
        for name, values in errors(size.astype(np.float64), right.astype(np.float64)).items():
            # The k-th of n simulations leaves k / (n + 1) of all to come below it, so that few do not mean too narrow.
            quantiles[name].append(np.quantile(values, tails, method="weibull"))
        endless = groups.size[None].astype(np.float64) * _ENDLESS
        for name, values in errors(endless, endless * accuracy).items():
            truths[name].append(float(values[0]))
    return {
        name: _kept(float(value[0]), np.stack(quantiles[name]), np.asarray(truths[name]))
        for name, value in observed.items()
    }


def _kept(observed: float, quantiles: Floats, truths: Floats) -> Plausible:
    """Where the observed value leaves the simulations of the worlds, in true errors."""
    truths[0] = 0.0  # but for rounding
    # Simulated quantiles rise with the world but for their own noise.
    lower, middle, upper = np.maximum.accumulate(quantiles, axis=0).T
    # Counts are whole numbers, so a simulation may show the observed value itself, but for rounding: that counts as it.
    low, centre = (_crossing(observed - 1e-12, each, truths) for each in (upper, middle))
    return Plausible(low, max(low, centre), max(low, centre, _crossing(observed + 1e-12, lower, truths)))


def _crossing(observed: float, quantile: Floats, truths: Floats) -> float:
    """The true error at which a quantile rises above the observed value."""
    index = int(np.searchsorted(quantile, observed))
    if index == 0:
        return float(truths[0])
    if index == len(quantile):
        return float(truths[-1])
    part = (observed - quantile[index - 1]) / max(quantile[index] - quantile[index - 1], 1e-300)
    return float(truths[index - 1] + part * (truths[index] - truths[index - 1]))
