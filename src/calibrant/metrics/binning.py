"""Bins of confidence: where their edges lie, who belongs to which, and the sums over each.

A confidence c belongs to the bin with lo < c <= hi; 0 belongs to the first bin, 1 to the last. Edges are the numbers
nearest to k/n in the precision of the scores, so that a float32 probability written as 0.3 meets the edge 0.3.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.checks import whole
from calibrant.display import ShownFields
from calibrant.predictions import Precision, Predictions, share

_Sums = TypeVar("_Sums", NDArray[np.float64], Tensor)
_FEW_EDGES = 100  # twice their number fits in a byte
_FEW_VALUES = 10_000
_SMALL_BATCH = 2**15
_SWEEP = 2**16  # rows binned at once: what they need stays in the processor's cache
_DTYPES: dict[Precision, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def check_bins(n_bins: int) -> int:
    """Refuse anything but a whole number of at least one."""
    return whole("n_bins", n_bins, 1)


def expected_error(gap_sums: _Sums, rows: Any) -> _Sums:
    """ECE from the sums of (confidence - correct) over each bin, which lie along the last axis."""
    error: _Sums = abs(gap_sums).sum(-1) / rows
    return error


def rounded(values: NDArray[np.float64], precision: Precision) -> NDArray[np.float64]:
    """The nearest numbers in some precision, as float64."""
    result: NDArray[np.float64] = torch.from_numpy(values).to(_DTYPES[precision]).to(torch.float64).numpy()
    return result


def edge_precision(predictions: Predictions) -> Precision:
    """Precision of the confidences: that of given probabilities; float64 where a softmax made them."""
    return predictions.precision if predictions.kind == "probabilities" else "float64"


@lru_cache(maxsize=64)
def bin_edges(n_bins: int, precision: Precision = "float64", low: float = 0.0) -> NDArray[np.float64]:
    """The n_bins + 1 edges of equal-width bins on [low, 1].

    k / n is one correctly rounded division; `linspace` multiplies and misses 0.3 and 0.6 of ten bins.
    """
    steps = np.arange(check_bins(n_bins) + 1) / n_bins
    edges = rounded(steps if low == 0.0 else low + (1.0 - low) * steps, precision)
    edges.flags.writeable = False  # shared by all who ask again
    return edges


def bin_index(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.int64]:
    """Number of the bin (lo, hi] of each value; values outside the edges go to the first or last bin."""
    index = _small_index(values, edges)
    return np.searchsorted(edges[1:-1], values, side="left") if index is None else index.astype(np.int64)


def _small_index(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.uint8] | None:
    """The same in bytes by counting the edges below, or None where that does not pay.

    A few vectorised sweeps: for many values seven times faster than searching each.
    """
    if len(edges) > _FEW_EDGES or len(values) < _FEW_VALUES:
        return None
    below: NDArray[np.uint8] = (values > edges[1:-1, None]).view(np.uint8).sum(axis=0, dtype=np.uint8)
    return below


@dataclass(frozen=True)
class Bins(ShownFields):
    """Sums over bins of confidence; what a reliability diagram shows.

    Attributes:
        edges: Shape (n_bins + 1,).
        count: Rows in each bin, int64.
        confidence_sum: Sum of their confidences, float64.
        correct_sum: How many of them are right, int64.
    """

    edges: NDArray[np.float64]
    count: NDArray[np.int64]
    confidence_sum: NDArray[np.float64]
    correct_sum: NDArray[np.int64]

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Mean confidence of each bin; NaN where it is empty."""
        return _divide(self.confidence_sum, self.count)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share of right predictions in each bin; NaN where it is empty."""
        return _divide(self.correct_sum, self.count)

    @property
    def gap(self) -> NDArray[np.float64]:
        """Mean confidence minus accuracy: positive where the model is overconfident; NaN where the bin is empty."""
        return _divide(self.confidence_sum - self.correct_sum, self.count)

    @property
    def expected_error(self) -> float:
        """ECE: mean over rows of the absolute gap of their bin."""
        return float(expected_error(self.confidence_sum - self.correct_sum, self.count.sum()))

    @property
    def maximum_error(self) -> float:
        """MCE: largest absolute gap of a bin that is not empty."""
        return float(np.nanmax(np.abs(self.gap)))


def _divide(sums: NDArray[np.generic], count: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        result: NDArray[np.float64] = np.asarray(sums, dtype=np.float64) / count
    return result


def sum_bins(confidence: NDArray[Any], correct: NDArray[np.bool_], edges: NDArray[np.float64]) -> Bins:
    """Sums over the bins that `edges` bound, in float64; the edges must be numbers of the confidences' type."""
    n_bins, own_edges = len(edges) - 1, edges.astype(confidence.dtype)
    parts = [slice(start, start + _SWEEP) for start in range(0, len(confidence), _SWEEP)]
    sums, counts = np.zeros((len(parts), 2 * n_bins)), np.zeros((len(parts), 2 * n_bins), dtype=np.int64)

    def one(part: slice) -> None:
        at, some = part.start // _SWEEP, confidence[part]
        index = _small_index(some, own_edges)
        both = bin_index(some, own_edges) if index is None else index
        both += both  # twice itself: a shift is slower
        both |= correct[part]  # wrong and right rows apart: one index for all sums
        both = both.astype(np.int64, copy=False)
        sums[at] = np.bincount(both, some, 2 * n_bins)
        counts[at] = np.bincount(both, minlength=2 * n_bins)

    share(one, parts)
    # Added in the order of the rows, whichever thread was first: the same bits on every run.
    wrong, right = counts.sum(axis=0).reshape(n_bins, 2).T
    return Bins(edges, wrong + right, sums.sum(axis=0).reshape(n_bins, 2).sum(axis=1), right)


def accumulate_bins(
    confidence: Tensor, correct: Tensor, n_bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over bins for one batch on its own device, with static shapes and no host synchronisation.

    It can be captured in a CUDA graph, and it gives the same bits on every run (no atomic additions).

    Args:
        confidence: Shape (n,), in [0, 1], any floating type.
        correct: Shape (n,), boolean.
        n_bins: Number of equal-width bins on [0, 1].
        weights: Shape (n,), float64; None for rows that all count alike.

    Returns:
        Counts (int64), sums of confidence (float64) and of correct (int64), each of shape (n_bins,); with weights all
        three are float64.
    """
    edges = device_edges(n_bins, confidence.dtype, confidence.device)
    wide = confidence.to(torch.float64)
    index = _device_index(wide, edges)
    add = _add_by_scatter if confidence.device.type == "cpu" else _add_by_product
    if weights is None:
        return add(index, torch.ones_like(index), wide, correct.to(torch.int64), n_bins)
    return add(index, weights, weights * wide, weights * correct, n_bins)


def _add_by_scatter(
    index: Tensor, count: Tensor, sums: Tensor, right: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    def added(values: Tensor) -> Tensor:
        return torch.zeros(n_bins, dtype=values.dtype).scatter_add_(0, index, values)

    return added(count), added(sums), added(right)


def _add_by_product(
    index: Tensor, count: Tensor, sums: Tensor, right: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    # A product with the membership matrix: on a GPU, scatter adds atomically, in an order that changes between runs.
    member = (index.unsqueeze(0) == torch.arange(n_bins, device=index.device).unsqueeze(1)).to(torch.float64)
    total = member @ torch.stack([each.to(torch.float64) for each in (count, sums, right)], dim=1)
    return total[:, 0].to(count.dtype), total[:, 1], total[:, 2].to(right.dtype)


def device_edges(n_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The inner edges k / n_bins, rounded to the type of the confidences, as float64 on their device."""
    steps = torch.arange(1, n_bins, dtype=torch.float64, device=device)
    # Divided by a tensor: division by a Python number becomes, on CUDA, a multiplication by a rounded inverse.
    return (steps / torch.full_like(steps, n_bins)).to(dtype).to(torch.float64)


def _device_index(values: Tensor, edges: Tensor) -> Tensor:
    if values.device.type == "cpu" and values.numel() * len(edges) <= _SMALL_BATCH:
        # bucketize wakes all threads even for a small batch, which costs more than the search.
        return (values > edges.unsqueeze(1)).sum(dim=0)
    return torch.bucketize(values, edges)
