"""Sequential tests by betting. Their results stay valid if you look after every case.

A player bets against a hypothesis, at odds that are fair or worse while it is true. Then the probability that the
capital ever reaches 1 / level is at most `level`, however often one looks (Ville 1939). The functions return the
logarithm of the capital after each case.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]
# How much larger the odds of an error may have become; each is bet on with an equal part of the capital.
_ODDS = np.geomspace(1.1, 50.0, 12)
# Exponents of the confidence sequence. Small ones serve long streams, large ones rare errors and short streams.
_EXPONENTS = np.geomspace(0.01, 5.0, 20)
# Numbers of bins of the histograms of ranks that are bet on, and the cases that each bin counts before the first one.
_RESOLUTIONS = (2, 6, 20)
_IMAGINED = (10.0,)
# The same for ranks of classes with a bin per class. A small number lets a bet learn quickly that many classes changed,
# a large one keeps it from losing much while few did.
_IMAGINED_PER_CLASS = (2.0, 10.0, 40.0)
# How much larger the odds of a single class may have become.
_ONE_CLASS_ODDS = (2.0, 5.0)
# Each bet on ranks begins this much later than the one before: fifty of them serve 50,000 cases.
_SPACING = 1.2
# Cases that are worked on at once.
_BLOCK = 256


def not_begun(cases: NDArray[np.int64]) -> Floats:
    """Part of the capital that has not been bet before case 1, 2, ...: 1 / (1 + ln case).

    Nobody knows when a drift will begin, so a new bet begins at every case. The k-th bet gets
    `not_begun(k) - not_begun(k + 1)` of the capital. These shares add up to 1 and fall slowly.
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

    The expected capital does not grow while the probability of an error, given everything before, is at most the
    promised one. Cases of one cluster may depend on each other in any way: a cluster is one bet, see `log_ratios`.

    Args:
        errors: Whether each case is wrong, in order, shape (..., n); for clusters, how many cases of each are wrong.
        largest_error: The promised error rate.
        cases: Number of cases of each cluster.
        largest: Largest number of cases that a cluster can have.
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
    """Logarithm of the factor by which each case multiplies the capital, for every error rate that is bet on.

    For an error rate q and the promised one p the factor is 1 + bet * (errors - p * cases) / largest with
    bet = (q - p) / (p (1 - p)). For single cases that is q / p for an error and (1 - q) / (1 - p) for a right case. For
    clusters its expectation is at most 1 while a cluster has at most p * cases errors on average, however they depend
    on each other. It is positive while no cluster has more than `largest` cases.
    """
    odds = _ODDS * largest_error / (1.0 - largest_error)
    rates = odds / (1.0 + odds)
    surplus = (errors - largest_error * np.asarray(cases)) / largest
    bets = (rates - largest_error) / (largest_error * (1.0 - largest_error))
    return [np.log1p(bet * surplus) for bet in bets]


def labels_to_notice(largest_error: float, level: float, *, after: int = 0, largest: int = 1) -> int:
    """Number of labels by which errors that become twice as frequent as promised are noticed in 9 of 10 streams.

    Simulated streams noticed it by then in 93 to 100 %, from 70 to 99 % accuracy (scripts/promise_worlds_monitor.py).
    A change after `after` labels takes longer: bets that begin late have small shares. Cases of clusters of size
    `largest` are right or wrong together; the labels are of whole clusters.
    """
    doubled = min(2.0 * largest_error, (1.0 + largest_error) / 2.0)
    win, loss = np.array(log_ratios(np.array([1, 0]), largest_error)).T
    gains = doubled * win + (1.0 - doubled) * loss
    best = int(np.argmax(gains))
    gain = float(gains[best])
    deviation = math.sqrt(doubled * (1.0 - doubled)) * float(win[best] - loss[best])
    loss_before = -float(largest_error * win[best] + (1.0 - largest_error) * loss[best])
    # Bets that begin near the change work together: each begins with its share and misses or loses a little.
    change = after // largest + 1
    nearby = np.linspace(max(1.0, change - 10 / loss_before), change, 1000)
    starts = np.unique(np.concatenate([nearby, np.linspace(change, change + 10 / gain, 1000)]).astype(np.int64))
    missed = np.maximum((change - starts) * loss_before, (starts - change) * gain)
    share = float(
        ((not_begun(starts[:-1]) - not_begun(starts[1:])) * np.exp(-np.maximum(missed[:-1], missed[1:]))).sum()
    )
    needed = math.log(len(_ODDS) / level) - math.log(share)
    # The smallest n with n * gain - 1.28 * sqrt(n) * deviation >= needed.
    root = (1.2816 * deviation + math.sqrt((1.2816 * deviation) ** 2 + 4.0 * gain * needed)) / (2.0 * gain)
    return largest * math.ceil(root * root)


def error_bounds(
    errors: NDArray[np.int64],
    cases: NDArray[np.int64],
    level: float,
    *,
    clusters: NDArray[np.int64] | None = None,
    largest: int = 1,
) -> tuple[Floats, Floats]:
    """Confidence sequence for the mean error rate: lower and upper ends after each of some numbers of cases.

    With probability at least 1 - level all intervals hold at once, for the average of the true error rates of the cases
    so far, even if these rates change. For an exponent s, exp(s * errors - n * log(1 + mean * (e^s - 1))) is at most a
    product whose expectation does not grow (Howard et al. 2021: sub-Bernoulli). At the ends, the mixture over exponents
    reaches 2 / level. The same holds for any number between 0 and 1 instead of an error, such as the share
    errors / largest of a cluster.

    `errors` counts those among the first `cases`, and `clusters` the clusters that these cases make, all of shape (m,);
    without clusters all cases are independent.
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
        excluded = np.logaddexp.reduce(_EXPONENTS * hits - growth, axis=1) >= limit
        low, high = np.where(excluded, middle, low), np.where(excluded, high, middle)
    return low


def conformal_ranks(reference: NDArray[np.generic], new: NDArray[np.generic], *, seed: int = 0) -> Floats:
    """Rank of each new value among the reference, the new values before it and itself, divided by their number.

    Ties are broken at random. If reference and new values are exchangeable, as independent draws from one distribution
    are, these ranks are independent and uniform on (0, 1), for a reference of any size (Vovk et al. 2005). A comparison
    with the histogram of the reference would assume that the reference shows its distribution exactly.

    >>> conformal_ranks(np.array([0.1, 0.2, 0.3]), np.array([0.25])).round(1).tolist()
    [0.7]
    """
    below, equal = np.empty(len(new), dtype=np.int64), np.empty(len(new), dtype=np.int64)
    known = np.sort(np.asarray(reference))
    for start in range(0, len(new), _BLOCK):
        block = slice(start, start + _BLOCK)
        values = np.asarray(new[block])
        left, right = np.searchsorted(known, values, side="left"), np.searchsorted(known, values, side="right")
        earlier = np.tri(len(values), k=-1, dtype=np.bool_)
        below[block] = left + ((values < values[:, None]) & earlier).sum(axis=1)
        equal[block] = right - left + ((values == values[:, None]) & earlier).sum(axis=1)
        # Two sorted runs: a stable sort merges them in linear time.
        known = np.sort(np.concatenate([known, np.sort(values)]), kind="stable")
    among = len(reference) + np.arange(1, len(new) + 1)
    draws = np.random.default_rng(seed).random(len(new))
    return np.asarray((below + draws * (equal + 1)) / among)


def first_cases(n: int) -> NDArray[np.int64]:
    """Cases, counted from 0, at which the bets on n ranks begin, and the beginning of the next bet after them.

    A bet begins at each case first, then ever more rarely.
    """
    starts, following = [0], 1.0
    while starts[-1] < n:
        starts.append(int(following))
        following = max(following + 1.0, following * _SPACING)
    return np.array(starts, dtype=np.int64)


def rank_capital(ranks: Floats, *, classes: int | None = None) -> Floats:
    """Bet that ranks are not spread evenly over (0, 1).

    Each bet keeps histograms of the ranks since it began and bets on the next rank accordingly. While ranks are
    independent and uniform, each step is fair. If the values are classes, bets are also made with a bin per class, on
    all bins and on each single one. The bins must not follow the shares of the reference: ranks are uniform over all
    references, not given one of them.
    """
    n = len(ranks)
    starts = first_cases(n)
    left = not_begun(starts + 1)
    players: list[tuple[int, tuple[float, ...], tuple[float, ...]]] = [(bins, _IMAGINED, ()) for bins in _RESOLUTIONS]
    if classes is not None:
        players.append((classes, _IMAGINED_PER_CLASS, _ONE_CLASS_ODDS))
    # The share of a bet does not depend on n. Otherwise a later look would see another capital at an earlier case.
    shares = np.log(left[:-1] - left[1:]) - np.log(sum(len(imagined) + len(odds) for _, imagined, odds in players))
    capital = np.log(left[np.searchsorted(starts, np.arange(n), side="right")])
    for bins, imagined, odds in players:
        place = _bin_of(ranks, bins)
        # Earlier ranks in the same bin.
        order = np.argsort(place, kind="stable")
        before = np.argsort(order) - np.searchsorted(place[order], place)
        for start, share in zip(starts[:-1], shares, strict=True):
            same = before[start:] - np.bincount(place[:start], minlength=bins)[place[start:]]
            for bet in _rank_bets(same, bins, imagined, odds):
                capital[start:] = np.logaddexp(capital[start:], share + bet)
    return capital


def _rank_bets(
    same: NDArray[np.int64], bins: int, imagined: Sequence[float], odds: Sequence[float]
) -> Iterator[Floats]:
    """Capital of each kind of bet after each rank, of which `same` earlier ones were in the same bin.

    - By histograms: the next rank falls into a bin as often as ranks did so far, after some imagined ones.
    - On one bin: its odds became `odds` times as large; each bin has an equal part of the capital. After n ranks of
      which c_j are in bin j, that is (bins / (odds + bins - 1))^n * mean_j odds^c_j. A rank in a bin with c earlier
      ones adds (odds - 1) * odds^c to the sum over bins.
    """
    seen = np.arange(len(same))
    for number in imagined:
        # Logarithm of the probability of this bin by the histogram, over 1 / bins.
        yield np.cumsum(np.log(same + number) - np.log(seen / bins + number))
    for ratio in odds:
        added = np.log(ratio - 1.0) + same * np.log(ratio)
        total = np.logaddexp.accumulate(np.concatenate([[np.log(bins)], added]))[1:]
        yield total + (seen + 1) * np.log(bins / (ratio + bins - 1.0)) - np.log(bins)


def _bin_of(ranks: Floats, bins: int) -> NDArray[np.int64]:
    return np.minimum((ranks * bins).astype(np.int64), bins - 1)


def likeliest_start(ranks: Floats, *, classes: int | None = None) -> int:
    """Case, counted from 0, at which a bet on ranks of shape (n,) had to begin to win most by the last case."""
    tried, step = first_cases(len(ranks))[:-1], len(ranks)
    while True:
        best = int(tried[np.argmax([final_rank_capital(ranks[start:], classes) for start in tried])])
        following = [*tried[tried > best].tolist(), len(ranks)][0]
        step = min(step, following - best) // 4
        if step < 1:
            return best
        # Bets begin ever more rarely; around the best of them others may have won more.
        tried = np.arange(max(best - 4 * step, 0), min(best + 4 * step + 1, len(ranks)), step)


def final_rank_capital(ranks: Floats, classes: int | None = None) -> float:
    """Capital after the last case of bets by histograms that begin with the first one; the order does not matter."""
    histograms = [(bins, imagined) for bins in _RESOLUTIONS for imagined in _IMAGINED]
    if classes is not None:
        histograms += [(classes, imagined) for imagined in _IMAGINED_PER_CLASS]
    capitals = []
    for bins, imagined in histograms:
        counts = np.bincount(_bin_of(ranks, bins), minlength=bins) + imagined
        gain = gammaln(counts).sum() - bins * gammaln(imagined) + len(ranks) * np.log(bins)
        capitals.append(gain - gammaln(counts.sum()) + gammaln(bins * imagined))
    return float(np.logaddexp.reduce(capitals) - np.log(len(capitals)))
