"""Intervals of calibration errors by inverting tests: which worlds could have shown this value?

A calibration error is made of absolute values, so noise can only raise it. Resampling adds the noise a second time:
percentile intervals lie too high, and those of a calibrated model never reach 0. Here the question is turned round. In
world t a row with confidence c is right with probability c - t * d(c), where d has the shape of the observed gap; t = 0
is perfect calibration. The error that each world would show is simulated, and a world is kept unless the observed value
lies in an outer tail of its simulations. The interval runs from the smallest to the largest true error of those kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, bin_index, edge_precision, expected_error, rounded
from calibrant.metrics.errors import debiased
from calibrant.metrics.names import set_metric
from calibrant.metrics.resampling import CLASSWISE_ENTRIES, resampled_classwise
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
# So many times the rows have no noise left, and every error is that of the world itself.
_ENDLESS = 1e9
# Resamples that tell how far class-wise errors are spread.
_SPREAD_DRAWS = 200
# Entries of one block of simulated counts.
_BLOCK = 2**20


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
    """The plausible true values of every calibration error but MCE, by the flat name of the metric."""
    # Half of the draws for each of the two signs that a gap can have.
    tops, draws, tails = Tops.of(predictions), -(-n_resamples // 2), ((1.0 - level) / 2.0, 0.5, (1.0 + level) / 2.0)
    rows, generator = SortedTops(tops), np.random.default_rng([seed, 1])
    width = bin_edges(n_bins, tops.precision)
    groups = _Groups.of(rows, 0, [width, rows.equal_mass_edges(n_bins)])
    found = _invert(groups, groups.all_errors, draws, tails, generator)
    for threshold in thresholds:
        limit = float(rounded(np.asarray([threshold]), tops.precision)[0])
        start = int(rows.places(np.nextafter(np.asarray([limit], dtype=tops.confidence.dtype), 0))[0])
        if start < len(rows):
            inside = bin_edges(n_bins, tops.precision, low=threshold)
            groups = _Groups.of(rows, start, [width, inside, rows.equal_mass_edges(n_bins, start)])
            own = _invert(groups, groups.set_errors, draws, tails, generator)
            found |= {set_metric(name, threshold): value for name, value in own.items()}
    if len(predictions) * predictions.n_classes <= CLASSWISE_ENTRIES:
        found["classwise_ece"] = _classwise(predictions, n_bins, draws, tails, generator)
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
        count, hits, surplus = (np.add.reduceat(each, mass, axis=1) for each in (size, right, gap))
        return {
            "ece": expected_error(np.add.reduceat(gap, width, axis=1), total),
            "ece_equal_mass": expected_error(surplus, total),
            "debiased_ece": debiased(count, surplus + hits, hits),
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
            quantiles[name].append(np.quantile(values, tails))
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


def _classwise(
    predictions: Predictions, n_bins: int, n_resamples: int, tails: tuple[float, ...], generator: np.random.Generator
) -> Plausible:
    """The same for the class-wise ECE, whose cells are the bins of every class.

    There are so many cells that the gaps of most are noise. Whether the true gaps lie in all cells or in a few decides
    how far they raise the error, and cannot be known. So the lower end takes the cells whose gaps stand out, the upper
    end takes all of them. Cells are simulated one by one, although a target that one class loses another one gains; the
    simulated values are spread as far as those of resampled rows, which know of that.
    """
    size, expected, hits = _class_cells(predictions, n_bins)
    probability, gap = expected / size, (expected - hits) / size
    noise = probability * (1.0 - probability) / size
    few = gap * np.maximum(0.0, 1.0 - noise / np.maximum(gap**2, 1e-300))
    total = len(predictions) * predictions.n_classes
    observed = float(expected_error(expected - hits, total))

    def simulate(chance: Floats) -> Floats:
        blocks = _blocks(n_resamples, len(size))
        draws = (generator.binomial(size, chance, size=(rows, len(size))) for rows in blocks)
        return np.concatenate([expected_error(expected - hits, total) for hits in draws])

    resampled = resampled_classwise(predictions, n_bins, _SPREAD_DRAWS, int(generator.integers(2**31)))
    stretch = max(1.0, float(resampled.std() / max(simulate(hits / size).std(), 1e-300)))

    def plausible(shape: Floats) -> Plausible:
        quantiles, truths = [], []
        for world in _WORLDS:
            chance = np.clip(probability - world * shape, 0.0, 1.0)
            values = simulate(chance)
            middle = np.median(values)
            quantiles.append(np.quantile(middle + stretch * (values - middle), tails))
            truths.append(float(expected_error(expected - size * chance, total)))
        return _kept(observed, np.stack(quantiles), np.asarray(truths))

    wide = plausible(gap)
    low = min(wide.low, plausible(few).low) if wide.low > 0.0 else 0.0
    return Plausible(low, max(low, wide.centre), wide.high)


def _blocks(n_resamples: int, width: int) -> list[int]:
    step = max(1, _BLOCK // width)
    return [min(step, n_resamples - start) for start in range(0, n_resamples, step)]


def _class_cells(predictions: Predictions, n_bins: int) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Rows, sum of probabilities and hits of every class's bins that are not empty."""
    edges, classes = bin_edges(n_bins, edge_precision(predictions)), predictions.n_classes
    size, hits = np.zeros((2, classes * n_bins), dtype=np.int64)
    expected = np.zeros(classes * n_bins)
    for part, probabilities in predictions.chunks():
        targets, low = predictions.targets[part], probabilities <= edges[1]
        # Rows sum to 1, so only a few entries of each lie above the first bin.
        row, column = np.nonzero(~low)
        cell = column * n_bins + bin_index(probabilities[row, column], edges)
        size += np.bincount(cell, minlength=len(size))
        expected += np.bincount(cell, probabilities[row, column], minlength=len(size))
        size[::n_bins] += low.sum(axis=0)
        expected[::n_bins] += np.where(low, probabilities, 0.0).sum(axis=0)
        of_target = probabilities[np.arange(len(targets)), targets]
        hits += np.bincount(targets * n_bins + bin_index(of_target, edges), minlength=len(size))
    filled = size > 0
    return size[filled], expected[filled], hits[filled]
