"""Reference networks, and doors for yours."""

from calibrant.training.models.build import build_model, expected_input, model_names
from calibrant.training.models.inputs import ModelInput
from calibrant.training.models.weights import check_weights, head_of

__all__ = ["ModelInput", "build_model", "check_weights", "expected_input", "head_of", "model_names"]
