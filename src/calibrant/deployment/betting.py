"""Tests that may be looked at after every case: capital that grows only where the promise, or sameness, is broken.

A player bets against a hypothesis, at odds that are fair or worse while it is true. Then the probability that the
capital ever reaches 1/level is at most `level`, however often one looks (Ville 1939). All functions here take one
stream, or several along the first axes, and return the logarithm of the capital after each case.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Floats = NDArray[np.float64]
# How much larger the odds of an error may have become; each is bet on with an equal part of the capital.
_ODDS = np.geomspace(1.1, 50.0, 12)
# Exponents of the confidence sequence. Small ones serve long streams, large ones rare errors and short streams.
_EXPONENTS = np.geomspace(0.01, 5.0, 20)
# Histograms of ranks that are bet on, and the rows that each bin imagines to have seen before the first.
_RESOLUTIONS = (2, 6, 20)
_IMAGINED = 10.0
# Each bet on ranks begins this much later than the one before: fifty of them serve 50,000 cases.
_SPACING = 1.2


def not_begun(cases: NDArray[np.int64]) -> Floats:
    """The part of the capital that has not been bet before case 1, 2, ...: 1 / (1 + ln case).

    Nobody knows when a drift will begin, so the player begins a new bet at every case. What the k-th bet gets is
    `not_begun(k) - not_begun(k + 1)`: all together they get everything, and late ones still enough to be heard.
    """
    return np.asarray(1.0 / (1.0 + np.log(cases)))


def promise_capital(
    errors: NDArray[np.bool_] | NDArray[np.int64],
    largest_error: float,
    *,
    cases: NDArray[np.int64] | int = 1,
    largest: int = 1,
) -> Floats:
    """Bet that errors are more frequent than promised: likelihood ratios, mixed over error rates and first cases.

    For every error rate q above the promised one, (q / promised) for an error and (1 - q) / (1 - promised) for a right
    case multiply to a capital whose expectation does not grow while the probability of an error, given all that came
    before, is at most the promised one.

    Cases of one cluster may depend on each other in any way. Then a cluster is one bet, placed before its labels are
    seen, on (errors - promised * cases) / largest; see `log_ratios`.

    Args:
        errors: Whether each case is wrong, in order, shape (..., n); for clusters, how many cases of each are.
        largest_error: The promised error rate.
        cases: Cases of each cluster.
        largest: Most cases that a cluster can have.
    """
    bets = np.arange(1, errors.shape[-1] + 1)
    begun = np.log(not_begun(bets) - not_begun(bets + 1))
    parts = [np.broadcast_to(np.log(not_begun(bets + 1)), errors.shape)]
    for ratios in log_ratios(errors, largest_error, cases=cases, largest=largest):
        total = np.cumsum(ratios, axis=-1)
        # The bet that begins at case k holds exp(total[n] - total[k - 1]) after case n: one running sum serves all.
        own = total + np.logaddexp.accumulate(begun - (total - ratios), axis=-1)
        parts.append(own - np.log(len(_ODDS)))
    return np.asarray(np.logaddexp.reduce(parts, axis=0))


def log_ratios(
    errors: NDArray[np.bool_] | NDArray[np.int64],
    largest_error: float,
    *,
    cases: NDArray[np.int64] | int = 1,
    largest: int = 1,
) -> list[Floats]:
    """What each case multiplies the capital by, as a logarithm, for every error rate that is bet on.

    For an error rate q and the promised one p the factor is 1 + bet * (errors - p * cases) / largest with
    bet = (q - p) / (p (1 - p)). For single cases that is q / p for an error and (1 - q) / (1 - p) for a right case. For
    clusters its expectation is at most 1 while the errors of a cluster have an expectation of at most p * cases,
    however they depend on each other; it is positive while no cluster has more than `largest` cases.
    """
    odds = _ODDS * largest_error / (1.0 - largest_error)
    rates = odds / (1.0 + odds)
    surplus = (errors - largest_error * np.asarray(cases)) / largest
    bets = (rates - largest_error) / (largest_error * (1.0 - largest_error))
    return [np.log1p(bet * surplus) for bet in bets]


def error_bounds(
    errors: NDArray[np.int64],
    cases: NDArray[np.int64],
    level: float,
    *,
    clusters: NDArray[np.int64] | None = None,
    largest: int = 1,
) -> tuple[Floats, Floats]:
    """Confidence sequence for the mean error rate so far: lower and upper ends after each of some numbers of cases.

    With probability at least 1 - level all intervals hold at once, for the average of the true error rates of the cases
    so far, also where these rates change. For an exponent s, exp(s * errors - n * log(1 + mean * (e^s - 1))) is at most
    a product whose expectation does not grow, because the logarithm is concave (Howard et al. 2021: sub-Bernoulli).
    The ends are where the mixture over exponents reaches 2 / level. The same holds for any number between 0 and 1
    instead of an error, as the share errors / largest of a cluster: convexity makes its product smaller still.

    Args:
        errors: Errors among the first `cases`, shape (m,).
        cases: Numbers of cases, shape (m,).
        level: Probability that any interval fails.
        clusters: Numbers of clusters that these cases make; None where all are independent.
        largest: Most cases that a cluster can have.
    """
    draws = cases if clusters is None else clusters
    # From a mean per cluster, as a share of the largest, to a mean per case.
    scale = largest * draws / np.maximum(cases, 1)
    low = scale * _lower_end(errors / largest, draws, level / 2.0)
    return low, 1.0 - scale * _lower_end((cases - errors) / largest, draws, level / 2.0)


def _lower_end(errors: Floats, cases: NDArray[np.int64], level: float) -> Floats:
    limit = np.log(len(_EXPONENTS) / level)
    hits, rows = np.asarray(errors)[:, None], np.asarray(cases)[:, None]
    low, high = np.zeros(len(hits)), hits[:, 0] / np.maximum(rows[:, 0], 1)
    for _ in range(60):
        middle = (low + high) / 2.0
        growth = rows * np.log1p(middle[:, None] * np.expm1(_EXPONENTS))
        excluded = logsumexp(_EXPONENTS * hits - growth, axis=1) >= limit
        low, high = np.where(excluded, middle, low), np.where(excluded, high, middle)
    return low


def first_cases(n: int) -> NDArray[np.int64]:
    """Where the bets on ranks begin, counted from 0: at every case first, then ever more rarely."""
    found, at = [0], 1.0
    while at < n:
        found.append(int(at))
        at = max(at + 1.0, at * _SPACING)
    return np.array(found, dtype=np.int64)


def rank_capital(ranks: Floats) -> Floats:
    """Bet that ranks which should be spread evenly over (0, 1) are not.

    Each bet keeps a histogram of the ranks since it began and bets on the next rank as the histogram has it. While
    ranks are independent and uniform, each step is fair.

    Args:
        ranks: What `conformal_ranks` gives, shape (..., n).
    """
    n = ranks.shape[-1]
    starts = first_cases(n)
    left = np.append(not_begun(starts + 1), not_begun(np.array([n + 1])))
    # What has not begun yet is still there.
    total = np.broadcast_to(np.log(left[np.searchsorted(starts, np.arange(n), side="right")]), ranks.shape).copy()
    histograms = [_Histogram(ranks, bins) for bins in _RESOLUTIONS]
    for start, share in zip(starts.tolist(), np.log(left[:-1] - left[1:]), strict=True):
        since = total[..., start:]
        since[...] = np.logaddexp(since, share + _bet(histograms, start))
    return total


def likeliest_start(ranks: Floats) -> int:
    """The case, counted from 0, from which on a bet on ranks of shape (n,) would have won most by the last one."""
    histograms = [_Histogram(ranks, bins) for bins in _RESOLUTIONS]
    tried, step = first_cases(len(ranks)), len(ranks)
    best = 0
    while True:
        best = int(tried[np.argmax([_bet(histograms, int(start))[-1] for start in tried])])
        near = tried[np.searchsorted(tried, best) + 1 :][:1]
        step = min(step, int(near[0]) - best if len(near) else len(ranks) - best) // 4
        if step < 1:
            return best
        # Bets begin ever more rarely; around the best of them others may have won more.
        tried = np.arange(max(best - 4 * step, 0), min(best + 4 * step + 1, len(ranks)), step)


class _Histogram:
    """Which bin each rank is in, and how many earlier ones are in the same."""

    def __init__(self, ranks: Floats, bins: int) -> None:
        self.bins = bins
        self.place = np.minimum((ranks * bins).astype(np.int64), bins - 1)
        self.before = np.zeros_like(self.place)
        for each in range(bins):
            here = self.place == each
            np.copyto(self.before, np.cumsum(here, axis=-1) - 1, where=here)

    def capital(self, start: int) -> Floats:
        """Capital, from case `start` on, of bets by the histogram of the ranks since `start`."""
        bins, place = self.bins, self.place[..., start:]
        gone = np.stack([(self.place[..., :start] == each).sum(axis=-1) for each in range(bins)], axis=-1)
        before = self.before[..., start:] - np.take_along_axis(gone, place, axis=-1)
        seen = np.arange(place.shape[-1])
        # Probability of this bin by the histogram, over 1 / bins.
        return np.cumsum(np.log((before + _IMAGINED) / (seen / bins + _IMAGINED)), axis=-1)


def _bet(histograms: list[_Histogram], start: int) -> Floats:
    """Capital of the bets of all resolutions that begin at one case, mixed evenly."""
    capital = [histogram.capital(start) for histogram in histograms]
    return np.asarray(np.logaddexp.reduce(capital, axis=0) - np.log(len(histograms)))
