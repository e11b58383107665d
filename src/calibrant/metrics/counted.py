"""Confidences of any number of rows in bounded memory: how often each float32 value occurs among right and wrong rows.

Between 1/K and 1 there are 8.4 million float32 numbers for each doubling: 28 million for ten classes, 84 million for a
thousand. So a count of each is exact for confidences that are float32, and a very fine histogram for others, whose
errors can be stated.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binning import Bins
from calibrant.metrics.errors import debiased_error
from calibrant.metrics.tops import BLOCK, SortedTops, sort_keys

# Half the distance of float32 numbers between 1/2 and 1.
_HALF_STEP = 2.0**-25
_ONE = int(sort_keys(np.ones(1, np.float32), np.ones(1, np.bool_))[0])


def count_keys(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Distinct keys of some rows, their confidences rounded to float32, and how many rows have each."""
    keys, counts = np.unique(sort_keys(confidence.astype(np.float32), correct), return_counts=True)
    return keys, counts.astype(np.uint32)


class KeyCounts:
    """Counts of all keys that are possible with so many classes.

    Args:
        n_classes: Number of classes K; no confidence is below 1/K, but for the tolerance of sums.
        rows: Number of rows to come.
    """

    def __init__(self, n_classes: int, rows: int) -> None:
        self._low = int(sort_keys(np.asarray([0.99 / n_classes], np.float32), np.zeros(1, np.bool_))[0])
        self._counts = np.zeros(_ONE - self._low + 1, np.uint32 if rows < 2**32 else np.uint64)

    def add(self, keys: NDArray[np.uint32], counts: NDArray[np.uint32]) -> None:
        """Add the distinct keys of a part."""
        self._counts[keys - np.uint32(self._low)] += counts

    def tops(self) -> "CountedTops":
        """The rows in the order of their confidence."""
        pairs = self._counts.reshape(-1, 2)  # a value's wrong rows, then its right ones
        there = np.flatnonzero(pairs.any(axis=1))
        values = (there.astype(np.uint32) + np.uint32(self._low >> 1)).view(np.float32)
        wrong, right = pairs[there].T.astype(np.int64)
        return CountedTops(values, wrong + right, wrong)


class CountedTops(SortedTops):
    """What `SortedTops` says about rows, from counts of equal confidences.

    Args:
        confidence: Distinct values in ascending order.
        size: Rows of each.
        wrong: How many of them are wrong.
    """

    def __init__(self, confidence: NDArray[np.float32], size: NDArray[np.int64], wrong: NDArray[np.int64]) -> None:
        self._values, self._size, self._wrong = confidence, size, wrong
        self._ends = np.cumsum(size)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def confidence(self, at: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """Confidences at some places of the order."""
        places = np.arange(len(self))[at] if isinstance(at, slice) else np.asarray(at) % len(self)
        return self._values[np.searchsorted(self._ends, places, side="right")].astype(np.float64)

    def places(self, limits: NDArray[np.float64]) -> NDArray[np.int64]:
        """How many rows have a confidence at or below each limit."""
        index = np.searchsorted(self._values, limits.astype(np.float32), side="right")
        return np.concatenate([[0], self._ends])[index]

    def sums(self, edges: NDArray[np.float64], cuts: NDArray[np.int64]) -> Bins:
        """Sums over the places from one cut to the next; no cut divides equal confidences."""
        places = np.searchsorted(self._ends, cuts[:-1], side="right")
        confidence_sum, correct_sum = np.zeros(len(places)), np.zeros(len(places), np.int64)
        for number, (start, stop) in enumerate(zip(places, [*places[1:], len(self._values)], strict=True)):
            size = self._size[start:stop]
            confidence_sum[number] = (self._values[start:stop].astype(np.float64) * size).sum()
            correct_sum[number] = (size - self._wrong[start:stop]).sum()
        return Bins(edges, np.diff(cuts), confidence_sum, correct_sum)

    def groups(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]]:
        """Groups of equal confidence, part by part: their confidence, their rows and how many of these are wrong."""
        for start in range(0, len(self._values), BLOCK):
            part = slice(start, start + BLOCK)
            yield self._values[part].astype(np.float64), self._size[part], self._wrong[part]

    def rounding(self, n_bins: int) -> dict[str, float]:
        """Largest errors of metrics where rows of one float32 value had different confidences.

        A confidence is off by up to 3e-8. In which order the rows of one value stand is not known: for the AUROC that
        concerns its pairs of a right and a wrong row; for the AURC, among the first j of m rows with e errors there may
        be e (m - e) / m errors more or fewer than j e / m; the largest sum of the KS error may lie inside a value; and
        at each edge between bins of equal mass the rows of one value may belong to the bin on the other side.
        """
        rows, wrong = len(self), int(self._wrong.sum())
        mixed = (self._size - self._wrong) * self._wrong
        pairs, above = wrong * (rows - wrong), rows - self._ends
        # Above the harmonic numbers between `above` and `above + size`.
        steps = np.where(above > 0, self._size / np.maximum(above, 1), 1.0 + np.log(self._size))
        crowd = float(self._size.max()) / rows
        moved = 2 * (n_bins - 1) * crowd + _HALF_STEP
        debiased = max(float(debiased_error(self.equal_mass_bins(n_bins))), np.sqrt(4 * moved))
        return {
            "auroc": float(mixed.sum()) / (2 * pairs) if pairs else 0.0,
            "aurc": float((mixed / self._size * steps).sum()) / rows,
            "ks": crowd + _HALF_STEP,
            "ece_equal_mass": moved,
            "debiased_ece": 4 * moved / debiased,
        }
