"""Adapters for other people's training loops.

`lightning`, `transformers` and `sklearn` for these frameworks; `on_device` for calibrators inside torch networks;
`any_loop` for every other loop; `meters` for torchmetrics. Each module needs its own framework and says how to install
a missing one, so nothing is imported here before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.integrations.meters import (
        BrierScore,
        CalibrationError,
        ClasswiseCalibrationError,
        ConfidentSetMeter,
        NegativeLogLikelihood,
    )

__all__ = ["BrierScore", "CalibrationError", "ClasswiseCalibrationError", "ConfidentSetMeter", "NegativeLogLikelihood"]


def __getattr__(name: str) -> Any:
    # torchmetrics takes a second to import; only programs that use a meter wait for it.
    if name not in __all__:
        raise AttributeError(f"module 'calibrant.integrations' has no attribute {name!r}")
    return getattr(import_module("calibrant.integrations.meters"), name)
