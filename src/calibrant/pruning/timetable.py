"""When samples leave, and how many: the part of pruning that is known before training."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Literal

from calibrant.checks import number, whole
from calibrant.errors import CalibrantError, CalibrantWarning, invalid
from calibrant.pruning.policies import PruningPolicy
from calibrant.pruning.quotas import above_floor, apportion, exact_fraction

Action = Literal["all", "draw", "cut", "hold"]
"""Train on all samples; draw a new subset; remove samples; change nothing."""


@dataclass(frozen=True)
class Every:
    """After epochs `start`, `start + interval`, `start + 2 * interval`, ...

    Args:
        interval: Epochs between two cuts, at least 1.
        start: First epoch after which samples leave. None: `interval`.

    >>> every = Every(10, start=40)
    >>> [epoch for epoch in range(1, 71) if every.due(epoch)]
    [40, 50, 60, 70]
    """

    interval: int
    start: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole("interval", self.interval, 1)
        if self.start is not None:
            whole("start", self.start, 1)

    @property
    def first(self) -> int:
        """The epoch of the first cut."""
        return self.start or self.interval

    def due(self, epoch: int) -> bool:
        """Return whether `epoch` is `first` plus a multiple of the interval."""
        return epoch >= self.first and (epoch - self.first) % self.interval == 0


def anneal_epochs(anneal: float, epochs: int | None) -> int:
    """Return the number of final epochs on all data; a fraction is of `epochs`, rounded up."""
    if number("anneal", anneal) == 0:
        return 0
    if epochs is None:
        raise invalid("epochs", "be given with anneal", None, "Say how many epochs the training will have.")
    if 0 < anneal < 1:
        return ceil(exact_fraction("anneal", anneal) * epochs)
    if not 0 < anneal < epochs or anneal != int(anneal):
        raise invalid("anneal", f"be a fraction in (0, 1) or a number of epochs below {epochs}", anneal)
    return int(anneal)


@dataclass(frozen=True)
class Rest:
    """Samples that rest after each draw under a budget, as evenly as whole numbers allow; the sum is `total`.

    >>> rest = Rest(total=10, first=1, epochs=4)
    >>> [rest.after(finished) for finished in (1, 2, 3, 4)]
    [2, 3, 2, 3]
    """

    total: int
    first: int  # finished epochs before the first draw
    epochs: int  # number of draws

    @property
    def last(self) -> int:
        """Finished epochs before the last draw."""
        return self.first + self.epochs - 1

    def after(self, finished: int, rested: int | None = None) -> int:
        """Return how many samples rest in the epoch that follows the `finished`-th.

        If only `rested` samples rested so far, what is missing is asked of the draws that are left, in even parts.
        """
        turn = finished - self.first
        planned = self.total * turn // self.epochs
        missing = 0
        if rested is not None:
            missing = max(planned - rested, 0)
        return self.total * (turn + 1) // self.epochs - planned - (-missing // (self.epochs - turn))


@dataclass(frozen=True)
class Quota:
    """How many samples leave a pool."""

    leave: list[int]  # of each class; at most that many if scores decide
    wanted: list[int] | None  # the same without the class floor; None if something else than the class sizes decides
    asked: int | None = None  # how many have to rest under a budget, all classes together


class Timetable:
    """What happens after each epoch, from policy, schedule, final epochs on all data, class floor and budget.

    Arguments are those of `ConfidencePruner`, and the class sizes of the full set. Under a budget `rest` replaces the
    policy's rate, so that `floor(budget * n * epochs)` samples are trained on.
    """

    def __init__(
        self,
        sizes: list[int],
        policy: PruningPolicy | None,
        schedule: Every | None,
        epochs: int | None,
        anneal: float,
        minimum: int,
        budget: float,
    ) -> None:
        if not isinstance(policy, PruningPolicy | None):
            raise invalid("policy", "be a policy such as LowestConfidence(0.1)", repr(policy))
        if not isinstance(schedule, Every | None):
            raise invalid("schedule", "be a schedule such as Every(10, start=40)", repr(schedule))
        if policy is None and schedule is not None:
            raise invalid("schedule", "be left out without a policy", schedule, "Nothing would ever leave.")
        if policy is not None and schedule is None:
            if not policy.redraws:
                raise invalid("schedule", f"be given with {policy}", None, "For example Every(10, start=40).")
            schedule = Every(1)
        self.sizes = sizes
        self.policy = policy
        self.schedule = schedule
        self.epochs = epochs
        self.anneal = anneal_epochs(anneal, epochs)
        self.minimum = minimum
        self.rest: Rest | None = None
        if policy is not None:
            self.quota(0, sizes)
        if budget != 1:
            self.rest = self._resting(budget)
        if epochs is not None and schedule is not None and schedule.first > epochs - self.anneal - 1:
            warnings.warn(
                f"the schedule starts after epoch {schedule.first}, too late to change anything with "
                f"epochs={epochs} and anneal={self.anneal}: no sample will ever leave.",
                CalibrantWarning,
                stacklevel=3,
            )

    def _resting(self, budget: float) -> Rest:
        """Return how many samples rest. Raise if policy, schedule, `anneal` and class floor do not allow it."""
        share = exact_fraction("budget", budget)
        policy = self.policy
        if policy is None:
            raise invalid("budget", "come with a policy", budget, "All samples in fewer epochs cost less too.")
        if self.epochs is None:
            raise invalid("budget", "come with epochs", budget, "Say how many epochs the training will have.")
        if not policy.free or not policy.redraws:
            hint = "Use a plan with a free rate, such as unbiased or random."
            raise invalid("budget", f"be 1 with {policy}, which has a rate of its own", budget, hint)
        draws = [epoch for epoch in range(1, self.epochs) if self.action(epoch) == "draw"]
        if not draws:
            raise invalid("budget", "leave an epoch in which samples rest", f"{self.schedule}, anneal={self.anneal}")
        samples = sum(self.sizes)
        full = samples * self.epochs
        total = full - full * share.numerator // share.denominator
        most = sum(above_floor(policy.most(self.sizes), self.sizes, self.minimum))
        if total > most * len(draws):
            # Rounded up, so that the budget that is named can be met.
            least = ceil(Fraction(1000 * (full - most * len(draws)), full)) / 1000
            why = f"at most {most} of {samples} samples rest in {len(draws)} of {self.epochs} epochs"
            hint = "Let more samples rest, from an earlier epoch, or with a smaller anneal."
            raise invalid("budget", f"be at least {least:g} with {policy}: {why}", budget, hint)
        return Rest(total, draws[0], len(draws))

    def action(self, finished: int) -> Action:
        """Return what to do after the `finished`-th epoch."""
        if self.policy is None or self.schedule is None:
            return "hold"
        if self.epochs is not None and finished >= self.epochs - self.anneal:
            return "all" if self.anneal else "hold"  # without annealing, the training is over
        if not self.policy.redraws:
            return "cut" if self.schedule.due(finished) else "hold"
        return "draw" if finished >= self.schedule.first else "all"

    def quota(self, finished: int, pool: Sequence[int], *, rested: int | None = None) -> Quota:
        """Return how many samples leave a pool of these class sizes after the `finished`-th epoch.

        Under a budget, `rested` samples did so in the finished epochs; what is missing is asked for later.
        """
        policy = self.policy
        assert policy is not None
        asked = None
        if self.rest is not None:
            limits = above_floor(policy.most(pool), pool, self.minimum)
            asked = min(self.rest.after(finished, rested), sum(limits))
            if policy.known_ahead:
                return Quota(apportion(asked, limits, turn=finished), None, asked)
        wanted = list(policy.quota(pool))
        if len(wanted) != len(pool) or not all(0 <= out <= size for out, size in zip(wanted, pool, strict=True)):
            rule = f"let 0 to as many samples leave as each of the {len(pool)} classes has"
            raise invalid(f"the quota of {policy}", rule, wanted)
        return Quota(above_floor(wanted, pool, self.minimum), wanted if policy.known_ahead else None, asked)

    def check_left(self, quota: Quota, left: list[int]) -> None:
        """Raise if a policy did not remove the requested number of samples of each class."""
        assert self.policy is not None
        if self.policy.known_ahead:
            obeys = left == quota.leave
        else:
            obeys = all(out <= most for out, most in zip(left, quota.leave, strict=True))
            obeys = obeys and (quota.asked is None or sum(left) <= quota.asked)
        if not obeys:
            requested = sum(quota.leave) if quota.asked is None else quota.asked
            raise CalibrantError(
                f"{self.policy} let {sum(left)} samples go, but {requested} were requested; choose must obey it, "
                "class by class."
            )

    def pool(self, kept: list[int]) -> list[int]:
        """Return the class sizes of the set that the policy chooses from."""
        if self.policy is not None and self.policy.from_all:
            return self.sizes
        return kept

    def sizes_by_epoch(self, epochs: int) -> Iterator[list[int]]:
        """Yield the class sizes of what each of the first `epochs` epochs trains on."""
        if self.anneal and epochs != self.epochs:
            raise invalid("epochs", f"equal the pruner's own ({self.epochs}) with anneal", epochs)
        if self.policy is not None and not self.policy.known_ahead:
            rule = "not depend on scores or batches, to know the steps ahead"
            raise invalid("policy", rule, self.policy, "The steps on all data are an upper bound.")
        kept = self.sizes
        for epoch in range(epochs):
            yield kept
            action = self.action(epoch + 1)
            if action == "all":
                kept = self.sizes
            elif action != "hold":
                pool = self.pool(kept)
                leave = self.quota(epoch + 1, pool).leave
                kept = [size - out for size, out in zip(pool, leave, strict=True)]
