"""Intervals of calibration errors by inverting tests: which true errors could have shown this value?

A calibration error is made of absolute values, so noise can only raise it. Resampling adds the noise a second time:
percentile intervals lie too high, and those of a calibrated model never reach 0. So this module simulates worlds. In
world t a row with confidence c is right with probability c - t * d(c); t = 0 is perfect calibration. A world is kept
unless the observed value lies in an outer tail of its simulations. The interval runs from the smallest to the largest
true error of the worlds that are kept.

How much noise raises an error depends on where the true gaps d lie. For a given true error it is most if they lie in a
few bins, because all others then show noise alone, and least if every bin has a gap of the size of its noise. So there
are two shapes of d: the local one, in which only clear gaps are real, decides the lower end, and the spread one, in
which no gap is smaller than its noise, decides the upper end.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrant.metrics.binning import Bins, Floats, bin_edges, rounded
from calibrant.metrics.confidences import Confidences, Ranked
from calibrant.metrics.functions import confidences_of
from calibrant.metrics.metric import METRICS, SET_METRICS, Metric, set_metric
from calibrant.predictions import Predictions

_WORLDS = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4, 2.0, 3.0, 5.0)
_LOW_WORLDS, _HIGH_WORLDS = _WORLDS[:10], _WORLDS[3:]  # enough for one end
# A gap this many standard errors from 0 is clear: of 15 bins without a gap, one shows such a gap in 17 % of draws.
_CLEAR = 2.5
_FEWEST_DRAWS = 200
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
    """True errors that could have shown the observed value: the smallest, the likeliest and the largest.

    The simulations of the centre lie above the observed value as often as below it.
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
    draws = max(-(-n_resamples // 2), _FEWEST_DRAWS, min(_MOST_FOR_TAILS, math.ceil(8.0 / (1.0 - level))))
    tail = (1.0 - level) / 2.0
    rows, generator = confidences_of(predictions, n_bins), np.random.default_rng([seed, 1])
    ranked = rows.ranked
    groups = _Groups.of(ranked, n_bins, [bin_edges(n_bins, rows.precision)])
    plausible = _invert(groups, _with_interval(METRICS), draws, tail, generator)
    for threshold in thresholds:
        inside = ranked.above(float(rounded(np.asarray([threshold]), rows.precision)[0]))
        if inside.total[0] >= _ENOUGH:
            edges = [bin_edges(n_bins, rows.precision, low) for low in (0.0, threshold)]
            groups = _Groups.of(inside, n_bins, edges, threshold)
            errors = _invert(groups, _with_interval(SET_METRICS), draws, tail, generator)
            plausible |= {set_metric(name, threshold): value for name, value in errors.items()}
    return plausible


def _with_interval(metrics: Mapping[str, Metric]) -> list[Metric]:
    return [metric for metric in metrics.values() if metric.family == "calibration" and not metric.no_interval]


@dataclass(frozen=True)
class _Groups:
    """Groups of neighbouring rows that no bin cuts through."""

    size: Floats  # rows of each
    confidence: Floats  # their mean confidence
    right: Floats  # how many of them are right
    widths: dict[float, NDArray[np.int64]]  # the first group of each equal-width bin, by the lower end of the bins
    mass: NDArray[np.int64]  # the first group of each bin of equal mass
    low: float  # least confidence, if the rows are a high-confidence set

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

    def shapes(self) -> tuple[Floats, Floats]:
        """The gaps of the spread and of the local shape, one for each group, from the gaps of bins of equal mass.

        In the spread shape all gaps have the sign of the whole gap. Errors of bins see the size of a gap alone. The
        sign matters to the KS and the smooth error, in which gaps of both signs hide each other: with one sign their
        upper ends are on the safe side.
        """
        count = np.add.reduceat(self.size, self.mass)
        confidence = np.add.reduceat(self.size * self.confidence, self.mass)
        right = np.add.reduceat(self.right, self.mass)
        gap, mean = (confidence - right) / count, confidence / count
        # With 1 / count the worlds reach far enough even if a few rows are all right.
        noise = np.sqrt((mean * (1.0 - mean) + 1.0 / count) / count)
        spread = np.maximum(np.abs(gap), noise) * np.where(confidence.sum() >= right.sum(), 1.0, -1.0)
        clearness = np.abs(gap) / noise
        local = np.where(clearness >= min(_CLEAR, clearness.max()), gap, 0.0)
        groups = np.diff(self.mass, append=len(self.size))
        return np.repeat(spread, groups), np.repeat(local, groups)


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
    groups: _Groups, metrics: list[Metric], draws: int, tail: float, generator: np.random.Generator
) -> dict[str, Plausible]:
    # How many rows fall into which group is chance, too.
    rows = int(groups.size.sum())
    size = generator.multinomial(rows, groups.size / rows, size=draws)
    spread, local = groups.shapes()
    plausible = {}
    families = (spread, _WORLDS), (-spread, _HIGH_WORLDS), (local, _LOW_WORLDS)
    sides = [_worlds(groups, metrics, shape, worlds, size, tail, generator) for shape, worlds in families]
    for metric in metrics:
        # Gaps of the other sign can hide behind a small error as well.
        seen, other, clear = (side[metric.name] for side in sides)
        low = min(seen.low, clear.low)
        plausible[metric.name] = Plausible(low, max(low, seen.centre), max(seen.high, other.high))
    return plausible


def _worlds(
    groups: _Groups,
    metrics: list[Metric],
    shape: Floats,
    worlds: tuple[float, ...],
    size: NDArray[np.int64],
    tail: float,
    generator: np.random.Generator,
) -> dict[str, Plausible]:
    observed = _Simulated(groups, groups.size[None], groups.right[None])
    simulations: dict[str, list[Floats]] = {metric.name: [] for metric in metrics}
    truths: dict[str, list[float]] = {metric.name: [] for metric in metrics}
    for world in worlds:
        accuracy = np.clip(groups.confidence - world * shape, 0.0, 1.0)
        right = generator.binomial(size, accuracy)
        simulated = _Simulated(groups, size.astype(np.float64), right.astype(np.float64))
        endless = groups.size[None] * _ENDLESS
        without_noise = _Simulated(groups, endless, endless * accuracy)
        for metric in metrics:
            simulations[metric.name].append(np.asarray(metric.compute(simulated)))
            truths[metric.name].append(float(metric.compute(without_noise)[0]))
    plausible = {}
    for metric in metrics:
        value = float(metric.compute(observed)[0])
        plausible[metric.name] = _kept(value, np.stack(simulations[metric.name]), np.asarray(truths[metric.name]), tail)
    return plausible


def _kept(observed: float, simulations: Floats, truths: Floats, tail: float) -> Plausible:
    """The true errors of the worlds, one per row, whose simulations show the observed value or a more extreme one."""
    truths = np.where(truths < 1e-12, 0.0, truths)  # but for rounding
    # Counts are whole numbers, so a simulation may show the observed value itself, but for rounding: that counts as it.
    above = _evidence(simulations >= observed - 1e-12, observed, simulations)
    below = _evidence(simulations <= observed + 1e-12, observed, simulations)
    low = _crossing(np.maximum.accumulate(above), float(ndtri(tail)), truths)
    high = _crossing(-np.minimum.accumulate(below), -float(ndtri(tail)), truths)
    centre = _crossing(np.maximum.accumulate(above), 0.0, truths)
    return Plausible(low, max(low, centre), max(low, centre, high))


def _evidence(extreme: NDArray[np.bool_], observed: float, simulations: Floats) -> Floats:
    """The normal quantile of the share of simulations that are as extreme as the observed value, for each world.

    If none is, or all are, the distance from their mean in standard deviations tells how far in the tail it lies.
    """
    draws = simulations.shape[1]
    count = extreme.sum(axis=1)
    quantile = ndtri((count + 0.5) / (draws + 1.0))
    spread = np.maximum(simulations.std(axis=1), 1e-300)
    distance = np.abs(observed - simulations.mean(axis=1)) / spread
    quantile = np.where(count == 0, np.minimum(quantile, -distance), quantile)
    return np.asarray(np.where(count == draws, np.maximum(quantile, distance), quantile))


def _crossing(quantiles: Floats, limit: float, truths: Floats) -> float:
    """The true error at which rising quantiles reach a limit."""
    index = int(np.searchsorted(quantiles, limit))
    if index == 0:
        return float(truths[0])
    if index == len(quantiles):
        return float(truths[-1])
    part = (limit - quantiles[index - 1]) / max(quantiles[index] - quantiles[index - 1], 1e-300)
    return float(truths[index - 1] + part * (truths[index] - truths[index - 1]))
