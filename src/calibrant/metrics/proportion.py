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
