"""The loop: a recipe goes in, a run folder comes out."""

from typing import TYPE_CHECKING, Any

from calibrant.training.defaults import default_recipe
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run

if TYPE_CHECKING:
    from calibrant.training.engine import TrainingDiverged, resume, train
    from calibrant.training.torchdata import TorchData

__all__ = ["Recipe", "Run", "TorchData", "TrainingDiverged", "default_recipe", "resume", "train"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import, the engine more; reading a recipe or a run must not wait for them.
    if name not in {"TorchData", "TrainingDiverged", "resume", "train"}:
        raise AttributeError(f"module 'calibrant.training' has no attribute {name!r}")
    from calibrant.training import engine

    return getattr(engine, name)
