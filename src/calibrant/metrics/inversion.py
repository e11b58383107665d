"""Intervals of calibration errors by inverting tests: which true errors could have shown this value?

A calibration error is made of absolute values, so noise can only raise it. Resampling adds the noise a second time:
percentile intervals lie too high, and those of a calibrated model never reach 0. So this module simulates worlds. In
world t a row with confidence c is right with probability c - t * d(c), where d has the shape of the observed gap; t = 0
is perfect calibration. A world is kept unless the observed value lies in an outer tail of its simulations. The interval
runs from the smallest to the largest true error of the worlds that are kept.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import Bins, Floats, bin_edges, rounded
from calibrant.metrics.confidences import Confidences, Ranked
from calibrant.metrics.functions import confidences_of
from calibrant.metrics.metric import METRICS, SET_METRICS, Metric, set_metric
from calibrant.predictions import Predictions

_WORLDS = (0.0, 0.15, 0.35, 0.6, 0.85, 1.0, 1.15, 1.4, 2.0, 3.0, 5.0)
# Simulations work on groups of neighbouring rows instead of rows; more groups change no digit that matters.
_GROUPS = 128
# The same for the grid of the smooth ECE, whose bandwidth is rarely below a hundredth.
_CELLS = 128
# Draws to see the tails of a high level (that of many groups at once) are cheap, but not endless.
_MOST_FOR_TAILS = 1000
# The error of a set of fewer rows takes so few different values that its interval holds too much.
_ENOUGH = 10
# With so many times the rows no noise is left, and every error is that of the world itself.
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
    """The plausible true values of every calibration error that has an interval, by flat name.

    Errors of sets of fewer than ten rows are left out.
    """
    # Half of the draws for each of the two signs that a gap can have, but enough to see the tails.
    draws = max(-(-n_resamples // 2), min(_MOST_FOR_TAILS, math.ceil(2.0 / (1.0 - level))))
    tails = (1.0 - level) / 2.0, 0.5, (1.0 + level) / 2.0
    rows, generator = confidences_of(predictions, n_bins), np.random.default_rng([seed, 1])
    ranked = rows.ranked
    groups = _Groups.of(ranked, n_bins, [bin_edges(n_bins, rows.precision)])
    plausible = _invert(groups, _with_interval(METRICS), draws, tails, generator)
    for threshold in thresholds:
        inside = ranked.above(float(rounded(np.asarray([threshold]), rows.precision)[0]))
        if inside.total[0] >= _ENOUGH:
            edges = [bin_edges(n_bins, rows.precision, low) for low in (0.0, threshold)]
            groups = _Groups.of(inside, n_bins, edges, threshold)
            errors = _invert(groups, _with_interval(SET_METRICS), draws, tails, generator)
            plausible |= {set_metric(name, threshold): value for name, value in errors.items()}
    return plausible


def _with_interval(metrics: Mapping[str, Metric]) -> list[Metric]:
    return [metric for metric in metrics.values() if metric.family == "calibration" and not metric.no_interval]


@dataclass(frozen=True)
class _Groups:
    """Groups of neighbouring rows that no bin cuts through.

    Attributes:
        size: Rows of each.
        confidence: Their mean confidence.
        right: How many of them are right.
        widths: The first group of each equal-width bin, by the lower end of the bins.
        mass: The first group of each bin of equal mass.
        low: Least confidence, if the rows are a high-confidence set.
    """

    size: Floats
    confidence: Floats
    right: Floats
    widths: dict[float, NDArray[np.int64]]
    mass: NDArray[np.int64]
    low: float

    @classmethod
    def of(cls, ranked: Ranked, n_bins: int, edges: list[Floats], low: float = 0.0) -> "_Groups":
        """Groups of ranked rows for bins with these edges and for bins of equal mass."""
        end = len(ranked.confidence)
        places = [np.unique(np.append(ranked.places(each[1:-1]), 0)) for each in edges]
        places = [each[each < end] for each in places]
        mass = ranked.equal_mass_cuts(n_bins)[:-1]
        count = np.cumsum(ranked.size[0], dtype=np.int64)
        # Cuts after rows that divide the rows evenly, each moved to the end of its group of equal confidences.
        fine = np.linspace(0, count[-1] - 1, min(_GROUPS, int(count[-1])), dtype=np.int64)
        cuts = np.unique(np.concatenate([*places, mass, np.searchsorted(count, fine, side="right") + 1]))
        bins = ranked.sums(np.append(cuts[cuts < end], end), np.empty(0))
        widths = [np.searchsorted(cuts, each) for each in places]
        lows = dict(zip((0.0, low), widths, strict=False))
        sums = bins.count[0], bins.confidence[0], bins.correct_sum[0]
        return cls(*sums, lows, np.searchsorted(cuts, mass), low)

    def shape(self) -> Floats:
        """The observed gap of each group's bin of equal mass, all with the sign of the whole gap.

        Errors of bins see the size of a gap alone. The sign matters to the KS and the smooth error, in which gaps of
        both signs hide each other: with one sign their upper ends are on the safe side.
        """
        count = np.add.reduceat(self.size, self.mass)
        surplus = np.add.reduceat(self.size * self.confidence - self.right, self.mass)
        # Never less than the noise of the bin: a gap that happens to be 0 is not known to be 0. With 1 / count the
        # worlds reach far enough even if a few rows are all right.
        mean = np.add.reduceat(self.size * self.confidence, self.mass) / count
        gap = np.maximum(np.abs(surplus / count), np.sqrt((mean * (1.0 - mean) + 1.0 / count) / count))
        sign = 1.0 if surplus.sum() >= 0.0 else -1.0
        return np.repeat(gap, np.diff(self.mass, append=len(self.size))) * sign


class _Simulated(Confidences):
    """Counts of shape (simulations, groups) as metrics read them; bins are those of the observed rows."""

    cells = _CELLS

    def __init__(self, groups: _Groups, size: Floats, right: Floats) -> None:
        super().__init__(Ranked(groups.confidence, size, size - right), 0, "float64", low=groups.low)
        sums = size, size * groups.confidence, right
        self._bins = {low: _add_bins(sums, starts) for low, starts in groups.widths.items()}
        self._mass = _add_bins(sums, groups.mass)

    @property
    def equal_mass(self) -> Bins:
        """Sums over the bins that have equal mass in the observed rows."""
        return self._mass


def _add_bins(sums: tuple[Floats, Floats, Floats], starts: NDArray[np.int64]) -> Bins:
    return Bins(np.empty(0), *(np.add.reduceat(each, starts, axis=1) for each in sums))


def _invert(
    groups: _Groups, metrics: list[Metric], draws: int, tails: tuple[float, ...], generator: np.random.Generator
) -> dict[str, Plausible]:
    # How many rows fall into which group is chance, too.
    rows = int(groups.size.sum())
    size = generator.multinomial(rows, groups.size / rows, size=draws)
    shape = groups.shape()
    seen = _worlds(groups, metrics, shape, size, tails, generator)
    # Gaps of the other sign can hide behind a small error as well.
    other = _worlds(groups, metrics, -shape, size, tails, generator)
    return {name: each._replace(high=max(each.high, other[name].high)) for name, each in seen.items()}


def _worlds(
    groups: _Groups,
    metrics: list[Metric],
    shape: Floats,
    size: NDArray[np.int64],
    tails: tuple[float, ...],
    generator: np.random.Generator,
) -> dict[str, Plausible]:
    observed = _Simulated(groups, groups.size[None], groups.right[None])
    quantiles: dict[str, list[Floats]] = {metric.name: [] for metric in metrics}
    truths: dict[str, list[float]] = {metric.name: [] for metric in metrics}
    for world in _WORLDS:
        accuracy = np.clip(groups.confidence - world * shape, 0.0, 1.0)
        right = generator.binomial(size, accuracy)
        simulated = _Simulated(groups, size.astype(np.float64), right.astype(np.float64))
        endless = groups.size[None] * _ENDLESS
        without_noise = _Simulated(groups, endless, endless * accuracy)
        for metric in metrics:
            # The k-th of n simulations leaves k / (n + 1) of all to come below it, so few do not mean too narrow.
            values = metric.compute(simulated)
            quantiles[metric.name].append(np.quantile(values, tails, method="weibull"))
            truths[metric.name].append(float(metric.compute(without_noise)[0]))
    return {
        metric.name: _kept(
            float(metric.compute(observed)[0]), np.stack(quantiles[metric.name]), np.asarray(truths[metric.name])
        )
        for metric in metrics
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
