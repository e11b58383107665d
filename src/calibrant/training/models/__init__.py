"""Reference networks, networks of libraries, and your own."""

from calibrant.training.models.build import AveragedViews, Views, build_model, expected_input, model_names
from calibrant.training.models.libraries import ModelInput

__all__ = ["AveragedViews", "ModelInput", "Views", "build_model", "expected_input", "model_names"]
