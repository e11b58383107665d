"""Recipes from files, flags and `key=value`, and a check that their data and networks exist."""

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import read_toml
from calibrant.own_code import digest, is_own, trust_named
from calibrant.training.data import load_dataset
from calibrant.training.data.load import find_named
from calibrant.training.data.spec import anchored, own_data, parse_spec
from calibrant.training.default_recipes import derived_recipe, method_settings, named_recipes, paper_recipe
from calibrant.training.models import build_model
from calibrant.training.models.libraries import check_weights
from calibrant.training.recipe import Recipe, flatten, recipe_keys, suggest_key


def parse_assignment(text: str, *, method_options: bool = False) -> tuple[str, Any]:
    """`schedule.kind=cosine` as a key of the recipe and a value; `method.options.NAME` only with `method_options`."""
    key, value = parse_option(text, "--set schedule.kind=cosine")
    if key not in recipe_keys() and not (method_options and key.startswith("method.options.")):
        raise InvalidInput(f"--set: key '{key}' is unknown. {suggest_key(key)}")
    return key, value


def parse_option(text: str, example: str = "--option huber_weight=5") -> tuple[str, Any]:
    """`gamma_low=4` as a setting of a method and a value."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise InvalidInput(f"{example.split(maxsplit=1)[0]} must be key=value, got {text!r}. For example {example}")
    return key, literal(value)


def literal(text: str) -> Any:
    """A number, true or false, a list; anything else is text.

    >>> literal("0.1"), literal("true"), literal("cosine")
    (0.1, True, 'cosine')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text, text)


def recipe_from(
    file: str | Path | None = None,
    data: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    trust_code: bool = False,
) -> Recipe:
    """The recipe of a file, or the recommended one of a data set, with changes.

    Args:
        file: A recipe as TOML, or the name of one in `named_recipes()`; None for the recommended one.
        data: The data set; None for the one that the file names, else the digits.
        changes: Values by dotted key: `{"schedule.kind": "cosine"}`. None leaves a value unchanged.
        trust_code: Whether to trust code of the user's own that the file names.
    """
    given = {key: value for key, value in (changes or {}).items() if value is not None}
    if file is None:
        data = data or "digits"
        if "method.name" in given:  # the schedule on which methods are compared
            recipe = paper_recipe(data).changed(method_settings(data))
        else:
            recipe = derived_recipe(data, given)
    else:
        recipe = Recipe.parse(_content(file))
        if data is not None:
            recipe = recipe.changed({"data.name": data})
    if trust_code:
        trust_named(*recipe.own_names())
    return recipe.changed(given)


def _content(recipe: str | Path) -> dict[str, Any]:
    """The tables of a recipe file, or of a recipe that ships with the package, by its name; wrong ones are refused."""
    shipped, name = named_recipes(), str(recipe)
    if Path(recipe).exists() or Path(recipe).suffix:
        content = read_toml(recipe, "recipe")
    elif name in shipped:
        content = tomllib.loads(shipped[name].to_toml())
    else:
        raise invalid("recipe", "be a file or the name of a recipe that ships", repr(name), did_you_mean(name, shipped))
    Recipe.parse(content)
    return content


def anchored_recipe(recipe: Recipe) -> Recipe:
    """The same with paths that hold from any folder: a run may be resumed from another one than it began in."""
    changes: dict[str, Any] = {"data.name": anchored(recipe.data.name)}
    if recipe.model.weights is not None:
        changes["model.weights"] = str(Path(recipe.model.weights).expanduser().resolve())
    return recipe.changed(changes)


def shared_recipe(recipe: Path | None, epochs: int | None, assignments: Sequence[str] | None) -> dict[str, Any]:
    """Dotted recipe keys from a recipe file and flags; flags win. What a study chooses for each run is left out."""
    changes: dict[str, Any] = {}
    if recipe is not None:
        chosen = ("method.", "seed", "data.name", "model.name", "reasons.")
        changes |= {key: value for key, value in flatten(_content(recipe)).items() if not key.startswith(chosen)}
    if epochs is not None:
        changes["epochs"] = epochs
    return changes | dict(parse_assignment(text) for text in assignments or ())


def names_in(recipe: Path | None) -> dict[str, str]:
    """The data set and the network that a recipe file names itself; defaults of the recipe are no names."""
    content = _content(recipe) if recipe is not None else {}
    return {key: content[key]["name"] for key in ("data", "model") if "name" in content.get(key, {})}


def default_folder(recipe: Recipe) -> Path:
    """runs/DATA-MODEL-METHOD-seedN, with a number behind it if that is taken."""
    words = (recipe.data.name, recipe.model.name, recipe.method.name, f"seed{recipe.seed}")
    first = Path("runs") / "-".join(re.sub(r"[^\w+.-]", "_", word) for word in words)
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def check_inputs(recipes: Iterable[Recipe], *, data_dir: str | Path | None = None) -> None:
    """Refuse the first data set or network that is not there.

    The content of files, and whether a network of the user's own takes these images, is found out by the run itself.
    """
    wanted = list(recipes)
    for data in dict.fromkeys(recipe.data.name for recipe in wanted):
        _check_data(data, data_dir)
    for model in dict.fromkeys(recipe.model.name for recipe in wanted):
        if is_own(model):
            digest(model)  # refuses a module that does not exist
        elif ":" not in model:
            with torch.device("meta"):
                build_model(model, n_classes=2, image_shape=(3, 32, 32))
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
        if not path.exists() or path.is_dir() != (spec.kind == "folder"):
            raise invalid("data", "name an existing file or folder", repr(name))
    elif find_named(name, data_dir=data_dir) is None:
        load_dataset(name)  # the digits, or a name that nobody knows
