"""The paper's high-confidence set S: how large it is, how right, how well calibrated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.display import ShownFields
from calibrant.metrics.binning import bin_edges, check_bins, edge_precision, rounded, sum_bins
from calibrant.metrics.tops import Tops, Weights, weighted_rows
from calibrant.predictions import Predictions, require_predictions


@dataclass(frozen=True)
class ConfidentSet(ShownFields):
    """The rows with confidence >= threshold.

    Attributes:
        threshold: Least confidence of the set.
        share: Their part of all rows, |S| / n.
        accuracy: Share of them that are right; None where there are none.
        ece: Their ECE over equal-width bins on [0, 1], as in the paper; None where there are none. For threshold in the
            last bin that is |accuracy - mean confidence|.
        ece_inside: Their ECE over equal-width bins on [threshold, 1]; None where there are none.
    """

    threshold: float
    share: float
    accuracy: float | None
    ece: float | None
    ece_inside: float | None


def check_threshold(threshold: float) -> float:
    """Refuse a threshold outside 0..1."""
    return fraction("thresholds", threshold, ends=True)


def is_confident(predictions: Predictions, threshold: float) -> NDArray[np.bool_]:
    """Which rows have confidence >= threshold, threshold rounded to the precision of the confidences."""
    require_predictions(predictions)
    limit = rounded(np.asarray([check_threshold(threshold)]), edge_precision(predictions))
    return np.asarray(predictions.confidence >= limit[0])


def confident_set(
    predictions: Predictions,
    threshold: float = 0.95,
    *,
    n_bins: int = DEFAULT_N_BINS,
    weights: Weights | None = None,
) -> ConfidentSet:
    """Share, accuracy and calibration error of the rows with confidence >= threshold.

    >>> confident_set(Predictions.from_probabilities([[0.98, 0.02], [0.6, 0.4]], [0, 1])).share
    0.5
    """
    if weights is not None:
        return weighted_rows(predictions, weights).confident(check_threshold(threshold), check_bins(n_bins))
    return confident_of(Tops.of(predictions), check_threshold(threshold), check_bins(n_bins))


def confident_of(tops: Tops, threshold: float, n_bins: int) -> ConfidentSet:
    """The high-confidence set of confidences."""
    chosen = tops.confidence >= rounded(np.asarray([threshold]), tops.precision)
    share = float(chosen.mean())
    if not chosen.any():
        return ConfidentSet(float(threshold), 0.0, None, None, None)
    confidence, correct = tops.confidence[chosen], tops.correct[chosen]
    whole = sum_bins(confidence, correct, bin_edges(n_bins, tops.precision))
    inside = sum_bins(confidence, correct, bin_edges(n_bins, tops.precision, low=threshold))
    return ConfidentSet(float(threshold), share, float(correct.mean()), whole.expected_error, inside.expected_error)
