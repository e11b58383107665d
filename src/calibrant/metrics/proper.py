"""Accuracy and proper scores."""

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.tops import Weights, weighted_rows
from calibrant.metrics.totals import brier_rows
from calibrant.predictions import Predictions, require_predictions


def accuracy(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Share of rows whose prediction is the target; `weights` as everywhere: a column, or one number per row."""
    require_predictions(predictions)
    return _mean(predictions, predictions.correct, weights)


def error_rate(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Test error: share of rows whose prediction is not the target."""
    require_predictions(predictions)
    return _mean(predictions, ~predictions.correct, weights)


def negative_log_likelihood(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean of minus the log probability of the target, in nats; infinite where a target has probability 0."""
    require_predictions(predictions)
    return _mean(predictions, predictions.nll, weights)


def brier_score(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean over rows of the squared distance to the one-hot target, summed over classes: in 0..2."""
    require_predictions(predictions)
    return _mean(predictions, brier_rows(predictions), weights)


def _mean(predictions: Predictions, values: NDArray[np.generic], weights: Weights | None) -> float:
    if weights is None:
        return float(values.mean())
    return weighted_rows(predictions, weights).mean(values)
