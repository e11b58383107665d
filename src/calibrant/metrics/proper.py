"""Accuracy and proper scores."""

from calibrant.metrics.totals import brier_rows
from calibrant.predictions import Predictions, require_predictions


def accuracy(predictions: Predictions) -> float:
    """Share of rows whose prediction is the target."""
    require_predictions(predictions)
    return float(predictions.correct.mean())


def error_rate(predictions: Predictions) -> float:
    """Test error: share of rows whose prediction is not the target."""
    require_predictions(predictions)
    return float((~predictions.correct).mean())


def negative_log_likelihood(predictions: Predictions) -> float:
    """Mean of minus the log probability of the target, in nats; infinite where a target has probability 0."""
    require_predictions(predictions)
    return float(predictions.nll.mean())


def brier_score(predictions: Predictions) -> float:
    """Mean over rows of the squared distance to the one-hot target, summed over classes: in 0..2."""
    require_predictions(predictions)
    return float(brier_rows(predictions).mean())
