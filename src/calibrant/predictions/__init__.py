"""What a trained model says: the one thing that metrics, post-hoc calibration, routing and reports read."""

from calibrant.predictions.checks import Kind
from calibrant.predictions.core import Predictions

__all__ = ["Kind", "Predictions"]
