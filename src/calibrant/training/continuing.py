"""One run, whatever state its folder is in: start it, continue it, or leave it as it is."""

from pathlib import Path
from typing import Literal

from calibrant.errors import InvalidInput
from calibrant.training import engine
from calibrant.training.progress import Reporter
from calibrant.training.recipe import Recipe, first_difference
from calibrant.training.run import Run

State = Literal["new", "stopped", "finished"]


def state_of(folder: Path, recipe: Recipe) -> State:
    """How far the run in `folder` is; one that was made by another recipe is refused."""
    run, recipe = Run.of(folder), recipe.with_code_digests()
    if run is None:
        return "new"
    there, here = run.recipe.compared(), recipe.compared()
    if (key := first_difference(there, here)) is not None:
        raise InvalidInput(
            f"run {folder} was made with {key} = {there.get(key)}, now it is {here.get(key)}. "
            "Choose another --out, or remove that run."
        )
    return "finished" if run.finished else "stopped"


def train_or_resume(
    recipe: Recipe,
    folder: Path,
    *,
    data_dir: Path | None = None,
    reporter: Reporter | None = None,
    trust_code: bool = False,
) -> Run:
    """Train by `recipe` into `folder`; a stopped run goes on, a finished one is returned as it is."""
    state = state_of(folder, recipe)
    if state == "finished":
        return Run.open(folder)
    if state == "stopped":
        return engine.resume(folder, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
    return engine.train(recipe, folder, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
