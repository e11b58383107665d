"""Sums over bins of confidence for one batch on its own device, for meters and captured training steps."""

from functools import lru_cache

import torch
from torch import Tensor

# Comparisons of a batch with all edges: up to so many, they cost less than waking the threads of a search.
_SMALL_BATCH = 2**15


def accumulate_bins(
    confidence: Tensor, correct: Tensor, n_bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over bins for one batch on its own device, with static shapes and no host synchronisation.

    It can be captured in a CUDA graph, and it returns the same bits on every run (no atomic additions).

    Args:
        confidence: Shape (n,), in [0, 1], any floating type.
        correct: Shape (n,), boolean.
        n_bins: Number of equal-width bins on [0, 1].
        weights: Shape (n,), float64; None if every row counts alike.

    Returns:
        Counts (int64), sums of confidence (float64) and of correct (int64), each of shape (n_bins,); with weights all
        three are float64.
    """
    # Cached on the CPU alone: memory of a captured CUDA graph must not outlive it.
    make_edges = _host_edges if confidence.device.type == "cpu" else device_edges
    edges = make_edges(n_bins, confidence.dtype, confidence.device)
    wide = confidence.to(torch.float64)
    index = _bin_index(wide, edges)
    if weights is None and confidence.device.type == "cpu":
        # Wrong and right rows apart: one count serves both.
        counts = torch.bincount(2 * index + correct, minlength=2 * n_bins).view(n_bins, 2)
        return counts.sum(dim=1), torch.bincount(index, wide, n_bins), counts[:, 1]
    if weights is None:
        terms = torch.ones_like(index), wide, correct.to(torch.int64)
    else:
        terms = weights, weights * wide, weights * correct
    # On a GPU, bincount adds atomically, in an order that changes between runs.
    add = add_by_count if confidence.device.type == "cpu" else add_by_product
    return add(index, *terms, n_bins)


def add_by_count(
    index: Tensor, count: Tensor, sums: Tensor, right: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the values of each bin one after the other, on the CPU; unlike scatter, this wakes no threads."""

    def added(values: Tensor) -> Tensor:
        return torch.bincount(index, values, n_bins).to(values.dtype)

    return added(count), added(sums), added(right)


def add_by_product(
    index: Tensor, count: Tensor, sums: Tensor, right: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by a product with the membership matrix."""
    member = (index.unsqueeze(0) == torch.arange(n_bins, device=index.device).unsqueeze(1)).to(torch.float64)
    total = member @ torch.stack([values.to(torch.float64) for values in (count, sums, right)], dim=1)
    return total[:, 0].to(count.dtype), total[:, 1], total[:, 2].to(right.dtype)


def device_edges(n_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The inner edges k / n_bins, rounded to the type of the confidences, as float64 on their device."""
    steps = torch.arange(1, n_bins, dtype=torch.float64, device=device)
    # Divided by a tensor: division by a Python number becomes, on CUDA, a multiplication by a rounded inverse.
    return (steps / torch.full_like(steps, n_bins)).to(dtype).to(torch.float64)


_host_edges = lru_cache(maxsize=64)(device_edges)


def _bin_index(values: Tensor, edges: Tensor) -> Tensor:
    if values.device.type == "cpu" and values.numel() * len(edges) <= _SMALL_BATCH:
        return (values > edges.unsqueeze(1)).sum(dim=0)
    return torch.bucketize(values, edges)
