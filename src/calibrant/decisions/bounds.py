"""Exact binomial bounds (Clopper and Pearson 1934) and how many cases a promise takes."""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, logsumexp

from calibrant.checks import fraction
from calibrant.errors import invalid

# Nobody has more labelled cases. SciPy's binomial distribution is NaN from 2^31 on, so that a search would never end.
MOST_CASES = 100_000_000


def check_numbers(name: str, values: Any, rule: str) -> NDArray[np.float64]:
    """A sequence of numbers in 0..1 as an array of shape (m,), m > 0."""
    try:
        array = np.array(list(values), dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or len(array) == 0 or not ((array >= 0) & (array <= 1)).all():
        raise invalid(name, rule, repr(values), "One is written (0.99,).")
    return array


def error_p_value(errors: NDArray[np.int64], cases: NDArray[np.int64], largest_error: float) -> NDArray[np.float64]:
    """P(so few errors or fewer) if the true error rate is `largest_error`: small means it is lower.

    It is at most `level` exactly if the Clopper-Pearson upper bound at that level is at most `largest_error`.
    """
    return np.asarray(bdtr(errors, cases, largest_error))


# Shares of the largest bet that can be paid: large ones win if there is hardly an error, small ones otherwise.
_BETS = np.concatenate([np.geomspace(0.02, 0.6, 9), 1.0 - np.geomspace(0.3, 0.001, 7)])


def cluster_p_value(
    cases: NDArray[np.int64], errors: NDArray[np.int64], largest_error: float, largest_cluster: int
) -> float:
    """As `error_p_value` for cases in clusters: small means that the true error rate is lower than `largest_error`.

    Cases of one cluster may depend on each other in any way; clusters are independent draws of at most
    `largest_cluster` cases each. If the error rate is `largest_error` or more, errors - largest_error * cases of a
    cluster has an expectation of at least 0, so a bet that it is negative does not grow the capital on average; the
    inverse of the capital is a p-value for any number of clusters (Waudby-Smith and Ramdas 2024).

    Args:
        cases: Cases of each cluster.
        errors: How many of them are wrong.
        largest_error: The promised error rate.
        largest_cluster: Most cases that a cluster can have.
    """
    capital = _log_capital(cases, errors, largest_error, largest_cluster)
    return float(min(1.0, np.exp(-(logsumexp(capital) - math.log(len(capital))))))


def clusters_needed(
    cases: NDArray[np.int64], errors: NDArray[np.int64], largest_error: float, largest_cluster: int, level: float
) -> float:
    """How many times as many clusters like these would have a `cluster_p_value` of at most `level`; may be infinite.

    The logarithm of each bet's capital grows in proportion to the number of clusters.
    """
    capital = _log_capital(cases, errors, largest_error, largest_cluster)
    if capital.max() <= 0:
        return math.inf
    return float((math.log(len(capital)) - math.log(level)) / capital.max())


def _log_capital(
    cases: NDArray[np.int64], errors: NDArray[np.int64], largest_error: float, largest_cluster: int
) -> NDArray[np.float64]:
    """Logarithm of the capital of each bet that the error rate is lower than `largest_error`."""
    surplus = (errors - largest_error * cases) / largest_cluster
    values, counts = np.unique(surplus, return_counts=True)
    bets = _BETS / (1.0 - largest_error)
    return np.asarray(counts @ np.log1p(-bets * values[:, None]), dtype=np.float64)


def interval(hits: Any, cases: Any, *, confidence: float = 0.95) -> tuple[Any, Any]:
    """Two-sided Clopper-Pearson interval for a share; (0, 1) for no cases.

    >>> low, high = interval(95, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.887, 0.984)
    """
    tail = (1.0 - fraction("confidence", confidence)) / 2.0
    return lower_bound(hits, cases, 1.0 - tail), 1.0 - lower_bound(np.subtract(cases, hits), cases, 1.0 - tail)


def cluster_interval(
    cases: NDArray[np.int64], errors: NDArray[np.int64], largest_cluster: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Two-sided interval for the share of cases that is right, for cases in clusters."""
    tail = (1.0 - fraction("confidence", confidence)) / 2.0
    low = 1.0 - cluster_upper_bound(cases, errors, largest_cluster, tail)
    return low, cluster_upper_bound(cases, cases - errors, largest_cluster, tail)


def cluster_upper_bound(
    cases: NDArray[np.int64], errors: NDArray[np.int64], largest_cluster: int, level: float
) -> float:
    """One-sided upper bound for the error rate of cases in clusters: `cluster_p_value` inverted by bisection.

    The p-value falls as the rate that it tests rises, because every factor of the capital grows with it.
    """
    low, high = 0.0, 1.0  # the rate `high` is excluded, or 1; the rate `low` is not
    for _ in range(30):
        middle = (low + high) / 2.0
        if cluster_p_value(cases, errors, middle, largest_cluster) <= level:
            high = middle
        else:
            low = middle
    return high


def lower_bound(hits: Any, cases: Any, confidence: float) -> Any:
    """One-sided Clopper-Pearson lower bound for a share; 0 without hits."""
    hits, cases = np.asarray(hits), np.asarray(cases)
    bound = betaincinv(np.maximum(hits, 1), cases - hits + 1, 1.0 - confidence)
    return np.where(hits > 0, bound, 0.0)[()]


def tolerance_rank(cases: int, share: float, level: float) -> int:
    """The largest k with P(Binomial(cases, share) < k) at most `level`; 0 if there is none.

    With that probability at most, the k-th smallest of the values of independent cases lies above a value which `share`
    of the stream does not exceed (tolerance limits, Wilks 1941).

    >>> tolerance_rank(59, 0.05, 0.05), tolerance_rank(58, 0.05, 0.05)
    (1, 0)
    """
    return int((bdtr(np.arange(cases), cases, share) <= level).sum())


def cases_without_error(target_accuracy: float, level: float) -> int:
    """The fewest cases that, all right, show an accuracy of `target_accuracy` at error probability `level`.

    >>> cases_without_error(0.99, 0.05)
    299
    """
    return math.ceil(math.log(level) / math.log(target_accuracy))


def cases_at_rate(error_rate: float, target_accuracy: float, level: float) -> int | None:
    """The fewest cases that show the target if errors keep coming at `error_rate`; None if that rate is too high.

    `MOST_CASES` means that many or more.

    >>> cases_at_rate(0.002, 0.99, 0.05)
    473
    """
    # At a rate this close below the target no number of cases decides; 1 - 0.95 is also not quite 0.05.
    if error_rate >= (1.0 - target_accuracy) * (1.0 - 1e-4):
        return None

    # The cases that k errors take per error fall as k grows, so "k errors are not too many" is monotone in k.
    def enough(errors: int) -> bool:
        cases = _cases_with(errors, target_accuracy, level)
        return cases >= MOST_CASES or error_rate * cases <= errors

    high = 1
    while not enough(high):
        high *= 2
    return _cases_with(bisect_left(range(high), True, key=enough), target_accuracy, level)


@lru_cache(maxsize=4096)
def _cases_with(errors: int, target_accuracy: float, level: float) -> int:
    """The fewest cases that show the target although `errors` of them are wrong, at most `MOST_CASES`."""

    def shown(cases: int) -> bool:
        return bool(bdtr(errors, cases, 1.0 - target_accuracy) <= level)

    return bisect_left(range(MOST_CASES), True, lo=1, key=shown)
