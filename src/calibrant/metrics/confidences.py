"""Confidence and correctness of rows: all that calibration errors and ranking metrics read.

A metric asks a `Confidences` object for sums over bins, sums on a grid, or a walk through the rows in the order of
confidence. It answers for plain, weighted, resampled and partitioned rows alike, so a metric is written once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput
from calibrant.metrics.binning import Bins, Floats, bin_edges, rounded, sum_bins
from calibrant.predictions.rows import Precision

# Cells of the grid on [0, 1] for the smooth ECE.
_CELLS = 2048
# Numbers of one step of a walk: what a step needs stays below a few tens of megabytes.
_STEP = 2**19


@dataclass(frozen=True)
class Step:
    """Some groups of equal confidence in ascending order; arrays have the shape (resamples, groups).

    `size` and `wrong` are numbers of rows, or sums of their weights. `count`, `errors` and `gap` add up rows, wrong
    rows and (confidence - correct) up to and including a group.
    """

    confidence: Floats  # shape (groups,)
    size: Floats
    wrong: Floats
    count: Floats
    errors: Floats
    gap: Floats


@dataclass(eq=False)
class Ranked:
    """Rows in ascending order of confidence, with equal confidences in one group.

    `confidence` has the shape (groups,). The others have the shape (resamples, groups): rows of each group or the sum
    of their weights, how many of them are wrong, and sums of squared weights, None if sizes are numbers of rows.
    """

    confidence: NDArray[Any]
    size: NDArray[Any]
    wrong: NDArray[Any]
    square: Floats | None = None

    @classmethod
    def of_rows(cls, confidence: NDArray[Any], correct: NDArray[np.bool_], weights: Floats | None = None) -> "Ranked":
        """Sort rows; those without weight are left out."""
        if weights is None:
            return cls.of_keys(sort_keys(confidence, correct))
        used = weights > 0.0
        order = np.flatnonzero(used)[np.argsort(confidence[used], kind="stable")]
        own, ordered = weights[order], confidence[order]
        starts = _starts(ordered)
        columns = (own, own * ~correct[order], own * own)
        return cls(ordered[starts], *(np.add.reduceat(column, starts)[None] for column in columns))

    @classmethod
    def of_keys(cls, keys: NDArray[Any]) -> "Ranked":
        """Rows from what `sort_keys` returned for all of them; the keys are sorted in place."""
        keys.sort()
        confidences, sizes, wrongs = [], [], []
        start = 0
        while start < len(keys):
            # A part ends with a whole group.
            last = keys[min(start + _STEP, len(keys)) - 1]
            stop = int(np.searchsorted(keys, last | keys.dtype.type(1), side="right"))
            part = keys[start:stop]
            first = np.flatnonzero(np.concatenate([[True], (part[1:] ^ part[:-1]) > 1]))
            size = np.diff(first, append=len(part))
            right = np.add.reduceat(part & 1, first, dtype=np.int64)
            confidences.append((part[first] >> 1).view(f"f{keys.itemsize}"))
            sizes.append(size.astype(np.uint32))
            wrongs.append((size - right).astype(np.uint32))
            start = stop
        return cls(np.concatenate(confidences), np.concatenate(sizes)[None], np.concatenate(wrongs)[None])

    @cached_property
    def total(self) -> Floats:
        """Rows, or the sum of weights, of each resample."""
        return np.asarray(self.size.sum(axis=1), dtype=np.float64)

    @cached_property
    def total_wrong(self) -> Floats:
        """Wrong rows, or the sum of their weights, of each resample."""
        return np.asarray(self.wrong.sum(axis=1), dtype=np.float64)

    @cached_property
    def _right(self) -> NDArray[Any]:
        return np.asarray(self.size - self.wrong)

    @cached_property
    def _confidence_sum(self) -> Floats:
        return np.asarray(self.size * self.confidence.astype(np.float64))

    def steps(self) -> Iterator[Step]:
        """Walk through the groups in ascending order of confidence."""
        if self.size.size <= _STEP:
            yield self._only_step
            return
        width = max(1, _STEP // len(self.size))
        count, errors, gap = np.zeros((3, len(self.size), 1))
        for start in range(0, len(self.confidence), width):
            step = self._step(slice(start, start + width), count, errors, gap)
            count, errors, gap = step.count[:, -1:], step.errors[:, -1:], step.gap[:, -1:]
            yield step

    @cached_property
    def _only_step(self) -> Step:
        nothing = np.zeros((len(self.size), 1))
        return self._step(slice(None), nothing, nothing, nothing)

    def _step(self, part: slice, count: Floats, errors: Floats, gap: Floats) -> Step:
        confidence = self.confidence[part].astype(np.float64)
        size, wrong = (each[:, part].astype(np.float64, copy=False) for each in (self.size, self.wrong))
        surplus = size * confidence
        surplus -= size
        surplus += wrong
        running = [np.cumsum(each, axis=1) for each in (size, wrong, surplus)]
        if part.start:
            running = [sums + before for sums, before in zip(running, (count, errors, gap), strict=True)]
        return Step(confidence, size, wrong, *running)

    def places(self, limits: Floats, side: Any = "right") -> NDArray[np.int64]:
        """How many groups have a confidence at or below each limit, or below it with side "left"."""
        return np.searchsorted(self.confidence, limits.astype(self.confidence.dtype), side=side)

    def bins(self, edges: Floats) -> Bins:
        """Sums over the bins between `edges`, which must be numbers of the confidences' type."""
        inner = self.places(edges[1:-1])
        return self.sums(np.concatenate([[0], inner, [len(self.confidence)]]), edges)

    def sums(self, cuts: NDArray[np.int64], edges: Floats) -> Bins:
        """Sums over the groups from one cut to the next; the last cut is the number of groups."""
        used = np.flatnonzero(np.diff(cuts) > 0)

        def add(values: NDArray[Any]) -> Floats:
            sums = np.zeros((len(values), len(cuts) - 1))
            if len(used):
                sums[:, used] = np.add.reduceat(values, cuts[used], axis=1, dtype=np.float64)
            return sums

        bins = Bins(edges, add(self.size), add(self._confidence_sum), add(self._right))
        if self.square is None:
            return bins
        return replace(bins, square_sum=add(self.square))

    def equal_mass_cuts(self, n_bins: int, row: int = 0) -> NDArray[np.int64]:
        """Where bins of (almost) equal size begin and end, in groups: equal confidences stay together."""
        count = np.cumsum(self.size[row], dtype=np.float64)
        rows = round(count[-1])
        parts = min(n_bins, rows)
        ranks = np.cumsum(np.full(parts, rows // parts) + (np.arange(parts) < rows % parts))[:-1]
        if self.square is not None:
            ranks = ranks - 1e-9 * rows  # sums of weights are rounded
        inner = np.searchsorted(count, ranks, side="left") + 1
        last = len(count) - int(np.argmax(self.size[row, ::-1] > 0))
        return np.unique(np.concatenate([[0], inner[inner < last], [len(count)]]))

    def equal_mass(self, n_bins: int) -> Bins:
        """Sums over bins of (almost) equal size; a bin that a resample lacks has no rows."""
        if len(self.size) == 1:
            cuts = self.equal_mass_cuts(n_bins)
            inner = self.confidence[cuts[1:-1] - 1].astype(np.float64)
            return self.sums(cuts, np.concatenate([[0.0], inner, [1.0]]))
        sums = np.zeros((3, len(self.size), n_bins))
        for row in range(len(self.size)):
            starts = self.equal_mass_cuts(n_bins, row)[:-1]
            for place, values in enumerate((self.size, self._confidence_sum, self._right)):
                sums[place, row, : len(starts)] = np.add.reduceat(values[row], starts)
        return Bins(np.empty(0), *sums)

    def spread(self, cells: int) -> Floats:
        """Sums of (confidence - correct) on a grid on [0, 1], shape (resamples, cells).

        Each is shared by the two nearest centres of cells.
        """
        total = np.zeros((len(self.size), cells + 1))
        for step in self.steps():
            # The cell whose centre lies at or below each value, and how far the value is on the way to the next one.
            position = np.clip(step.confidence * cells - 0.5, 0.0, cells - 1.0)
            low = position.astype(np.int64)
            part = position - low
            used, starts = np.unique(low, return_index=True)
            residual = step.size * step.confidence - (step.size - step.wrong)
            upper = residual * part
            total[:, used] += np.add.reduceat(residual - upper, starts, axis=1)
            total[:, used + 1] += np.add.reduceat(upper, starts, axis=1)
        return total[:, :cells]

    def above(self, threshold: float) -> "Ranked":
        """The groups with a confidence of at least `threshold`, a number of the confidences' type."""
        start = int(self.places(np.asarray([threshold]), side="left")[0])
        inside = Ranked(self.confidence[start:], self.size[:, start:], self.wrong[:, start:])
        if self.square is not None:
            inside.square = self.square[:, start:]
        return inside


class Confidences:
    """What calibration errors and ranking metrics read, computed from ranked rows.

    A metric returns one value per resample; without resamples there is one.

    Args:
        ranked: The rows in order.
        n_bins: Bins of every binned metric.
        precision: Precision of the confidences; edges of bins and thresholds are rounded to it.
        low: Least confidence of these rows, if they are a high-confidence set.
        all_rows: Number of all rows, or the sum of their weights, if these are a part of them.
    """

    cells = _CELLS
    are_ranks = False

    def __init__(
        self, ranked: Ranked, n_bins: int, precision: Precision, *, low: float = 0.0, all_rows: Floats | None = None
    ) -> None:
        self.ranked, self.n_bins, self.precision, self.low = ranked, n_bins, precision, low
        self._all_rows = all_rows
        self._bins: dict[float, Bins] = {}

    def bins(self, low: float = 0.0) -> Bins:
        """Sums over equal-width bins on [low, 1]."""
        if self.are_ranks:
            hint = "Calibrate them first, for example with calibrate --method platt."
            message = "Calibration errors need confidences in 0..1, and these scores are only ranked."
            raise InvalidInput(f"{message} {hint}")
        if low not in self._bins:
            self._bins[low] = self._make_bins(bin_edges(self.n_bins, self.precision, low))
        return self._bins[low]

    def _make_bins(self, edges: Floats) -> Bins:
        return self.ranked.bins(edges)

    @cached_property
    def equal_mass(self) -> Bins:
        """Sums over bins of (almost) equal size; equal confidences stay together."""
        return self.ranked.equal_mass(self.n_bins)

    @cached_property
    def spread(self) -> Floats:
        """Sums of (confidence - correct) on a grid on [0, 1]."""
        return self.ranked.spread(self.cells)

    @property
    def rows(self) -> Floats:
        """Number of rows, or the sum of their weights."""
        return np.asarray(self.bins().count.sum(axis=-1), dtype=np.float64)

    @property
    def right(self) -> Floats:
        """Number of right rows, or the sum of their weights."""
        return np.asarray(self.bins().correct_sum.sum(axis=-1), dtype=np.float64)

    @property
    def all_rows(self) -> Floats:
        """The same as `rows` for all rows, if these are a high-confidence set."""
        if self._all_rows is None:
            return self.rows
        return self._all_rows

    def above(self, threshold: float) -> "Confidences":
        """The rows with a confidence of at least `threshold`."""
        limit = float(rounded(np.asarray([threshold]), self.precision)[0])
        ranked = self.ranked.above(limit)
        return Confidences(ranked, self.n_bins, self.precision, low=threshold, all_rows=self.all_rows)


class RowConfidences(Confidences):
    """The same for rows in any order, which are sorted only if a metric needs their order.

    `confidence` is the top probability of each row, `correct` whether its prediction is the target; without `weights`
    every row counts alike.
    """

    def __init__(
        self,
        confidence: NDArray[Any],
        correct: NDArray[np.bool_],
        n_bins: int,
        precision: Precision,
        weights: Floats | None = None,
    ) -> None:
        self.n_bins, self.precision, self.low, self._all_rows, self._bins = n_bins, precision, 0.0, None, {}
        self.confidence, self.correct, self.weights = confidence, correct, weights

    @cached_property
    def ranked(self) -> Ranked:  # type: ignore[override]
        """The rows in order."""
        return Ranked.of_rows(self.confidence, self.correct, self.weights)

    def only_ranked(self) -> "RowConfidences":
        """The same with ranks between 0 and 1 for confidences: scores of any scale, which are only ranked."""
        distinct, places = np.unique(self.confidence, return_inverse=True)
        ranks = (places + 1.0) / (len(distinct) + 1.0)
        ranked = RowConfidences(ranks, self.correct, self.n_bins, "float64", self.weights)
        ranked.are_ranks = True
        return ranked

    def _make_bins(self, edges: Floats) -> Bins:
        return sum_bins(self.confidence, self.correct, edges, self.weights)

    def above(self, threshold: float) -> "RowConfidences":
        """The rows with a confidence of at least `threshold`."""
        inside = self.confidence >= rounded(np.asarray([threshold]), self.precision)
        weights = None if self.weights is None else self.weights[inside]
        above = RowConfidences(self.confidence[inside], self.correct[inside], self.n_bins, self.precision, weights)
        above.low, above._all_rows = threshold, self.all_rows
        return above


def sort_keys(confidence: NDArray[Any], correct: NDArray[np.bool_]) -> NDArray[Any]:
    """Confidence and correctness of each row in one unsigned integer that sorts by confidence.

    The bits of numbers in [0, 1], seen as unsigned integers, are in the order of the numbers, and the highest two of
    them are 0. So the bits can move up by one, and the lowest bit holds the correctness. Sorting these integers in
    place needs no memory beyond them.
    """
    keys = np.ascontiguousarray(confidence).view(f"u{confidence.itemsize}") << 1
    keys |= correct
    return keys


def _starts(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Where groups of equal values begin."""
    return np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1])


class Order:
    """The order of rows by confidence, found once for many resamples of them."""

    def __init__(self, confidence: Floats, correct: NDArray[np.bool_]) -> None:
        self._order = np.argsort(confidence, kind="stable")
        ordered = confidence[self._order]
        self._starts = _starts(ordered)
        self._confidence = ordered[self._starts]
        self._wrong = (~correct[self._order]).astype(np.float64)

    def ranked(self, counts: Floats) -> Ranked:
        """Ranked rows for counts of shape (resamples, rows): how often each resample contains each row."""
        size = counts[:, self._order]
        wrong = size * self._wrong
        if len(self._starts) < len(self._order):
            size, wrong = (np.add.reduceat(each, self._starts, axis=1) for each in (size, wrong))
        return Ranked(self._confidence, size, wrong)
