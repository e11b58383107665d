"""Policies choose the samples that leave, by their scores and class by class, so that class shares are preserved."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import number
from calibrant.errors import invalid
from calibrant.pruning.selection import Keys, Mask, Quota, ascending, descending, exact_fraction, lowest, quota
from calibrant.pruning.table import ERROR_COLUMNS, FORGETTING_COLUMNS
from calibrant.pruning.weighing import Weighting, check_weighting, weigh


@dataclass(frozen=True)
class Snapshot:
    """What a policy sees when it acts; rows are samples of the pool, in ascending order of their index.

    Attributes:
        targets: Label of each sample, shape (m,).
        scores: Columns of the score table, each of shape (m,), float32.
        generator: The pruner's generator for this epoch: the same draw on every rank and after a resume.
        batches: Number of the minibatch that held each sample in the epoch just finished, -1 for one that rested; only
            for policies that ask.
        epoch: Finished epochs.
        floor: No class may get smaller than this.
    """

    targets: NDArray[np.integer]
    scores: Mapping[str, NDArray[np.float32]]
    generator: torch.Generator
    batches: NDArray[np.int64] | None = None
    epoch: int = 0
    floor: int = 0


@dataclass(frozen=True)
class Choice:
    """Which samples of the pool train next.

    Attributes:
        stay: Shape (m,).
        weights: Shape (m,), 0 for those that rest; None where all that stay weigh 1.
        quota: How many left, where that was not known ahead.
    """

    stay: Mask
    weights: NDArray[np.float32] | None = None
    quota: Quota | None = None


class PruningPolicy(ABC):
    """Base of all policies; subclass it for your own.

    `quota` fixes, from the class sizes alone, how many leave: that is what makes the number of steps known ahead.
    `choose` names the samples, and must remove exactly that many.
    """

    redraws: ClassVar[bool] = False
    """True: acts after every epoch within the schedule's span. False: acts when the schedule is due."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of the score table that are needed beyond the base ones."""
    uses_scores: ClassVar[bool] = True
    """Whether the choice depends on what was observed."""
    free: ClassVar[str] = ""
    """The field that a budget solves for; empty: the policy has a rate of its own, and a budget is refused."""
    carries: ClassVar[bool] = False
    """Whether fewer may rest in an epoch than a budget asks for; what is missing is then asked of the later ones."""
    added: ClassVar[Mapping[str, object]] = {}
    """Settings that came later, with the values that change nothing: left out of `repr`, which saved states hold."""

    @property
    def from_all(self) -> bool:
        """Whether the pool is the full set (re-admission); otherwise it is what is kept now (cumulative)."""
        return self.redraws

    @property
    def within_batch(self) -> bool:
        """Whether the policy acts inside minibatches; then the numbers are not known ahead."""
        return False

    @property
    def known_ahead(self) -> bool:
        """Whether `quota` says how many leave. If not, `choose` gets the most that may, and gives its own quota."""
        return not self.within_batch

    @abstractmethod
    def quota(self, sizes: Sequence[int], minimum: int) -> Quota:
        """How many of each class leave a pool with these class sizes."""

    @abstractmethod
    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Which samples stay when `leave[k]` samples of class `k` leave."""

    def most(self, sizes: Sequence[int], minimum: int) -> list[int]:
        """The most samples of each class that may leave a pool of these sizes at once, whatever the rate."""
        return [max(size - minimum, 0) for size in sizes]

    def for_budget(self, leave: Fraction, sizes: Sequence[int]) -> "PruningPolicy":
        """A copy whose free rate lets `leave` samples leave, on average over the draws.

        This is how a plan meets a budget. The pruner computes from the budget, the schedule and `anneal` how many
        samples must rest in each epoch, refuses what exceeds the sum of `most`, splits that number over the classes in
        proportion to `most`, and gives `choose` exactly these numbers. So a policy takes part by naming its free rate
        in `free`, where that is a share of all samples and the class a dataclass; else it overrides this method, and
        `most` where fewer than `size - minimum` may rest. A policy that does not choose class by class may take
        `sum(leave)` in `choose` and return what it did as `Choice.quota`; the sum must be the same, or with `carries`
        at most that. A policy that cuts must have one cut in the run (a static subset).

        Args:
            leave: Mean number of samples that leave.
            sizes: Class sizes of the full set.
        """
        copy: PruningPolicy = replace(self, **{self.free: float(leave / sum(sizes))})  # type: ignore[type-var]
        return copy

    def __repr__(self) -> str:
        # Part of the saved settings, so without a memory address; dataclasses bring their own.
        shown = {name: value for name, value in vars(self).items() if self.added.get(name, _SHOW) != value}
        options = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({options})"


_SHOW = object()


@dataclass(frozen=True)
class _Cut(PruningPolicy):
    """The lowest `floor(fraction * n_k)` of each class `k`, by some key, leave."""

    fraction: float
    readmit: bool = field(default=False, kw_only=True)
    bits: ClassVar[int] = 32

    def __post_init__(self) -> None:
        exact_fraction("fraction", self.fraction)

    @property
    def from_all(self) -> bool:
        """Whether samples that left compete again at each cut."""
        return self.readmit

    def quota(self, sizes: Sequence[int], minimum: int) -> Quota:
        """`floor(fraction * n_k)` of each class, limited by the class floor."""
        return quota(exact_fraction("fraction", self.fraction), sizes, minimum)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Let the lowest keys of each class go; ties by index."""
        return Choice(~lowest(self.keys(pool.scores), pool.targets, leave, bits=self.bits))

    @abstractmethod
    def keys(self, scores: Mapping[str, NDArray[np.float32]]) -> Keys:
        """Integers below `2**bits`; the lowest leave."""


@dataclass(frozen=True)
class LowestConfidence(_Cut):
    """The paper's `PruneUsingEMA`: class by class, the lowest `fraction` of what remains leaves (Procedure 1).

    Args:
        fraction: Share of each class that leaves at each cut, in (0, 1); the number is rounded down.
        within: "dataset" follows Procedure 1. "batch" is the reading of the paper's remark on batch sizes: the lowest
            `floor(fraction * n_kb)` of class `k` inside each minibatch `b` of the epoch just finished leave; the number
            that leaves is then not known ahead and the pruner needs `batch_size`.
        readmit: False is the pseudo-code: what left stays out. True selects anew from the full set at each cut, so that
            `fraction` of the full set is out at any time; samples that rest keep their last score unless you pass them
            through `observe` before the step.

    >>> LowestConfidence(0.1).quota([50, 9], minimum=1).leave
    [5, 0]
    """

    within: Literal["dataset", "batch"] = field(default="dataset", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within not in ("dataset", "batch"):
            raise invalid("within", "be 'dataset' or 'batch'", repr(self.within))
        if self.within == "batch" and self.readmit:
            raise invalid("readmit", "be False with within='batch'", True, "A sample that rests is in no minibatch.")

    @property
    def within_batch(self) -> bool:
        """Whether the cut is made inside each minibatch."""
        return self.within == "batch"

    def keys(self, scores: Mapping[str, NDArray[np.float32]]) -> Keys:
        """Ascending confidence."""
        return ascending(scores["confidence"])

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Procedure 1, or its minibatch reading."""
        if pool.batches is None:
            return super().choose(pool, leave)
        keys = self.keys(pool.scores)
        _, groups = np.unique(pool.batches * len(leave) + pool.targets, return_inverse=True)
        share = exact_fraction("fraction", self.fraction)
        out = lowest(keys, groups, quota(share, np.bincount(groups).tolist(), 0).leave, bits=self.bits)
        # The class floor holds for the whole class: where the minibatches together took too many, the highest return.
        wanted = np.bincount(pool.targets[out], minlength=len(leave))
        allowed = np.minimum(wanted, leave)
        out[out] = lowest(keys[out], pool.targets[out], allowed, bits=self.bits)
        return Choice(~out, quota=Quota(allowed.tolist(), wanted.tolist()))


@dataclass(frozen=True)
class HighestConfidence(_Cut):
    """The opposite of the paper, as a control: the most confident `fraction` of each class leaves.

    Args:
        fraction: Share of each class that leaves at each cut.
        readmit: Select from the full set at each cut.
    """

    def keys(self, scores: Mapping[str, NDArray[np.float32]]) -> Keys:
        """Descending confidence."""
        return descending(scores["confidence"])


@dataclass(frozen=True)
class ErrorNorm(_Cut):
    """EL2N: the `fraction` of each class with the smallest `||p - onehot(y)||_2` leaves (Paul et al. 2021).

    The norm is averaged over the epochs by the same EMA as the confidence.

    Args:
        fraction: Share of each class that leaves at each cut.
        readmit: Select from the full set at each cut.
    """

    columns: ClassVar[tuple[str, ...]] = ERROR_COLUMNS
    free: ClassVar[str] = "fraction"

    def keys(self, scores: Mapping[str, NDArray[np.float32]]) -> Keys:
        """Ascending error norm."""
        return ascending(scores["error"])


@dataclass(frozen=True)
class Forgetting(_Cut):
    """The `fraction` of each class that was forgotten least often leaves (Toneva et al. 2019).

    A sample is forgotten when it goes from right to wrong. One that was never right counts as forgotten more often than
    any other and stays. Among equals the most confident leave first, then the first in index.

    Args:
        fraction: Share of each class that leaves at each cut.
        readmit: Select from the full set at each cut.
    """

    columns: ClassVar[tuple[str, ...]] = FORGETTING_COLUMNS
    free: ClassVar[str] = "fraction"
    bits: ClassVar[int] = 44

    def keys(self, scores: Mapping[str, NDArray[np.float32]]) -> Keys:
        """Twelve bits of forgetting count (4,095 for never learned), then descending confidence."""
        count = scores["forgotten"]
        high = np.where(count < 0, 4095, np.minimum(count, 4094)).astype(np.uint64)
        return (high << np.uint64(32)) | descending(scores["confidence"])


@dataclass(frozen=True)
class RandomSubset(PruningPolicy):
    """Each epoch, a random `floor(fraction * n_k)` of each class rests; drawn anew every epoch. All weights are 1.

    Args:
        fraction: Share of each class that rests, in (0, 1).
    """

    fraction: float
    redraws: ClassVar[bool] = True
    uses_scores: ClassVar[bool] = False
    free: ClassVar[str] = "fraction"

    def __post_init__(self) -> None:
        exact_fraction("fraction", self.fraction)

    def quota(self, sizes: Sequence[int], minimum: int) -> Quota:
        """`floor(fraction * n_k)` of each class, limited by the class floor."""
        return quota(exact_fraction("fraction", self.fraction), sizes, minimum)

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """A uniformly random set of the given size in each class."""
        return Choice(~lowest(_random_keys(len(pool.targets), pool.generator), pool.targets, leave))


@dataclass(frozen=True, repr=False)
class Unbiased(PruningPolicy):
    """Each epoch a random part of the well-learned samples rests, and the rest of them weigh more.

    Well learned are the `m = floor(share * n_k)` samples of class `k` with the highest EMA confidence. Exactly
    `r = floor(drop * m)` of these, drawn at random, rest this epoch; those that stay weigh `m / (m - r)`. So each
    sample's expected weight is 1, and the gradients of an epoch add up, in expectation, to those of all data; the steps
    are known ahead. There are fewer of them, each with a mean gradient `n / kept` times as large: what is not weighted
    (a calibration term, weight decay) acts in fewer steps without that factor. Use the weights in the classification
    loss, not in a calibration term such as Huber's.

    Args:
        share: Part of each class that counts as well learned, in (0, 1].
        drop: Part of the well-learned that rests each epoch, in (0, 1).
        weights: "full" as above; "mean": the same, scaled so that the weights of an epoch have the mean 1; "none": 1.

    >>> Unbiased(share=0.5, drop=0.5).quota([40], minimum=1).leave
    [10]
    """

    share: float = 0.5
    drop: float = 0.5
    weights: Weighting = field(default="full", kw_only=True)
    redraws: ClassVar[bool] = True
    free: ClassVar[str] = "drop"
    added: ClassVar[Mapping[str, object]] = {"weights": "full"}

    def __post_init__(self) -> None:
        check_weighting(self.weights)
        exact_fraction("drop", self.drop)
        if number("share", self.share) != 1:
            exact_fraction("share", self.share)

    def _well_learned(self, sizes: Sequence[int]) -> list[int]:
        share = Fraction(1) if self.share == 1 else exact_fraction("share", self.share)
        return [size * share.numerator // share.denominator for size in sizes]

    def quota(self, sizes: Sequence[int], minimum: int) -> Quota:
        """`floor(drop * floor(share * n_k))` of each class, limited by the class floor."""
        wanted = quota(exact_fraction("drop", self.drop), self._well_learned(sizes), 0).wanted
        return Quota([min(w, max(n - minimum, 0)) for w, n in zip(wanted, sizes, strict=True)], wanted)

    def most(self, sizes: Sequence[int], minimum: int) -> list[int]:
        """Nine tenths of the well-learned, so that no weight exceeds 10: with 21 a network learned nothing."""
        learned = self._well_learned(sizes)
        return [max(min(9 * m // 10, n - minimum), 0) for m, n in zip(learned, sizes, strict=True)]

    def for_budget(self, leave: Fraction, sizes: Sequence[int]) -> "Unbiased":
        """The `drop` that lets so many rest; `share` stays."""
        return replace(self, drop=float(leave / sum(self._well_learned(sizes))))

    def choose(self, pool: Snapshot, leave: Sequence[int]) -> Choice:
        """Draw the samples that rest among the well-learned of each class, and give the others of these more weight."""
        sizes = np.bincount(pool.targets, minlength=len(leave))
        learned = np.asarray(self._well_learned(sizes.tolist()))
        top = np.flatnonzero(lowest(descending(pool.scores["confidence"]), pool.targets, learned))
        classes = pool.targets[top]
        rests = lowest(_random_keys(len(top), pool.generator), classes, leave)
        weight = (learned / np.maximum(learned - np.asarray(leave), 1)).astype(np.float32)
        weights = np.ones(len(pool.targets), dtype=np.float32)
        weights[top] = np.where(rests, 0, weight[classes])
        return Choice(weights > 0, weigh(weights, self.weights))


def _random_keys(n: int, generator: torch.Generator) -> Keys:
    """Distinct random keys below n: a random order without ties, so every subset of a size is equally likely."""
    return torch.randperm(n, generator=generator).numpy().astype(np.uint64)
