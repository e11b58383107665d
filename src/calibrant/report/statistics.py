"""The numbers behind the pictures: bins with bands, curves over the threshold, intervals.

Everything here takes two arrays: `confidence` (top probability, shape (n,), in [0, 1]) and `correct` (bool, same).
The page repeats `wilson` and `at_threshold` in JavaScript; the browser tests hold the two to the same digits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# 95 % two-sided: scipy.stats.norm.ppf(0.975), written out because the page needs the very same digits.
NORMAL_QUANTILE = 1.959963984540054


@dataclass(frozen=True)
class Bins:
    """A binned reliability diagram; every array has shape (n_bins,), empty bins hold NaN except in `count`.

    Attributes:
        edges: Shape (n_bins + 1,); bin `b` is `(edges[b], edges[b + 1]]`, 0 belongs to the first.
        count: Samples in the bin.
        right: Of these, the correct ones.
        confidence: Mean confidence.
        accuracy: Share that is correct.
        low: Lower end of the 95 % Wilson interval of `accuracy`.
        high: Upper end.
        floor_low: Where 95 % of the accuracies of a perfectly calibrated model with this bin's count and mean
            confidence begin (binomial quantile).
        floor_high: Where they end.
    """

    edges: Floats
    count: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    floor_low: Floats
    floor_high: Floats


@dataclass(frozen=True)
class Automated:
    """What a model decides alone when it may decide at confidence `delta` and above.

    `accuracy`, its interval and `ece` are None where nothing is automated: the mean of nothing is not a number.
    """

    delta: float
    cases: int
    automated: int
    right: int
    ece: float | None

    @property
    def share(self) -> float:
        """Automation rate |S| / n."""
        return self.automated / self.cases

    @property
    def accuracy(self) -> float | None:
        """Share of the automated cases that is right."""
        return self.right / self.automated if self.automated else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % Wilson interval of the accuracy."""
        if not self.automated:
            return None
        low, high = wilson(self.right, self.automated)
        return float(low), float(high)

    @property
    def reviewed(self) -> int:
        """Cases that go to a person."""
        return self.cases - self.automated

    def cost(self, *, error: float, review: float) -> float:
        """Cost of 1,000 cases: wrong automated ones at `error` each, reviewed ones at `review` each."""
        return 1000 * ((self.automated - self.right) * error + self.reviewed * review) / self.cases


def wilson(successes: float | NDArray[np.int64], trials: float | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """95 % Wilson score interval of a proportion (Wilson 1927); NaN where there are no trials.

    >>> low, high = wilson(98, 100)
    >>> print(f"{low:.4f} {high:.4f}")
    0.9300 0.9945
    """
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    z = NORMAL_QUANTILE
    with np.errstate(invalid="ignore", divide="ignore"):
        share = k / n
        centre = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n successes the exact ends are 0 and 1; rounding would leave 1e-17 behind.
    low = np.where(k == 0, 0.0, np.maximum(centre - half, 0.0))
    high = np.where(k == n, 1.0, np.minimum(centre + half, 1.0))
    empty = n == 0
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def reliability_bins(confidence: Floats, correct: NDArray[np.bool_], *, n_bins: int = 10) -> Bins:
    """Bin confidences into equal widths with a Wilson interval and the band of a perfectly calibrated model."""
    from scipy.stats import binom

    edges = np.linspace(0.0, 1.0, n_bins + 1)
    member = bin_of(confidence, edges)
    count = np.bincount(member, minlength=n_bins)
    right = np.bincount(member, weights=correct, minlength=n_bins).astype(np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(member, weights=confidence, minlength=n_bins) / count
        accuracy = right / count
    low, high = wilson(right, count)
    floor = [np.full(n_bins, np.nan), np.full(n_bins, np.nan)]
    some = count > 0
    for band, quantile in zip(floor, (0.025, 0.975), strict=True):
        band[some] = binom.ppf(quantile, count[some], np.clip(mean[some], 0.0, 1.0)) / count[some]
    return Bins(edges, count, right, mean, accuracy, low, high, floor[0], floor[1])


def bin_of(confidence: Floats, edges: Floats) -> NDArray[np.int64]:
    """Index of the bin `(lo, hi]` that holds each confidence; 0 is in the first."""
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2).astype(np.int64)


def at_threshold(confidence: Floats, correct: NDArray[np.bool_], delta: float, *, n_bins: int = 10) -> Automated:
    """What is decided alone at confidence `delta` and above; its ECE uses the bins of the whole set."""
    chosen = confidence >= delta
    automated = int(chosen.sum())
    ece = None
    if automated:
        bins = reliability_sums(confidence[chosen], correct[chosen], n_bins)
        ece = float(np.abs(bins[1] - bins[2]).sum() / automated)
    return Automated(delta, len(confidence), automated, int(correct[chosen].sum()), ece)


def reliability_sums(confidence: Floats, correct: NDArray[np.bool_], n_bins: int) -> Floats:
    """Count, sum of confidences and number of right answers of each equal-width bin; shape (3, n_bins)."""
    member = bin_of(confidence, np.linspace(0.0, 1.0, n_bins + 1))
    columns = (np.ones_like(confidence), confidence, correct)
    return np.stack([np.bincount(member, weights=column, minlength=n_bins) for column in columns])


def risk_over_coverage(confidence: Floats, correct: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Error among the most confident share, for every share that a threshold can give.

    Ties are automated together or not at all, as a threshold does it, so tied confidences make one point.

    Returns:
        `coverage` in (0, 1], ascending, and `risk` (the error rate among that share), both of shape (distinct values,).
    """
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    wrong = np.cumsum(~correct[order])
    last = np.append(sorted_confidence[1:] != sorted_confidence[:-1], True)
    taken = np.flatnonzero(last) + 1
    return taken / len(confidence), wrong[taken - 1] / taken
