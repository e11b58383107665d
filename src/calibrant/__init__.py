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


_ROOMS = (
    "data",
    "executing",
    "integrations",
    "losses",
    "methods",
    "metrics",
    "models",
    "monitoring",
    "posthoc",
    "predictions",
    "pruning",
    "report",
    "routing",
    "samples",
    "serving",
    "study",
    "sweep",
    "training",
)


def __getattr__(name: str) -> Any:
    # Loaded on first use: a training loop that wants one loss should not wait for the rest.
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"calibrant.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    # For completion: what has not been loaded yet is offered too.
    return sorted({*globals(), *__all__, *_ROOMS})
