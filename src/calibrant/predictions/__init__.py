"""What a trained model says: the one thing that metrics, post-hoc calibration, routing and reports read."""

from calibrant.predictions.checks import (
    SUM_TOLERANCE,
    Kind,
    Precision,
    as_class_names,
    as_scores,
    as_targets,
    refuse_scores,
)
from calibrant.predictions.core import Predictions
from calibrant.predictions.guard import require_predictions
from calibrant.predictions.rows import FEW_CLASSES, Rows, check_rows, check_tops, probabilities_of
from calibrant.predictions.threads import share

__all__ = [
    "FEW_CLASSES",
    "SUM_TOLERANCE",
    "Kind",
    "Precision",
    "Predictions",
    "Rows",
    "as_class_names",
    "as_scores",
    "as_targets",
    "check_rows",
    "check_tops",
    "probabilities_of",
    "refuse_scores",
    "require_predictions",
    "share",
]
