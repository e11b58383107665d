"""Intervals for shares of cases that do not claim certainty where nothing, or everything, was counted."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def wilson(
    successes: float | NDArray[np.int64], trials: float | NDArray[np.int64], *, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Wilson score interval of a proportion (Wilson 1927); NaN where there are no trials.

    >>> low, high = wilson(98, 100)
    >>> print(f"{low:.4f} {high:.4f}")
    0.9300 0.9945
    """
    from scipy.special import ndtri

    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    z = ndtri(0.5 + level / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = k / n
        centre = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n successes the exact ends are 0 and 1; rounding would leave 1e-17 behind.
    low = np.where(k == 0, 0.0, np.maximum(centre - half, 0.0))
    high = np.where(k == n, 1.0, np.minimum(centre + half, 1.0))
    empty = n == 0
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def mid_p(successes: int, trials: int, *, level: float) -> tuple[float, float]:
    """Mid-P interval of a proportion (Lancaster 1961): where the chance of more, or less, is (1 - level) / 2.

    A result counts as half beyond itself. At levels above 95 % it is better than Wilson's, which there holds shares
    near 1 too rarely: of 25 to 80 cases, at 98.3 %, it holds shares of 0.975 and 0.985 in 94.6 to 98.5 %.

    >>> low, high = mid_p(98, 100, level=0.99)
    >>> print(f"{low:.4f} {high:.4f}")
    0.9165 0.9985
    """
    from scipy.special import betainc

    def at_most(p: float) -> float:
        """The chance of fewer successes, and half of that of as many."""
        fewer = 0.0 if successes == 0 else 1.0 - betainc(successes, trials - successes + 1, p)
        as_many = 1.0 if successes == trials else 1.0 - betainc(successes + 1, trials - successes, p)
        return float(fewer + as_many) / 2.0

    def crossing(chance: float) -> float:
        low, high = 0.0, 1.0
        while high - low > 1e-12:
            middle = (low + high) / 2.0
            low, high = (middle, high) if at_most(middle) > chance else (low, middle)
        return (low + high) / 2.0

    tail = (1.0 - level) / 2.0
    return 0.0 if successes == 0 else crossing(1.0 - tail), 1.0 if successes == trials else crossing(tail)
