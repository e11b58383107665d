"""Whether data sets and networks exist, found out before the first run; nothing large is read or built."""

from collections.abc import Iterable
from pathlib import Path

import torch

from calibrant.errors import invalid
from calibrant.own_code import digest, is_own
from calibrant.training.data import find_named, load_dataset, own_data, parse_spec
from calibrant.training.models import build_model, check_weights
from calibrant.training.recipe import Recipe


def check_inputs(recipes: Iterable[Recipe], *, data_dir: str | Path | None = None) -> None:
    """Refuse the first data set or network that is not there.

    What a file holds, and whether a network of the user's own takes these images, only the run itself finds out.
    """
    wanted = list(recipes)
    for data in dict.fromkeys(recipe.data.name for recipe in wanted):
        _check_data(data, data_dir)
    for model in dict.fromkeys(recipe.model.name for recipe in wanted):
        _check_model(model)
    for weights in dict.fromkeys(recipe.model.weights for recipe in wanted):
        if weights is not None:
            check_weights(weights)


def _check_data(name: str, data_dir: str | Path | None) -> None:
    if own := own_data(name):
        digest(own)  # refuses a module that does not exist
        return
    spec = parse_spec(name)
    if spec.path and spec.kind in ("arrays", "folder"):
        path = Path(spec.path).expanduser()
        if not (path.is_dir() if spec.kind == "folder" else path.is_file()):
            raise invalid("data", f"name an existing {'folder' if spec.kind == 'folder' else 'file'}", repr(name))
    elif find_named(name, data_dir=data_dir) is None:
        load_dataset(name)  # the digits, or a name that nobody knows


def _check_model(name: str) -> None:
    if ":" not in name:
        with torch.device("meta"):
            build_model(name, n_classes=2, image_shape=(3, 32, 32))
    elif is_own(name):
        digest(name)  # refuses a module that does not exist
