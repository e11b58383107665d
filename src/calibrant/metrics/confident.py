"""The paper's high-confidence set S_delta: how large it is, how right, how well calibrated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import invalid
from calibrant.metrics.binning import bin_edges, check_bins, edge_precision, rounded, sum_bins
from calibrant.predictions import Predictions, require_predictions


@dataclass(frozen=True)
class ConfidentSet:
    """The rows with confidence >= delta.

    Attributes:
        delta: The threshold.
        share: Their part of all rows, |S_delta| / n.
        accuracy: Share of them that are right; None where there are none.
        ece: Their ECE over equal-width bins on [0, 1], as in the paper; None where there are none. For delta in the
            last bin that is |accuracy - mean confidence|.
        ece_inside: Their ECE over equal-width bins on [delta, 1]; None where there are none.
    """

    delta: float
    share: float
    accuracy: float | None
    ece: float | None
    ece_inside: float | None


def check_delta(delta: float) -> float:
    """Refuse a threshold outside 0..1."""
    if not isinstance(delta, int | float | np.number):
        raise invalid("thresholds", "be numbers", repr(delta))
    if not 0.0 <= delta <= 1.0:
        raise invalid("thresholds", "lie in 0..1", delta, "They are fractions: 0.95, not 95.")
    return float(delta)


def is_confident(predictions: Predictions, delta: float) -> NDArray[np.bool_]:
    """Which rows have confidence >= delta, delta rounded to the precision of the confidences."""
    require_predictions(predictions)
    limit = rounded(np.asarray([check_delta(delta)]), edge_precision(predictions))
    return np.asarray(predictions.confidence >= limit[0])


def confident_set(predictions: Predictions, delta: float = 0.95, *, n_bins: int = 10) -> ConfidentSet:
    """Share, accuracy and calibration error of the rows with confidence >= delta.

    >>> confident_set(Predictions.from_probabilities([[0.98, 0.02], [0.6, 0.4]], [0, 1])).share
    0.5
    """
    chosen = is_confident(predictions, delta)
    share = float(chosen.mean())
    if not chosen.any():
        return ConfidentSet(float(delta), 0.0, None, None, None)
    confidence, correct = predictions.confidence[chosen], predictions.correct[chosen]
    precision = edge_precision(predictions)
    whole = sum_bins(confidence, correct, bin_edges(check_bins(n_bins), precision))
    inside = sum_bins(confidence, correct, bin_edges(n_bins, precision, low=float(delta)))
    return ConfidentSet(float(delta), share, float(correct.mean()), whole.expected_error, inside.expected_error)
