"""Bins of confidence: their edges, which bin a value belongs to, and sums over bins.

A confidence c belongs to the bin with lo < c <= hi; 0 belongs to the first bin and 1 to the last. Edges are the numbers
nearest to k/n in the precision of the scores, so that a float32 probability written as 0.3 lies on the edge 0.3.
"""

from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import whole
from calibrant.predictions import Predictions
from calibrant.predictions.rows import Precision, map_in_threads
from calibrant.tables import ShownFields

Floats = NDArray[np.float64]
_FEW_EDGES = 100  # twice their number fits in a byte
_FEW_VALUES = 100
_SWEEP = 2**14  # rows binned at once: their temporary arrays stay in the processor's cache


def check_bins(n_bins: int) -> int:
    """Refuse anything but a whole number of at least one."""
    return whole("n_bins", n_bins, 1)


def rounded(values: Floats, precision: Precision) -> Floats:
    """The nearest numbers in some precision, as float64."""
    if precision != "bfloat16":
        return values.astype(precision).astype(np.float64)
    # bfloat16 is the upper half of a float32; ties go to the even number.
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def edge_precision(predictions: Predictions) -> Precision:
    """Precision of the confidences: that of given probabilities, or float64 if a softmax computed them."""
    if predictions.kind in ("probabilities", "confidence"):
        return predictions.precision
    return "float64"


@lru_cache(maxsize=64)
def bin_edges(n_bins: int, precision: Precision = "float64", low: float = 0.0) -> Floats:
    """The n_bins + 1 edges of equal-width bins on [low, 1].

    k / n is one correctly rounded division; `linspace` multiplies and misses 0.3 and 0.6 of ten bins.
    """
    steps = np.arange(check_bins(n_bins) + 1) / n_bins
    if low != 0.0:
        steps = low + (1.0 - low) * steps
    edges = rounded(steps, precision)
    edges.flags.writeable = False  # cached, so all callers share it
    return edges


def bin_index(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.int64]:
    """Number of the bin (lo, hi] of each value; values outside the edges go to the first or last bin."""
    index = _small_index(values, edges)
    if index is None:
        return np.searchsorted(edges[1:-1], values, side="left")
    return index.astype(np.int64)


def _small_index(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.uint8] | None:
    """The same in bytes, by counting the edges below each value; None if a search is faster.

    A few vectorised sweeps are three times as fast as a search of 1,000 values, and thirteen times as of 8,000.
    """
    if len(edges) > _FEW_EDGES or len(values) < _FEW_VALUES:
        return None
    above = values > edges[1:-1, None]
    index: NDArray[np.uint8] = np.add.reduce(above.view(np.uint8), axis=0, dtype=np.uint8)
    return index


@dataclass(frozen=True)
class Bins(ShownFields):
    """Sums over bins of confidence; what a reliability diagram shows.

    In resamples every sum has one more axis in front.

    Attributes:
        edges: Shape (n_bins + 1,).
        count: Rows in each bin, or the sum of their weights.
        confidence_sum: Sum of their confidences.
        correct_sum: Number of right rows, or the sum of their weights.
        square_sum: Sum of squared weights; None if every row counts alike.
    """

    edges: Floats
    count: NDArray[Any]
    confidence_sum: Floats
    correct_sum: NDArray[Any]
    square_sum: Floats | None = None

    @property
    def confidence(self) -> Floats:
        """Mean confidence of each bin; NaN if it is empty."""
        return _divide(self.confidence_sum, self.count)

    @property
    def accuracy(self) -> Floats:
        """Share of right predictions in each bin; NaN if it is empty."""
        return _divide(self.correct_sum, self.count)

    @property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy: positive if the model is overconfident, NaN if the bin is empty."""
        return _divide(self.confidence_sum - self.correct_sum, self.count)

    @property
    def expected_error(self) -> float:
        """ECE: mean over rows of the absolute gap of their bin."""
        return float(expected_errors(self))


def _divide(sums: NDArray[Any], count: NDArray[Any]) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.asarray(sums, dtype=np.float64) / count
    return result


def expected_errors(bins: Bins) -> Floats:
    """ECE of bins, which lie along the last axis; NaN without rows."""
    gaps = np.abs(bins.confidence_sum - bins.correct_sum).sum(axis=-1)
    return _divide(gaps, bins.count.sum(axis=-1))


def maximum_errors(bins: Bins) -> Floats:
    """MCE of bins, which lie along the last axis."""
    gaps = np.abs(bins.gap)
    return np.asarray(np.where(bins.count > 0, gaps, 0.0).max(axis=-1))


def debiased_errors(bins: Bins) -> Floats:
    """The debiased error of Kumar, Liang and Ma (2019) of bins, which lie along the last axis."""
    count = np.asarray(bins.count, dtype=np.float64)
    some = np.where(count > 0.0, count, 1.0)
    accuracy = np.asarray(bins.correct_sum, dtype=np.float64) / some
    effective = count
    if bins.square_sum is not None:
        # As many rows of equal weight would show the same variance.
        effective = count**2 / np.where(bins.square_sum > 0.0, bins.square_sum, 1.0)
    chance = accuracy * (1.0 - accuracy) / np.maximum(effective - 1.0, 1e-9)
    square = np.where(effective < 2.0 - 1e-9, 0.0, (bins.confidence_sum / some - accuracy) ** 2 - chance)
    total = (count * square).sum(axis=-1) / count.sum(axis=-1)
    return np.asarray(np.sqrt(np.maximum(total, 0.0)))


def sum_bins(
    confidence: NDArray[Any], correct: NDArray[np.bool_], edges: Floats, weights: Floats | None = None
) -> Bins:
    """Sums over the bins between `edges`, in float64; the edges must be numbers of the confidences' type."""

    def sums(part: slice) -> list[NDArray[Any]]:
        part_weights = None if weights is None else weights[part]
        return wrong_and_right_sums(confidence[part], correct[part], edges, part_weights)

    parts = [slice(start, start + _SWEEP) for start in range(0, max(len(confidence), 1), _SWEEP)]
    # Added in the order of the rows, whichever thread was first: the same bits on every run.
    of_parts = map_in_threads(sums, parts, 4 * len(confidence))
    totals: list[Any] = [reduce(np.add, terms) for terms in zip(*of_parts, strict=True)]
    count, confidence_sum, *square_sum = (total[::2] + total[1::2] for total in totals)
    return Bins(edges, count, confidence_sum, totals[0][1::2], *square_sum)


def wrong_and_right_sums(
    confidence: NDArray[Any], correct: NDArray[np.bool_], edges: Floats, weights: Floats | None = None
) -> list[NDArray[Any]]:
    """Counts and sums of confidence of each bin, with weights also sums of their squares.

    Wrong and right rows of a bin are apart, at 2 k and 2 k + 1 for bin k: one index serves all sums.
    """
    own_edges = edges.astype(confidence.dtype, copy=False)
    index: NDArray[Any] | None = _small_index(confidence, own_edges)
    if index is None:
        index = bin_index(confidence, own_edges)
    index += index  # twice itself: a shift is slower
    index |= correct
    index = index.astype(np.int64, copy=False)
    size = 2 * (len(edges) - 1)
    if weights is None:
        return [np.bincount(index, minlength=size), np.bincount(index, confidence, size)]
    terms = weights, weights * confidence, weights * weights
    return [np.bincount(index, term, size) for term in terms]
