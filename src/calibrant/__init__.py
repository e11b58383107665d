"""Calibrant: train classifiers whose confidence can be trusted, and know what they may decide alone."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.metrics import Evaluation, compare, evaluate
    from calibrant.predictions import Predictions

__version__ = "0.2.0"
__all__ = ["Evaluation", "Predictions", "__version__", "compare", "evaluate"]

_HOME = {
    "Predictions": "calibrant.predictions",
    "Evaluation": "calibrant.metrics",
    "evaluate": "calibrant.metrics",
    "compare": "calibrant.metrics",
}


_PACKAGES = (
    "calibration",
    "decisions",
    "deployment",
    "integrations",
    "losses",
    "metrics",
    "predictions",
    "pruning",
    "report",
    "scale",
    "studies",
    "training",
)


def __getattr__(name: str) -> Any:
    # Loaded on first use: a training loop that wants one loss should not wait for the rest.
    from importlib import import_module

    if name == "samples":
        return import_module("calibrant.predictions.samples")
    if name in _PACKAGES:
        return import_module(f"calibrant.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    # For completion: what has not been loaded yet is offered too.
    return sorted({*globals(), *__all__, *_PACKAGES})
