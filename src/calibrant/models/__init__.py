"""Reference networks, and doors for yours."""

from calibrant.models.build import build_model, expected_input, model_names
from calibrant.models.inputs import ModelInput
from calibrant.models.weights import check_weights, head_of

__all__ = ["ModelInput", "build_model", "check_weights", "expected_input", "head_of", "model_names"]
