"""What the pictures add to the metrics: intervals, the noise-floor band, and counts of what is automated.

The page repeats `wilson` and `automated` in JavaScript; the browser tests hold the two to the same digits.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics import Bins, confident_set, reliability_bins
from calibrant.metrics.intervals import wilson
from calibrant.predictions import Predictions, require_predictions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bands:
    """What chance does to a reliability diagram; arrays of shape (n_bins,), NaN in empty bins.

    Attributes:
        bins: Counts, confidences and accuracies.
        low: Lower end of the 95 % Wilson interval of each bin's accuracy.
        high: Its upper end.
        floor_low: Where the middle 95 % of the accuracies of a perfectly calibrated model with the same count and mean
            confidence begin (binomial quantile; rows of one bin differ little in confidence).
        floor_high: Where they end.
    """

    bins: Bins
    low: Floats
    high: Floats
    floor_low: Floats
    floor_high: Floats


@dataclass(frozen=True)
class Automated:
    """What a model decides alone when it may decide at confidence `threshold` and above.

    `accuracy`, its interval and `ece` are None where nothing is automated: the mean of nothing is not a number.
    """

    threshold: float
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


def reliability_bands(predictions: Predictions, n_bins: int = DEFAULT_N_BINS) -> Bands:
    """Equal-width bins with the interval of each accuracy and the band of a perfectly calibrated model."""
    from scipy.stats import binom

    require_predictions(predictions)
    bins = reliability_bins(predictions, n_bins)
    low, high = wilson(bins.correct_sum, bins.count)
    some = bins.count > 0
    ends = []
    for quantile in (0.025, 0.975):
        band = np.full(n_bins, np.nan)
        band[some] = binom.ppf(quantile, bins.count[some], np.clip(bins.confidence[some], 0.0, 1.0)) / bins.count[some]
        ends.append(band)
    return Bands(bins, low, high, ends[0], ends[1])


def automated(predictions: Predictions, threshold: float, *, n_bins: int = DEFAULT_N_BINS) -> Automated:
    """What is decided alone at confidence `threshold` and above, as counts."""
    require_predictions(predictions)
    chosen = confident_set(predictions, threshold, n_bins=n_bins)
    # Shares of whole counts: multiplying back is exact after rounding for any set that fits into memory.
    count = round(chosen.share * len(predictions))
    right = 0 if chosen.accuracy is None else round(chosen.accuracy * count)
    return Automated(chosen.threshold, len(predictions), count, right, chosen.ece)


def automated_over(
    predictions: Predictions, thresholds: Iterable[float], *, n_bins: int = DEFAULT_N_BINS
) -> list[Automated]:
    """`automated` for several thresholds."""
    return [automated(predictions, float(threshold), n_bins=n_bins) for threshold in thresholds]
