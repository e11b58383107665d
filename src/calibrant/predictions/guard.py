"""The door of everything that reads predictions."""

from calibrant.errors import invalid
from calibrant.predictions.core import Predictions


def require_predictions(predictions: object, name: str = "predictions") -> None:
    """Refuse a bare array: whether it holds logits or probabilities is never guessed."""
    if not isinstance(predictions, Predictions):
        way_out = "Make them with Predictions.from_logits or Predictions.from_probabilities."
        raise invalid(name, "be Predictions", type(predictions).__name__, way_out)
