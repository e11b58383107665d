"""Exact counts and exact selection: how many samples of each class leave, and which, the same on every machine."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.errors import invalid

Keys = NDArray[np.floating] | NDArray[np.integer]
Mask = NDArray[np.bool_]


def exact_fraction(name: str, value: float, *, or_one: bool = False) -> Fraction:
    """Return the fraction that the user wrote as an exact ratio. Raise if it is not inside (0, 1), or 1 if allowed.

    `floor(0.29 * 100)` is 28 in floating point, because 0.29 is stored a little too small.

    >>> exact_fraction("fraction", 0.29)
    Fraction(29, 100)
    """
    if or_one and value == 1:
        return Fraction(1)
    ratio = Fraction(fraction(name, value)).limit_denominator(1_000_000)
    if not 0 < ratio < 1:
        raise invalid(name, "lie between 0.000001 and 0.999999", repr(value))
    return ratio


def share_of(sizes: Sequence[int], fraction: Fraction) -> list[int]:
    """Return `floor(fraction * size)` for each class.

    >>> share_of([10, 3, 1], Fraction(1, 2))
    [5, 1, 0]
    """
    return [size * fraction.numerator // fraction.denominator for size in sizes]


def above_floor(leave: Sequence[int], sizes: Sequence[int], minimum: int) -> list[int]:
    """Return how many of each class may leave, so that no class gets smaller than `minimum`.

    >>> above_floor([5, 2, 1], [10, 3, 1], 2)
    [5, 1, 0]
    """
    return [min(asked, max(size - minimum, 0)) for asked, size in zip(leave, sizes, strict=True)]


def apportion(total: int, limits: Sequence[int], turn: int = 0) -> list[int]:
    """Split `total` over classes in proportion to their limits, by the largest remainders.

    Among equal remainders the classes take turns, so that no class rests one sample more in every epoch: class `turn`
    comes first.

    >>> apportion(4, [10, 10, 10]), apportion(4, [10, 10, 10], turn=1), apportion(3, [9, 1])
    ([2, 1, 1], [1, 2, 1], [3, 0])
    """
    whole = max(sum(limits), 1)
    parts = [divmod(total * limit, whole) for limit in limits]
    shares = [quotient for quotient, _ in parts]
    order = sorted(range(len(limits)), key=lambda k: (-parts[k][1], (k - turn) % len(limits)))
    for k in order[: total - sum(shares)]:
        shares[k] += 1
    return shares


def lowest(keys: Keys, groups: NDArray[np.integer], take: Sequence[int] | NDArray[np.int64]) -> Mask:
    """Mark the `take[g]` smallest keys of each group `g`; among equal keys, the first in position.

    >>> lowest(np.array([5, 3, 3, 3, 9]), np.array([0, 0, 0, 0, 1]), [2, 1]).tolist()
    [False, True, True, False, True]
    """
    sizes = np.bincount(groups, minlength=len(take))
    assert (take <= sizes).all(), "a group cannot give up more than it has"
    order = np.lexsort((keys, groups))  # stable: equal keys stay in the order of their positions
    rank_in_group = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    marked = np.zeros(len(keys), dtype=np.bool_)
    marked[order[rank_in_group < np.repeat(take, sizes)]] = True
    return marked
