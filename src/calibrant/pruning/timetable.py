"""What happens after each epoch, computed from class sizes alone: the part of pruning that is known before training."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Literal

import numpy as np

from calibrant.checks import number
from calibrant.errors import CalibrantError, CalibrantWarning, invalid
from calibrant.pruning.budget import Rest, apportion, updates_of
from calibrant.pruning.policies import Choice, PruningPolicy, Snapshot
from calibrant.pruning.schedules import Every, Schedule
from calibrant.pruning.selection import Quota, exact_fraction

Action = Literal["all", "draw", "cut", "hold"]
"""Train on all samples; draw a new subset; remove samples; change nothing."""


def anneal_epochs(anneal: float, epochs: int | None) -> int:
    """Number of final epochs on all data; a fraction is of `epochs`, rounded up."""
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
class Timetable:
    """What happens after each epoch, from policy, schedule, final epochs on all data and class floor.

    Args:
        sizes: Samples of each class in the full set.
        policy: Chooses the samples that leave; None keeps all of them.
        schedule: When; a policy that draws every epoch starts after the first unless told.
        epochs: Length of the training, where it is known.
        anneal: Number of final epochs on all data.
        minimum: No class gets smaller than this by pruning.
        rest: How many samples rest in each epoch, where a budget says so; None leaves that to the policy.
    """

    sizes: tuple[int, ...]
    policy: PruningPolicy | None
    schedule: Schedule | None
    epochs: int | None
    anneal: int
    minimum: int
    rest: Rest | None = None

    def __post_init__(self) -> None:
        _check_kind("policy", self.policy, PruningPolicy, "LowestConfidence(0.1)")
        _check_kind("schedule", self.schedule, Schedule, "Every(10, start=40)")
        if self.policy is None and self.schedule is not None:
            raise invalid("schedule", "be left out without a policy", self.schedule, "Nothing would ever leave.")
        if self.policy is not None and self.schedule is None:
            if not self.policy.redraws:
                raise invalid("schedule", f"be given with {self.policy}", None, "For example Every(10, start=40).")
            object.__setattr__(self, "schedule", Every(1))
        if self.policy is not None and self.rest is None:
            check_quota(self.policy, self.policy.quota(self.sizes, self.minimum), self.sizes)

    def warn_if_idle(self, epochs: int, *, stacklevel: int) -> None:
        """Warn where the schedule starts too late to change anything."""
        last = epochs - self.anneal - 1
        if self.schedule is not None and self.schedule.first > last:
            warnings.warn(
                f"the schedule starts after epoch {self.schedule.first}, too late to change anything with "
                f"epochs={epochs} and anneal={self.anneal}: no sample will ever leave.",
                CalibrantWarning,
                stacklevel=stacklevel + 1,
            )

    def action(self, finished: int, memory: dict[str, Any], loss: float | None) -> Action:
        """What to do after the `finished`-th epoch."""
        if self.policy is None or self.schedule is None:
            return "hold"
        due = self.schedule.due(finished, memory, loss)
        if self.anneal and self.epochs is not None and finished >= self.epochs - self.anneal:
            return "all"
        if self.epochs is not None and finished >= self.epochs:
            return "hold"  # the training is over
        if self.policy.redraws:
            return "draw" if self.schedule.spans(finished, memory) else "all"
        return "cut" if due else "hold"

    def with_budget(self, budget: float) -> "Timetable":
        """The same with the policy's free rate solved, so that `floor(budget * n * epochs)` samples are trained on."""
        if budget == 1:
            return self
        share = exact_fraction("budget", budget)
        if self.policy is None or self.epochs is None:
            what = "a policy" if self.policy is None else "epochs"
            raise invalid("budget", f"come with {what}", budget, "All samples in fewer epochs cost less too.")
        if not self.policy.free:
            way_out = "Use a plan with a free rate, such as unbiased or random."
            raise invalid("budget", f"be 1 with {self.policy}, which has a rate of its own", budget, way_out)
        every = sum(self.sizes) * self.epochs
        rest = self._rest(every - updates_of(share, sum(self.sizes), self.epochs))
        most = sum(self.policy.most(self.sizes, self.minimum))
        if rest.most > most:
            # Rounded up, so that the budget that is named can be met.
            least = ceil(Fraction(1000 * (every - most * rest.epochs), every)) / 1000
            where = f"at most {most} of {sum(self.sizes)} samples rest in {rest.epochs} of {self.epochs} epochs"
            way_out = "Let more samples rest, from an earlier epoch, or with a smaller anneal."
            raise invalid("budget", f"be at least {least:g} with {self.policy}: {where}", budget, way_out)
        solved = self.policy.for_budget(Fraction(rest.total, rest.epochs), self.sizes)
        return replace(self, policy=solved, rest=rest)

    def _rest(self, total: int) -> Rest:
        """When samples can rest; that must be known before training."""
        assert self.policy is not None
        assert self.epochs is not None
        self._schedule_known_ahead(self.epochs)
        actions = [self.action(finished, {}, None) for finished in range(1, self.epochs)]
        acts = [finished for finished, action in enumerate(actions, start=1) if action in {"draw", "cut"}]
        if not acts:
            raise invalid("budget", "leave an epoch in which samples rest", f"{self.schedule}, anneal={self.anneal}")
        if self.policy.redraws:
            return Rest(total, acts[0], len(acts), redrawn=True)
        if len(acts) > 1:
            raise invalid("budget", "go with a plan that cuts once", f"{len(acts)} cuts by {self.schedule}")
        return Rest(total, acts[0], self.epochs - self.anneal - acts[0], redrawn=False)

    def quota(self, finished: int, pool: Sequence[int], *, rested: int | None = None) -> Quota:
        """How many samples of each class leave a pool of these class sizes after the `finished`-th epoch.

        Under a budget, `rested` samples did so in the finished epochs; what is missing there is asked for later.
        """
        assert self.policy is not None
        if self.rest is None:
            found = self.policy.quota(pool, self.minimum)
        else:
            limits = self.policy.most(pool, self.minimum)
            asked = min(self.rest.after(finished, rested), sum(limits))
            leave = apportion(asked, limits, turn=finished)
            found = Quota(leave, leave)
        check_quota(self.policy, found, pool)
        return found

    def missed(self, finished: int, *, asked: int, left: int) -> str:
        """What to report where fewer left in the end than the budget asks for; raises where the policy may not."""
        assert self.policy is not None
        if self.rest is None or left == asked:
            return ""
        if left > asked or not self.policy.carries:
            raise CalibrantError(f"{self.policy} let {left} samples go where the budget asks for {asked}.")
        if not self.rest.is_last(finished):
            return ""
        return f"the budget is not met: {asked} samples had to rest in the last epoch with rest, {left} could"

    def pool(self, kept: list[int]) -> list[int]:
        """Class sizes of the set that the policy chooses from."""
        return list(self.sizes) if self.policy is not None and self.policy.from_all else kept

    def sizes_by_epoch(self, epochs: int) -> Iterator[list[int]]:
        """Class sizes of what each of the first `epochs` epochs trains on."""
        self._known_ahead(epochs)
        kept = list(self.sizes)
        for epoch in range(epochs):
            yield kept
            action = self.action(epoch + 1, {}, None)
            if action == "all":
                kept = list(self.sizes)
            elif action != "hold" and self.policy is not None:
                pool = self.pool(kept)
                leave = self.quota(epoch + 1, pool).leave
                kept = [size - out for size, out in zip(pool, leave, strict=True)]

    def _known_ahead(self, epochs: int) -> None:
        self._schedule_known_ahead(epochs)
        if self.policy is not None and not self.policy.known_ahead:
            rule = "not act within batches" if self.policy.within_batch else "not depend on scores"
            raise invalid("policy", f"{rule} to know the steps ahead", self.policy, _BOUND)

    def _schedule_known_ahead(self, epochs: int) -> None:
        if self.schedule is not None and not self.schedule.known_ahead:
            raise invalid("schedule", "not depend on the loss to know the steps ahead", self.schedule, _BOUND)
        if self.anneal and epochs != self.epochs:
            raise invalid("epochs", f"equal the pruner's own ({self.epochs}) with anneal", epochs)


def check_quota(policy: PruningPolicy, quota: Quota, sizes: Sequence[int]) -> None:
    """Refuse a policy that does not count class by class, or that keeps no sample at all."""
    fits = len(quota.leave) == len(sizes) and all(0 <= out <= n for out, n in zip(quota.leave, sizes, strict=True))
    if not fits:
        rule = f"let 0 to as many samples leave as each of the {len(sizes)} classes has"
        raise invalid(f"the quota of {policy}", rule, quota.leave)
    if any(sizes) and list(quota.leave) == list(sizes):
        raise invalid(f"policy {policy}", "keep at least one sample", f"a quota of all {sum(sizes)}")


def checked_choice(policy: PruningPolicy, pool: Snapshot, leave: Sequence[int]) -> Choice:
    """What the policy chooses; refused where one of your own does not say it of each sample of the pool."""
    choice = policy.choose(pool, leave)
    stay, rows = np.asarray(choice.stay), len(pool.targets)
    if stay.shape != (rows,):
        way_out = "It says of each sample whether it stays; it is no list of indices."
        raise invalid(f"Choice.stay of {policy}", f"have the {rows} rows of the pool", f"shape {stay.shape}", way_out)
    weights = choice.weights
    if weights is not None and not (
        np.shape(weights) == (rows,) and np.isfinite(weights).all() and np.min(weights) >= 0
    ):
        raise invalid(f"Choice.weights of {policy}", f"be {rows} finite numbers, none of them negative", "others")
    return replace(choice, stay=stay.astype(np.bool_, copy=False))


def _check_kind(argument: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        found = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise invalid(argument, f"be a {argument} such as {example}", found)


_BOUND = "The steps on all data are an upper bound."
