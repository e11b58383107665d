"""Reference networks, and doors for yours."""

from calibrant.models.build import build_model, model_names

__all__ = ["build_model", "model_names"]
