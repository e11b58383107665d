"""Policies choose the samples that leave, from their scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import number, positive
from calibrant.errors import invalid
from calibrant.pruning.quotas import Keys, Mask, exact_fraction, lowest, share_of

Scores = Mapping[str, NDArray[np.float32]]
Weighting = Literal["full", "mean", "none"]
"""How the samples that stay make up for those that rest.

`full`: every sample's expected weight is 1. `mean`: the same, scaled so that the weights of an epoch have the mean 1,
as if the learning rate were multiplied by kept / n. `none`: all weights are 1.
"""
_MOST = Fraction(9, 10)
"""Under a budget at most this part of the samples that qualify rests, so that no weight exceeds 10. With a weight of 21
a network learned nothing."""
_LEAST_ERROR = 1e-4
"""Smaller errors count as this, so that every sample can be drawn."""


@dataclass(frozen=True)
class Snapshot:
    """What a policy sees when it acts. Rows are samples of the pool, in ascending order of their index."""

    targets: NDArray[np.integer]
    scores: Scores
    generator: torch.Generator  # gives the same draw on every rank and after a resume
    batches: NDArray[np.int64] | None = None  # of each sample in the last epoch, for policies with `within_batch`
    asked: int | None = None  # how many must rest under a budget; None: the policy has its own rate


@dataclass(frozen=True)
class Choice:
    """Which samples of the pool train next."""

    stay: Mask
    weights: NDArray[np.float32] | None = None  # 0 for samples that rest; None: all weights are 1
    wanted: Sequence[int] | None = None  # how many of each class had left without the class floor, if scores decide it


class PruningPolicy(ABC):
    """Base of all policies; subclass it for your own.

    `quota` says from the class sizes alone how many samples should leave, so that the number of steps is known ahead.
    The pruner lowers these numbers where a class would get smaller than `minimum_per_class`. `choose` then names the
    samples, and must remove exactly the requested number.
    """

    redraws: ClassVar[bool] = False
    """True: acts after every epoch, and all samples are in the pool. False: acts when the schedule is due."""
    columns: ClassVar[tuple[str, ...]] = ("confidence",)
    """Columns of the score table that it reads. Empty: the choice does not depend on what was observed."""
    within_batch: bool = False
    """Whether the policy acts inside minibatches: then the pool says which of them each sample was in."""
    free: ClassVar[str] = ""
    """The field that a budget replaces: `choose` then lets as many samples leave as the pruner asks for, split over the
    classes in proportion to `most`. Empty: the policy has its own rate, and a budget is refused."""

    @property
    def from_all(self) -> bool:
        """Whether the pool is the full set (re-admission). Otherwise it is what is kept now (cumulative)."""
        return self.redraws

    @property
    def known_ahead(self) -> bool:
        """Whether `quota` says how many leave. If not, it says how many may, and scores decide."""
        return True

    @abstractmethod
    def quota(self, sizes: Sequence[int]) -> list[int]:
        """Return how many samples of each class should leave a pool with these class sizes."""

    @abstractmethod
    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Return which samples stay when `leave[k]` samples of class `k` leave; at most that many if scores decide."""

    def most(self, sizes: Sequence[int]) -> list[int]:
        """Return the most samples of each class that may leave a pool of these sizes under a budget."""
        return list(sizes)

    def __repr__(self) -> str:
        # Part of the saved settings, so without a memory address; dataclasses bring their own.
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


# Cuts: samples leave for good, class by class.


@dataclass(frozen=True)
class _ByFraction(PruningPolicy):
    """Some `floor(fraction * n_k)` of each class `k` leave."""

    fraction: float

    def __post_init__(self) -> None:
        exact_fraction("fraction", self.fraction)

    def quota(self, sizes: Sequence[int]) -> list[int]:
        """Return `floor(fraction * n_k)` of each class."""
        return share_of(sizes, exact_fraction("fraction", self.fraction))


@dataclass(frozen=True)
class LowestConfidence(_ByFraction):
    """The paper's `PruneUsingEMA`: class by class, the lowest `fraction` of what remains leaves (Procedure 1).

    Args:
        fraction: Share of each class that leaves at each cut, in (0, 1); the number is rounded down.
        within: "dataset" follows Procedure 1. "batch" is the reading of the paper's remark on batch sizes: the lowest
            `floor(fraction * n_kb)` of class `k` inside each minibatch `b` of the last epoch leave. The number that
            leaves is then not known ahead, and the pruner needs `batch_size`.
        readmit: False is the pseudo-code: what left stays out. True selects anew from the full set at each cut; the
            pruner's `step` then scores the samples that rest.

    >>> LowestConfidence(0.1).quota([50, 9])
    [5, 0]
    """

    readmit: bool = field(default=False, kw_only=True)
    within: Literal["dataset", "batch"] = field(default="dataset", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within not in ("dataset", "batch"):
            raise invalid("within", "be 'dataset' or 'batch'", repr(self.within))
        if self.within == "batch" and self.readmit:
            raise invalid("readmit", "be False with within='batch'", True, "A sample that rests is in no minibatch.")

    @property
    def from_all(self) -> bool:
        """Whether samples that left compete again at each cut."""
        return self.readmit

    @property
    def within_batch(self) -> bool:  # type: ignore[override]  # it follows from a field
        """Whether the cut is made inside each minibatch."""
        return self.within == "batch"

    @property
    def known_ahead(self) -> bool:
        """Whether the number that leaves follows from the class sizes."""
        return not self.within_batch

    def quota(self, sizes: Sequence[int]) -> list[int]:
        """Return `floor(fraction * n_k)` of each class; inside minibatches all may leave."""
        if self.within_batch:
            return list(sizes)
        return super().quota(sizes)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Procedure 1, or its minibatch reading; ties by index."""
        keys = pool.scores["confidence"]
        if pool.batches is None:
            return Choice(~lowest(keys, pool.targets, leave))
        _, groups = np.unique(pool.batches * len(leave) + pool.targets, return_inverse=True)
        share = exact_fraction("fraction", self.fraction)
        out = lowest(keys, groups, share_of(np.bincount(groups).tolist(), share))
        # The class floor holds for the whole class: if the minibatches together took too many, the highest return.
        wanted = np.bincount(pool.targets[out], minlength=len(leave))
        allowed = np.minimum(wanted, leave)
        out[out] = lowest(keys[out], pool.targets[out], allowed)
        return Choice(~out, wanted=wanted.tolist())


@dataclass(frozen=True)
class HighestConfidence(_ByFraction):
    """The opposite of the paper, as a control: the most confident `fraction` of each class leaves.

    Args:
        fraction: Share of each class that leaves at each cut.
    """

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Remove the highest confidences of each class; ties by index."""
        return Choice(~lowest(-pool.scores["confidence"], pool.targets, leave))


# Draws by class: samples rest for one epoch.


@dataclass(frozen=True)
class RandomSubset(_ByFraction):
    """Each epoch, a random `floor(fraction * n_k)` of each class rests; drawn anew every epoch. All weights are 1.

    Args:
        fraction: Share of each class that rests, in (0, 1).
    """

    redraws: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[str] = "fraction"

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Let a uniformly random set of the given size rest in each class."""
        return Choice(~lowest(_random_keys(len(pool.targets), pool.generator), pool.targets, leave))


@dataclass(frozen=True)
class Unbiased(PruningPolicy):
    """Each epoch a random part of the well-learned samples rests, and the rest of them weigh more.

    Well learned are the `m = floor(share * n_k)` samples of class `k` with the highest EMA confidence. Exactly
    `r = floor(drop * m)` of these, drawn at random, rest this epoch; those that stay weigh `m / (m - r)`. So each
    sample's expected weight is 1, and the gradients of an epoch add up, in expectation, to those of all data. There are
    fewer steps, each with a mean gradient `n / kept` times as large: what is not weighted (a calibration term, weight
    decay) acts in fewer steps without that factor. Use the weights in the classification loss only.

    Args:
        share: Part of each class that counts as well learned, in (0, 1].
        drop: Part of the well-learned that rests each epoch, in (0, 1).
        weights: See `Weighting`.

    >>> Unbiased(share=0.5, drop=0.5).quota([40])
    [10]
    """

    share: float = 0.5
    drop: float = 0.5
    weights: Weighting = field(default="full", kw_only=True)
    redraws: ClassVar[bool] = True
    free: ClassVar[str] = "drop"

    def __post_init__(self) -> None:
        _check_weighting(self.weights)
        exact_fraction("drop", self.drop)
        exact_fraction("share", self.share, or_one=True)

    def _well_learned(self, sizes: Sequence[int]) -> list[int]:
        return share_of(sizes, exact_fraction("share", self.share, or_one=True))

    def quota(self, sizes: Sequence[int]) -> list[int]:
        """Return `floor(drop * floor(share * n_k))` of each class."""
        return share_of(self._well_learned(sizes), exact_fraction("drop", self.drop))

    def most(self, sizes: Sequence[int]) -> list[int]:
        """Return nine tenths of the well-learned."""
        return share_of(self._well_learned(sizes), _MOST)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw the samples that rest among the well-learned of each class, and give the others of these more weight."""
        sizes = np.bincount(pool.targets, minlength=len(leave))
        learned = np.asarray(self._well_learned(sizes.tolist()))
        top = np.flatnonzero(lowest(-pool.scores["confidence"], pool.targets, learned))
        classes = pool.targets[top]
        rests = lowest(_random_keys(len(top), pool.generator), classes, leave)
        weight = (learned / np.maximum(learned - np.asarray(leave), 1)).astype(np.float32)
        weights = np.ones(len(pool.targets), dtype=np.float32)
        weights[top] = np.where(rests, 0, weight[classes])
        return Choice(weights > 0, _weigh(weights, self.weights))


# Draws from one pool: samples rest for one epoch, all classes together, and scores decide how many.


class OnePool(PruningPolicy):
    """Base of policies that draw anew each epoch from all classes together, down to the class floor."""

    redraws: ClassVar[bool] = True
    known_ahead: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("loss",)

    def quota(self, sizes: Sequence[int]) -> list[int]:
        """All may rest."""
        return list(sizes)


@dataclass(frozen=True)
class InfoBatch(OnePool):
    """Samples whose last loss lies below the mean of all last losses may rest (InfoBatch, Qin et al. 2024).

    The loss is the negative log-probability of the label when the sample was last trained on. A sample that was never
    observed counts with 3, as in the authors' code. Their last eighth of the epochs on all data is the pruner's
    `anneal=0.125`.

    Each sample below the mean rests with probability `ratio`, and those that stay weigh `1 / (1 - ratio)`. Under a
    budget as many rest as it asks for: `r` of the `m` below the mean, and those that stay weigh `m / (m - r)`. At most
    nine tenths of the `m` do; the others rest in later epochs. In both cases the expected weight of every sample is 1.

    Args:
        ratio: Probability to rest, in (0, 1). Not used under a budget.
        weights: See `Weighting`.
    """

    ratio: float = 0.5
    weights: Weighting = field(default="full", kw_only=True)
    free: ClassVar[str] = "ratio"

    def __post_init__(self) -> None:
        exact_fraction("ratio", self.ratio)
        _check_weighting(self.weights)

    def most(self, sizes: Sequence[int]) -> list[int]:
        """Return nine tenths of each class."""
        return share_of(sizes, _MOST)

    def qualify(self, scores: Scores) -> Mask:
        """Return which samples may rest: those below the mean."""
        loss = scores["loss"].astype(np.float64)
        below: Mask = loss < loss.mean()
        return below

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw among those that may rest, and give the others of these more weight."""
        may = self.qualify(pool.scores)
        order = torch.rand(len(may), generator=pool.generator, dtype=torch.float64).numpy()
        count = int(may.sum())
        if pool.asked is None:
            rests = may & (order < self.ratio)
        else:
            rests = lowest(order, (~may).astype(np.int64), [min(pool.asked, int(_MOST * count)), 0])
        choice = _choice(rests, pool, leave)
        weight = 1 / (1 - self.ratio)
        if pool.asked is not None:
            weight = count / max(int((may & choice.stay).sum()), 1)
        weights = np.where(choice.stay, np.where(may, weight, 1), 0).astype(np.float32)
        return replace(choice, weights=_weigh(weights, self.weights))


@dataclass(frozen=True)
class EasyHard(InfoBatch):
    """As `InfoBatch`, but samples that are learned, or stay hopeless, may rest: their share follows the learning.

    Thresholds decide, on the EMA of the label's probability, corrected for its zero start.

    Args:
        ratio: Probability to rest, in (0, 1). Not used under a budget.
        weights: See `Weighting`.
        easy: Samples with an average of at least this may rest, in (0, 1].
        hard: So may those with an average of at most this, in [0, 1); 0 turns it off.
    """

    easy: float = field(default=0.9, kw_only=True)
    hard: float = field(default=0.0, kw_only=True)
    columns: ClassVar[tuple[str, ...]] = ("label",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= number("hard", self.hard) < number("easy", self.easy) <= 1:
            raise invalid("easy and hard", "satisfy 0 <= hard < easy <= 1", f"{self.easy} and {self.hard}")

    def qualify(self, scores: Scores) -> Mask:
        """Return which samples may rest: those with a high or a very low average."""
        label = scores["label"]
        marked: Mask = label >= self.easy
        if self.hard:
            marked |= label <= self.hard
        return marked


@dataclass(frozen=True)
class OrderDP(OnePool):
    """Each epoch a random pool is drawn, and the samples of it with the largest last losses train (Jin et al. 2026).

    The pool has `s = floor(pool * n)` samples, of which `q = floor(top * s)` train, all with weight 1. Under a budget
    the pool holds at least as many samples as train.

    Args:
        pool: Part of all samples that is drawn, in (0, 1].
        top: Part of the pool that trains, in (0, 1). Not used under a budget.
    """

    pool: float = 0.8
    top: float = 0.75
    free: ClassVar[str] = "top"

    def __post_init__(self) -> None:
        exact_fraction("top", self.top)
        exact_fraction("pool", self.pool, or_one=True)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Let all samples rest but the top of a random pool."""
        n = len(pool.targets)
        size = int(exact_fraction("pool", self.pool, or_one=True) * n)
        train = int(exact_fraction("top", self.top) * size)
        if pool.asked is not None:
            train = n - pool.asked
            size = max(size, train)
        drawn = np.sort(torch.randperm(n, generator=pool.generator)[:size].numpy())
        rests = np.ones(n, dtype=np.bool_)
        rests[drawn] = ~lowest(-pool.scores["loss"][drawn], np.zeros(size, dtype=np.int64), [train])
        return _choice(rests, pool, leave)


@dataclass(frozen=True)
class Selective(OnePool):
    """The larger its last loss, the likelier a sample trains (Selective-Backprop with stale losses, Jiang et al. 2019).

    Each epoch all but `floor(fraction * n)` of the `n` samples train, with weight 1. The one with the `k`-th smallest
    loss does so with probability `min(1, c * (k / n)**power)`, where `c` makes the sum of these the number that trains.
    With `by="error"`, `1 - p` takes the place of the rank `k / n`, where `p` is the probability of the label.

    Args:
        fraction: Part of all samples that rests, in (0, 1).
        power: How strongly large losses are preferred, above 0.
        by: "rank" or "error".
    """

    fraction: float = 0.4
    power: float = 1.0
    by: Literal["rank", "error"] = field(default="rank", kw_only=True)
    free: ClassVar[str] = "fraction"

    def __post_init__(self) -> None:
        exact_fraction("fraction", self.fraction)
        positive("power", self.power)
        if self.by not in ("rank", "error"):
            raise invalid("by", "be 'rank' or 'error'", repr(self.by))

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw by the rank of the loss, ties by index, or by the error."""
        n = len(pool.targets)
        losses = pool.scores["loss"].astype(np.float64)
        if self.by == "error":
            size = np.maximum(-np.expm1(-losses), _LEAST_ERROR)
        else:
            size = np.empty(n)
            size[np.argsort(losses, kind="stable")] = np.arange(1, n + 1) / n
        out = pool.asked
        if out is None:
            out = int(exact_fraction("fraction", self.fraction) * n)
        rests = ~systematic(scaled_to(size**self.power, n - out), n - out, pool.generator)
        return _choice(rests, pool, leave)


def scaled_to(chance: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Return `min(1, c * chance)`, with the `c` for which the sum is `total`.

    >>> scaled_to(np.array([0.25, 0.5, 1.0]), 2).tolist()
    [0.3333333333333333, 0.6666666666666666, 1.0]
    """
    low = np.sort(chance)
    # If the k largest are 1, the others share total - k. The least k that leaves all of these at 1 or below is right.
    k = np.arange(total + 1)
    shared = np.concatenate([[0.0], np.cumsum(low)])[len(low) - k]
    largest = np.concatenate([[0.0], low])[len(low) - k]
    fits = np.flatnonzero((total - k) * largest <= shared)[0]
    if not shared[fits]:
        return np.ones_like(chance)
    scaled: NDArray[np.float64] = np.minimum(chance * ((total - fits) / shared[fits]), 1)
    return scaled


def systematic(chance: NDArray[np.float64], total: int, generator: torch.Generator) -> Mask:
    """Draw exactly `total` samples, each with its own chance; the chances sum to `total`.

    They are laid end to end in a random order, and a sample is drawn if a whole number plus one random offset falls
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


def _choice(rests: Mask, pool: Snapshot, most: Sequence[int]) -> Choice:
    """Let these samples rest; random ones come back if more than `most[k]` of a class would."""
    wanted = np.bincount(pool.targets[rests], minlength=len(most))
    keys = _random_keys(int(rests.sum()), pool.generator)
    rests[rests] = lowest(keys, pool.targets[rests], np.minimum(wanted, most))
    return Choice(~rests, wanted=wanted.tolist())


def _random_keys(n: int, generator: torch.Generator) -> Keys:
    """Return distinct random keys below n, so that every subset of a size is equally likely."""
    return torch.randperm(n, generator=generator).numpy()


def _check_weighting(weights: object) -> None:
    if weights not in get_args(Weighting):
        raise invalid("weights", "be full, mean or none", repr(weights))


def _weigh(weights: NDArray[np.float32], how: Weighting) -> NDArray[np.float32] | None:
    """Return the weights that make up in full (0 for a sample that rests), changed as asked; None: all weigh 1."""
    if how == "none":
        return None
    if how == "full":
        return weights
    scaled: NDArray[np.float32] = weights * np.float32(np.count_nonzero(weights) / weights.sum(dtype=np.float64))
    return scaled
