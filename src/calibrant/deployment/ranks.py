"""Ranks of new cases among all cases before them: independent and uniform while nothing has changed."""

import numpy as np
from numpy.typing import NDArray

# New cases that are compared with each other directly; everything before them is sorted.
_BLOCK = 512


def conformal_ranks(reference: NDArray[np.generic], new: NDArray[np.generic], *, seed: int = 0) -> NDArray[np.float64]:
    """The rank of each new value among the reference, the new values before it and itself, over their number.

    Ties are broken at random. Where reference and new values are exchangeable, as independent draws from one
    distribution are, these ranks are independent and uniform on (0, 1), for a reference of any size (Vovk et al. 2005):
    the reference need not show the distribution exactly, as a comparison with its histogram would assume.

    Args:
        reference: Values of the calibration cases, shape (m,).
        new: Values of the new cases in order, shape (n,).
        seed: Of the random choice between equal values.

    >>> conformal_ranks(np.array([0.1, 0.2, 0.3]), np.array([0.25])).round(1).tolist()
    [0.7]
    """
    below, equal = np.empty(len(new), dtype=np.int64), np.empty(len(new), dtype=np.int64)
    known = np.sort(np.asarray(reference))
    for start in range(0, len(new), _BLOCK):
        part = slice(start, start + _BLOCK)
        some = np.asarray(new[part])
        left, right = np.searchsorted(known, some, side="left"), np.searchsorted(known, some, side="right")
        earlier = np.tri(len(some), k=-1, dtype=np.bool_)
        below[part] = left + ((some < some[:, None]) & earlier).sum(axis=1)
        equal[part] = right - left + ((some == some[:, None]) & earlier).sum(axis=1)
        # Two sorted runs: a stable sort merges them in linear time.
        known = np.sort(np.concatenate([known, np.sort(some)]), kind="stable")
    among = len(reference) + np.arange(1, len(new) + 1)
    draws = np.random.default_rng(seed).random(len(new))
    return np.asarray((below + draws * (equal + 1)) / among)
