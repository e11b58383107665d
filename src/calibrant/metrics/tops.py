"""Confidence and correctness of all rows: all that most metrics need, in as few bytes as hold them exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import Bins, edge_precision
from calibrant.predictions import Precision, Predictions, require_predictions

if TYPE_CHECKING:
    from calibrant.metrics.weighted import WeightedRows

Weights = str | Sequence[float] | NDArray[Any]
"""Importance weights: the name of an extra column, or one number per row."""
# Rows of a part of a pass: what it needs stays in the processor's cache, and in memory below a few megabytes.
BLOCK = 2**18


@dataclass(frozen=True)
class Tops:
    """The top prediction of every row, in the order of the rows.

    Attributes:
        confidence: Top probability; float32 where the scores were no wider, else float64.
        correct: Whether the prediction is the target.
        precision: Precision of the confidences, to which the edges of bins are rounded.
    """

    confidence: NDArray[Any]
    correct: NDArray[np.bool_]
    precision: Precision

    @classmethod
    def of(cls, predictions: Predictions) -> "Tops":
        """Those of predictions that are in memory."""
        require_predictions(predictions)
        return cls(predictions.confidence, predictions.correct, edge_precision(predictions))

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
        """Confidence in float64 and correctness, part by part."""
        for start in range(0, len(self.correct), BLOCK):
            part = slice(start, start + BLOCK)
            yield self.confidence[part].astype(np.float64, copy=False), self.correct[part]


class SortedTops:
    """The same in ascending order of confidence, from a single sort without row numbers.

    The bits of numbers in [0, 1], seen as unsigned integers, are in the order of the numbers, and the highest two of
    them are 0. So the bits can move up by one, which leaves room for the correctness: one integer per row holds both,
    and sorting these integers in place needs no memory but theirs.
    """

    def __init__(self, tops: Tops | NDArray[Any]) -> None:
        # Keys that `sort_keys` made, of all rows in any order, are sorted where they are.
        self._keys = sort_keys(tops.confidence, tops.correct) if isinstance(tops, Tops) else tops
        self._unsigned, self._float = self._keys.dtype, np.dtype(f"f{self._keys.itemsize}")
        self._keys.sort()

    def __len__(self) -> int:
        return len(self._keys)

    def confidence(self, at: Any) -> NDArray[np.float64]:
        """Confidences at some places of the order."""
        return np.asarray((self._keys[at] >> 1).view(self._float), dtype=np.float64)

    def places(self, limits: NDArray[np.float64]) -> NDArray[np.int64]:
        """How many rows have a confidence at or below each limit, which must be a number of the confidences' type."""
        keys = (limits.astype(self._float).view(self._unsigned) << 1) | 1
        return np.searchsorted(self._keys, keys, side="right")

    def bins(self, edges: NDArray[np.float64]) -> Bins:
        """Sums over the bins that `edges` bound."""
        return self.sums(edges, np.concatenate([[0], self.places(edges[1:-1]), [len(self)]]))

    def sums(self, edges: NDArray[np.float64], cuts: NDArray[np.int64]) -> Bins:
        """Sums over the places from one cut to the next."""
        confidence_sum, correct_sum = np.zeros(len(cuts) - 1), np.zeros(len(cuts) - 1, dtype=np.int64)
        for index in range(len(cuts) - 1):
            for start in range(cuts[index], cuts[index + 1], BLOCK):
                part = slice(start, min(start + BLOCK, cuts[index + 1]))
                confidence_sum[index] += self.confidence(part).sum()
                correct_sum[index] += np.count_nonzero(self._keys[part] & 1)
        return Bins(edges, np.diff(cuts), confidence_sum, correct_sum)

    def equal_mass_edges(self, n_bins: int, start: int = 0) -> NDArray[np.float64]:
        """Edges of bins of (almost) equal size from a place on; equal confidences are never torn apart.

        An edge lies on the last value of the lower bin: with bins (lo, hi] that is the same membership as an edge
        anywhere below the next larger value. Edges that coincide merge their bins.
        """
        rows = len(self) - start
        parts = min(n_bins, rows)
        sizes = np.full(parts, rows // parts)
        sizes[: rows % parts] += 1
        cuts = np.unique(self.confidence(start + np.cumsum(sizes)[:-1] - 1))
        return np.concatenate([[0.0], cuts[cuts < self.confidence([-1])], [1.0]])

    def equal_mass_bins(self, n_bins: int) -> Bins:
        """Sums over bins of (almost) equal size."""
        return self.bins(self.equal_mass_edges(n_bins))

    def groups(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]]:
        """Groups of equal confidence, part by part: their confidence, their rows and how many of these are wrong."""
        start = 0
        while start < len(self):
            # A part ends where the next group begins, so that none is torn apart.
            last = self._keys[min(start + BLOCK, len(self)) - 1 : min(start + BLOCK, len(self))]
            stop = int(np.searchsorted(self._keys, last | 1, side="right")[0])
            keys = self._keys[start:stop]
            first = np.flatnonzero(np.concatenate([[True], (keys[1:] ^ keys[:-1]) > 1]))
            size = np.diff(first, append=len(keys))
            wrong = size - np.add.reduceat(keys & 1, first, dtype=np.int64)
            yield self.confidence(slice(start, stop))[first], size, wrong
            start = stop


def sort_keys(confidence: NDArray[Any], correct: NDArray[np.bool_]) -> NDArray[Any]:
    """Confidence and correctness of each row in one unsigned integer."""
    keys = confidence.view(f"u{confidence.itemsize}") << 1
    keys |= correct
    return keys


def weighted_rows(predictions: Predictions, weights: Weights) -> "WeightedRows":
    """The rows with a weight each; see `calibrant.metrics.weighted`, which needs the files that call this."""
    from calibrant.metrics.weighted import WeightedRows, check_weights

    return WeightedRows(predictions, check_weights(predictions, weights))
