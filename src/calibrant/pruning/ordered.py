"""Policies that compare a sample's last loss with those of a random pool, of all samples, or of its own batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import number, positive
from calibrant.errors import invalid
from calibrant.pruning.policies import Choice, Snapshot
from calibrant.pruning.resting import OnePool, above_floor
from calibrant.pruning.selection import Mask, descending, exact_fraction, lowest
from calibrant.pruning.table import LOSS_COLUMNS

_LEAST_ERROR = 1e-4
"""Smaller errors count as this, so that everyone can be drawn."""


@dataclass(frozen=True)
class OrderDP(OnePool):
    """Each epoch a random pool is drawn, and of the pool those with the largest last losses train (Jin et al. 2026).

    The pool has `s = floor(pool * n)` samples, of which `q = floor(top * s)` train, all with weight 1. Classes are not
    looked at, save that none falls below its floor.

    Args:
        pool: Part of all samples that is drawn, in (0, 1].
        top: Part of the pool that trains, in (0, 1).
        counted: Set by a budget: as many train as it allows, and `top` is not used.
    """

    pool: float = 0.8
    top: float = 0.75
    counted: bool = field(default=False, kw_only=True)
    free: ClassVar[str] = "top"
    carries: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = LOSS_COLUMNS

    def __post_init__(self) -> None:
        exact_fraction("top", self.top)
        if number("pool", self.pool) != 1:
            exact_fraction("pool", self.pool)

    def for_budget(self, leave: Fraction, sizes: Sequence[int]) -> Self:
        """A copy that trains on as many of the pool as asked; the pool must be large enough for them."""
        if sum(sizes) - floor(leave) > self._size(sum(sizes)):
            share = float(1 - leave / sum(sizes))
            raise invalid("pool", f"hold the {share:.3g} of all samples that train with this budget", self.pool)
        return replace(self, counted=True)

    def _size(self, samples: int) -> int:
        return int((1 if self.pool == 1 else exact_fraction("pool", self.pool)) * samples)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """The top of a random pool stays."""
        n = len(pool.targets)
        size = self._size(n)
        drawn = np.sort(torch.randperm(n, generator=pool.generator)[:size].numpy())
        train = n - sum(leave) if self.counted else int(exact_fraction("top", self.top) * size)
        keys = descending(pool.scores["loss"][drawn])
        rests = np.ones(n, dtype=np.bool_)
        rests[drawn] = ~lowest(keys, np.zeros(size, dtype=np.int64), [train])
        quota = above_floor(rests, pool, n_classes=len(leave))
        return Choice(~rests, quota=quota)


@dataclass(frozen=True)
class Selective(OnePool):
    """The larger its last loss, the likelier a sample trains (Selective-Backprop with stale losses, Jiang et al. 2019).

    Each epoch all but `floor(fraction * n)` of the `n` samples train, with weight 1. The one with the `k`-th smallest
    loss does so with probability `min(1, c * (k / n)**power)`, where `c` makes the sum of these the number that trains.
    With `by="error"` the error `1 - p` stands in place of the rank `k / n`, where `p` is the probability that the label
    got: the length of the gradient grows with it, so the preference follows what is left to learn. Classes are not
    looked at, save that none falls below its floor.

    Args:
        fraction: Part of all samples that rests, in (0, 1).
        power: How strongly large losses are preferred, above 0.
        by: "rank" or "error".
        counted: Set by a budget: as many rest as it asks for, and `fraction` is not used.
    """

    fraction: float = 0.4
    power: float = 1.0
    by: Literal["rank", "error"] = field(default="rank", kw_only=True)
    counted: bool = field(default=False, kw_only=True)
    free: ClassVar[str] = "fraction"
    carries: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = LOSS_COLUMNS

    def __post_init__(self) -> None:
        exact_fraction("fraction", self.fraction)
        positive("power", self.power)
        if self.by not in ("rank", "error"):
            raise invalid("by", "be 'rank' or 'error'", repr(self.by))

    def for_budget(self, leave: Fraction, sizes: Sequence[int]) -> Self:  # noqa: ARG002 (PruningPolicy's)
        """A copy that lets as many rest as asked."""
        return replace(self, counted=True)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw by the rank of the loss, ties by index, or by the error."""
        n = len(pool.targets)
        losses = pool.scores["loss"].astype(np.float64)
        if self.by == "error":
            size = np.maximum(-np.expm1(-losses), _LEAST_ERROR)
        else:
            size = np.empty(n)
            size[np.argsort(losses, kind="stable")] = np.arange(1, n + 1) / n
        out = sum(leave) if self.counted else int(exact_fraction("fraction", self.fraction) * n)
        chance = scaled_to(size**self.power, n - out)
        rests = ~systematic(chance, n - out, pool.generator)
        quota = above_floor(rests, pool, n_classes=len(leave))
        return Choice(~rests, quota=quota)


def scaled_to(chance: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """`min(1, c * chance)`, with the `c` for which the sum is `total`.

    >>> scaled_to(np.array([0.25, 0.5, 1.0]), 2).tolist()
    [0.3333333333333333, 0.6666666666666666, 1.0]
    """
    low = np.sort(chance)
    # If the k largest are 1, the others share total - k. The least k that leaves all of these at 1 or below is right.
    k = np.arange(total + 1)
    shared = np.concatenate([[0.0], np.cumsum(low)])[len(low) - k]
    largest = np.concatenate([[0.0], low])[len(low) - k]
    fits = np.flatnonzero((total - k) * largest <= shared)[0]
    return np.minimum(chance * ((total - fits) / shared[fits]), 1) if shared[fits] else np.ones_like(chance)


def systematic(chance: NDArray[np.float64], total: int, generator: torch.Generator) -> Mask:
    """Draw exactly `total` samples, each with its own chance; the chances sum to `total`.

    They are laid end to end in a random order, and a sample is drawn where a whole number plus one random offset falls
    into its stretch (systematic sampling). No stretch is longer than 1, so none is drawn twice.
    """
    order = torch.randperm(len(chance), generator=generator).numpy()
    offset = float(torch.rand((), generator=generator, dtype=torch.float64))
    ends = np.cumsum(chance[order])
    # The last end is `total` but for rounding, which must not lose or add a sample.
    passed = np.clip(np.floor(ends - offset) + 1, 0, total)
    passed[-1] = total
    drawn = np.zeros(len(chance), dtype=np.bool_)
    drawn[order] = np.diff(passed, prepend=0) > 0
    return drawn


@dataclass(frozen=True)
class RePB(OnePool):
    """A sample is compared with the batch in which it was just trained on (RePB, Zhou et al., ICLR 2026).

    Of the samples that trained in this epoch, those with a loss below the mean of their batch rest with probability
    `ratio`; of those that rested, each returns with probability `1 - ratio`. After `E` epochs a sample that trained in
    `N` of them weighs `E / N`. Classes are not looked at, save that none falls below its floor.

    Args:
        ratio: Probability to rest, in (0, 1).
    """

    ratio: float = 0.5
    within_batch: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = (*LOSS_COLUMNS, "count")

    def __post_init__(self) -> None:
        exact_fraction("ratio", self.ratio)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Compare within batches, bring some of the others back, and weigh by how often each was trained on."""
        assert pool.batches is not None
        trained = pool.batches >= 0
        loss, batch = pool.scores["loss"].astype(np.float64), pool.batches[trained]
        low = np.zeros(len(loss), dtype=np.bool_)
        mean = np.bincount(batch, weights=loss[trained]) / np.bincount(batch)
        low[trained] = loss[trained] < mean[batch]
        drawn = torch.rand(len(loss), generator=pool.generator, dtype=torch.float64).numpy()
        rests = np.where(trained, low, True) & (drawn < self.ratio)
        quota = above_floor(rests, pool, n_classes=len(leave))
        weights = pool.epoch / np.maximum(pool.scores["count"], 1)
        return Choice(~rests, np.where(rests, 0, weights).astype(np.float32), quota)
