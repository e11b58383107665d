"""Policies that let a random part of the samples that qualify rest for one epoch, with all classes in one pool."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import number
from calibrant.errors import invalid
from calibrant.pruning.policies import Choice, PruningPolicy, Snapshot
from calibrant.pruning.selection import Mask, Quota, exact_fraction, lowest
from calibrant.pruning.table import LOSS_COLUMNS
from calibrant.pruning.weighing import Weighting, check_weighting, weigh

_MOST = 0.9
"""Under a budget at most this part of those that qualify rests, so that no weight exceeds 10."""


class OnePool(PruningPolicy):
    """Base of policies that draw anew each epoch, all classes in one pool; how many rest follows from the scores."""

    redraws: ClassVar[bool] = True
    known_ahead: ClassVar[bool] = False

    def quota(self, sizes: Sequence[int], minimum: int) -> Quota:
        """The most that may rest: all down to the class floor."""
        most = [max(size - minimum, 0) for size in sizes]
        return Quota(most, most)


@dataclass(frozen=True)
class Resting(OnePool):
    """Each epoch a random part of the samples that qualify rests; the others of them make up for it by their weight.

    A subclass says which samples qualify. Classes are not looked at, save that none falls below its floor. Each sample
    that qualifies rests with probability `ratio`, and those that stay weigh `1 / (1 - ratio)`. Under a budget as many
    rest as it asks for: `r` of the `m` that qualify, and those that stay weigh `m / (m - r)`. At most nine tenths of
    the `m` do; what is missing rests in later epochs. In both cases the expected weight of every sample is 1.

    Args:
        ratio: Probability to rest, in (0, 1).
        weights: "full" as above; "mean" the same, scaled so that the weights of an epoch have the mean 1; "none": 1.
        counted: Set by a budget: as many rest as asked, and `ratio` is not used.
    """

    ratio: float = 0.5
    weights: Weighting = field(default="full", kw_only=True)
    counted: bool = field(default=False, kw_only=True)
    free: ClassVar[str] = "ratio"
    carries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        exact_fraction("ratio", self.ratio)
        check_weighting(self.weights)

    def most(self, sizes: Sequence[int], minimum: int) -> list[int]:
        """Nine tenths of each class, limited by the class floor."""
        return [max(min(int(_MOST * size), size - minimum), 0) for size in sizes]

    def for_budget(self, leave: Fraction, sizes: Sequence[int]) -> Self:  # noqa: ARG002 (PruningPolicy's)
        """A copy that lets as many rest as asked."""
        return replace(self, counted=True)

    @abstractmethod
    def qualify(self, scores: Mapping[str, NDArray[np.float32]]) -> Mask:
        """Which samples may rest."""

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw among those that qualify, and give the others of these more weight."""
        may = self.qualify(pool.scores)
        order = torch.rand(len(may), generator=pool.generator, dtype=torch.float64).numpy()
        count = int(may.sum())
        asked = min(sum(leave), int(_MOST * count))
        rests = _first(may, order, asked) if self.counted else may & (order < self.ratio)
        quota = above_floor(rests, pool, n_classes=len(leave))
        weight = count / max(count - int(rests.sum()), 1) if self.counted else 1 / (1 - self.ratio)
        weights = np.where(rests, 0, np.where(may, weight, 1)).astype(np.float32)
        return Choice(~rests, weigh(weights, self.weights), quota)


def above_floor(rests: Mask, pool: Snapshot, *, n_classes: int) -> Quota:
    """Take random ones back, in place, where a class would get smaller than its floor."""
    wanted = np.bincount(pool.targets[rests], minlength=n_classes)
    sizes = np.bincount(pool.targets, minlength=n_classes)
    allowed = np.minimum(wanted, np.maximum(sizes - pool.floor, 0))
    keys = torch.randperm(int(rests.sum()), generator=pool.generator).numpy().astype(np.uint64)
    rests[rests] = lowest(keys, pool.targets[rests], allowed)
    return Quota(allowed.tolist(), wanted.tolist())


def _first(may: Mask, order: NDArray[np.float64], number: int) -> Mask:
    """Those `number` of the samples that may, which come first in the order; ties by index."""
    rests = np.zeros_like(may)
    candidates = np.flatnonzero(may)
    rests[candidates[np.argsort(order[candidates], kind="stable")[:number]]] = True
    return rests


@dataclass(frozen=True)
class InfoBatch(Resting):
    """Samples whose last loss lies below the mean of all last losses qualify (InfoBatch, Qin et al. 2024).

    The loss is the negative log-probability of the label when the sample was last trained on. A sample that was never
    observed counts with 3, as in the authors' code. Their last eighth of the epochs on all data is the pruner's
    `anneal=0.125`.
    """

    columns: ClassVar[tuple[str, ...]] = LOSS_COLUMNS

    def qualify(self, scores: Mapping[str, NDArray[np.float32]]) -> Mask:
        """The loss is below the mean."""
        loss = scores["loss"].astype(np.float64)
        below: Mask = loss < loss.mean()
        return below


@dataclass(frozen=True)
class EasyHard(Resting):
    """Samples that are learned, or stay hopeless, qualify: by a threshold, so that their share follows the learning.

    The score is the EMA of the label's probability, corrected for its zero start.

    Args:
        easy: A score of at least this qualifies, in (0, 1].
        hard: A score of at most this qualifies too, in [0, 1); 0 turns it off.
    """

    easy: float = field(default=0.9, kw_only=True)
    hard: float = field(default=0.0, kw_only=True)
    columns: ClassVar[tuple[str, ...]] = ("label",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= number("hard", self.hard) < number("easy", self.easy) <= 1:
            raise invalid("easy and hard", "satisfy 0 <= hard < easy <= 1", f"{self.easy} and {self.hard}")

    def qualify(self, scores: Mapping[str, NDArray[np.float32]]) -> Mask:
        """The label's average probability is high, or very low."""
        label = scores["label"]
        marked: Mask = label >= self.easy
        return marked | (label <= self.hard) if self.hard else marked
