"""What `compare`, `ablate` and `sweep` have in common: reading flags, running, saying what came out."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli._settings import assignment, literal
from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import read_toml

if TYPE_CHECKING:
    from calibrant.study import Study


def shared_recipe(recipe: Path | None, epochs: int | None, assignments: Sequence[str] | None) -> dict[str, Any]:
    """Dotted recipe keys from a recipe file and flags; flags win. Method and seed of the file are left out."""
    from calibrant.training import Recipe, flatten

    changes: dict[str, Any] = {}
    if recipe is not None:
        Recipe.load(recipe)  # a file with a fault is refused as a whole, with a message about that file
        content = flatten(read_toml(recipe, "recipe"))
        own = ("method.", "seed", "data.name", "model.name")
        changes |= {key: value for key, value in content.items() if not key.startswith(own)}
    if epochs is not None:
        changes["epochs"] = epochs
    return changes | dict(assignment(text) for text in assignments or ())


def names_in(recipe: Path | None) -> dict[str, str]:
    """Data set and network, as far as a recipe file names them: what it leaves out is for the data set to say."""
    if recipe is None:
        return {}
    from calibrant.training import Recipe

    loaded = Recipe.load(recipe)
    names = {"data": loaded.data.name, "model": loaded.model.name}
    written = read_toml(recipe, "recipe")
    return {key: name for key, name in names.items() if "name" in written.get(key, {})}


def option(text: str) -> tuple[str, Any]:
    """`gamma_low=4` as a setting of a method."""
    key, sign, value = text.partition("=")
    if not sign:
        raise InvalidInput(f"--option must be key=value, got {text!r}. For example --option huber_weight=5")
    return key, literal(value)


def at_least_one(**counts: int) -> None:
    """Refuse a count below 1 before anything is written."""
    for name, count in counts.items():
        if count < 1:
            raise invalid(f"--{name}", "be at least 1", count)


def run_study(study: "Study", *, jobs: int, data_dir: Path | None, trust_code: bool) -> CheckFailed | None:
    """Run what is left to run; failures are returned, so that what did finish can be shown first."""
    from calibrant.study import make_progress

    study.pending()  # where it refuses a run, nothing is about to be left out
    _say_what_is_left_out(study)
    try:
        study.run(jobs=jobs, data_dir=data_dir, progress=make_progress(), trust_code=trust_code)
    except CheckFailed as failed:
        return failed
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on\n")
        raise
    return None


def _say_what_is_left_out(study: "Study") -> None:
    """One line where the folder held a larger study: `study.toml` and the tables are about to forget a part of it."""
    from calibrant.study import StudySpec

    try:
        before = StudySpec.load(study.path / "study.toml").runs()
    except InvalidInput:  # none there, or one that cannot be read: nothing is forgotten
        return
    names = {planned.name for planned in study.runs}
    left = [planned.name for planned in before if planned.name not in names and study.folder(planned).is_dir()]
    if left:
        count = "1 run" if len(left) == 1 else f"{len(left)} runs"
        sys.stderr.write(
            f"{count} of the study that was in {study.path} left out of study.toml and the tables (first: {left[0]}); "
            "what was trained stays in runs/. Name all methods, seeds and data sets to have it back.\n"
        )


def record_all(study: "Study", folder: Path) -> list[str]:
    """Write a record of every finished run; returns complaints about those that were not written."""
    from calibrant.study import write_record

    complaints = []
    for planned in study.finished():
        try:
            write_record(study.record(planned), folder)
        except InvalidInput as error:
            complaints.append(str(error))
    return complaints
