"""The loop: a recipe goes in, a run folder comes out."""

from typing import TYPE_CHECKING, Any

from calibrant.training.defaults import default_recipe
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run

if TYPE_CHECKING:
    from calibrant.training.engine import train

__all__ = ["Recipe", "Run", "default_recipe", "train"]


def __getattr__(name: str) -> Any:
    # Lightning Fabric takes seconds to import; reading a recipe or a run must not wait for it.
    if name != "train":
        raise AttributeError(f"module 'calibrant.training' has no attribute {name!r}")
    from calibrant.training.engine import train

    return train
