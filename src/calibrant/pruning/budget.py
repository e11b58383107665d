"""How many samples rest in each epoch, so that a budget of updates is met to the sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Rest:
    """Samples that rest after each epoch of a plan with a budget.

    A policy that draws anew spreads them over its draws as evenly as whole numbers allow, so that the sum is `total`
    exactly. A single cut lets as many go at once as make at least `total` over the epochs that follow it.

    Args:
        total: Samples that rest, summed over epochs.
        first: Finished epochs before the first of them.
        epochs: Number of epochs in which samples rest.
        redrawn: Whether the samples are drawn anew for each of these epochs.

    >>> rest = Rest(total=10, first=1, epochs=4, redrawn=True)
    >>> [rest.after(finished) for finished in (1, 2, 3, 4)]
    [2, 3, 2, 3]
    """

    total: int
    first: int
    epochs: int
    redrawn: bool

    def after(self, finished: int, rested: int | None = None) -> int:
        """How many samples rest in the epoch that follows the `finished`-th.

        Args:
            finished: Epochs that are over.
            rested: Samples that rested in them; what is missing is asked of the draws that are left, in even parts.
        """
        if not self.redrawn:
            return -(-self.total // self.epochs)
        turn = finished - self.first
        planned = self.total * turn // self.epochs
        missing = 0 if rested is None else max(planned - rested, 0)
        return self.total * (turn + 1) // self.epochs - planned - (-missing // (self.epochs - turn))

    def is_last(self, finished: int) -> bool:
        """Whether this is the last draw."""
        return self.redrawn and finished - self.first == self.epochs - 1

    @property
    def most(self) -> int:
        """The largest number that rests in one epoch."""
        return -(-self.total // self.epochs)


def updates_of(budget: Fraction, samples: int, epochs: int) -> int:
    """Sample updates that a budget allows: `floor(budget * samples * epochs)`."""
    return budget.numerator * samples * epochs // budget.denominator


def apportion(total: int, limits: Sequence[int], turn: int = 0) -> list[int]:
    """Split `total` over classes in proportion to their limits, by the largest remainders.

    Among equal remainders the classes take turns, so that no class rests one sample more in every epoch.

    Args:
        total: At most the sum of the limits.
        limits: The most that each class can give.
        turn: Which class comes first among equals.

    >>> apportion(4, [10, 10, 10]), apportion(4, [10, 10, 10], turn=1), apportion(3, [9, 1])
    ([2, 1, 1], [1, 2, 1], [3, 0])
    """
    whole = max(sum(limits), 1)
    parts = [divmod(total * limit, whole) for limit in limits]
    given = [quotient for quotient, _ in parts]
    order = sorted(range(len(limits)), key=lambda k: (-parts[k][1], (k - turn) % len(limits)))
    for k in order[: total - sum(given)]:
        given[k] += 1
    return given
