"""The settings of a study: methods, seeds, data sets and networks, all combined, and what the runs share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, model_validator

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import read_toml, write_text
from calibrant.own_code import is_own
from calibrant.runs import Text
from calibrant.training import Recipe, paper_recipe
from calibrant.training.recipe import Settings, flatten


class TomlSettings(Settings):
    """Settings with a file of their own."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read TOML."""
        return cls.parse(read_toml(path, cls.key_name.removesuffix(" key")))

    def save(self, path: str | Path) -> None:
        """Write as TOML."""
        write_text(path, tomli_w.dumps(self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))


class _StudySettings(TomlSettings):
    key_name = "study key"

    @classmethod
    def suggest(cls, key: str) -> str:
        """Return the closest key of a variant, or of the whole study."""
        known = Variant.model_fields if key.startswith("variants.") else StudySpec.model_fields | Variant.model_fields
        return did_you_mean(key.rsplit(".", maxsplit=1)[-1], known)


class Variant(_StudySettings):
    """One row of the tables: a method, with the settings that differ from its defaults."""

    label: Annotated[Text, Field(min_length=1)]
    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    recipe: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: the name of its folder, its row in the tables, and its recipe."""

    name: str
    label: str
    recipe: Recipe

    @property
    def place(self) -> tuple[str, str]:
        """Data set and network. Runs that share them share their tables."""
        return self.recipe.data.name, self.recipe.model.name


class StudySpec(_StudySettings):
    """The settings of a whole study, from TOML or flags. All its runs are checked when it is made.

    `decides` is the metric of the verdict, named before the runs: `test_error`, `scaled_nll` and so on. `derived` has,
    by data set, settings that follow from the size of a data set that is not in the paper.

    >>> spec = StudySpec(methods=("nll", "flsd"), seeds=(0, 1), recipe={"epochs": 3})
    >>> [planned.name for planned in spec.runs()][:2]
    ['digits-tiny-nll-seed0', 'digits-tiny-nll-seed1']
    """

    methods: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = (0,)
    data: tuple[str, ...] = ("digits",)
    models: tuple[str, ...] = ()
    baseline: str | None = None
    decides: str = "scaled_nll"
    recipe: dict[str, Any] = Field(default_factory=dict)
    derived: dict[str, dict[str, Any]] = Field(default_factory=dict)
    variants: tuple[Variant, ...] = ()

    @model_validator(mode="after")
    def _every_run(self) -> Self:
        self.runs()
        return self

    def rows(self) -> tuple[Variant, ...]:
        """Return the rows of the tables: plain methods first, then variants."""
        rows = (*(Variant(label=name, method=name) for name in self.methods), *self.variants)
        if not rows:
            raise InvalidInput("methods must name at least one method, got none. See: calibrant methods")
        _distinct("methods and variants", [row.label for row in rows])
        return rows

    def baseline_label(self) -> str:
        """Return the row with which the others are compared.

        It is `baseline`, else the row nll, else the first row with the method nll, else the first row. So at one
        budget the baseline is the control, `nll@96`.
        """
        rows = self.rows()
        labels = [row.label for row in rows]
        if self.baseline is not None:
            if self.baseline not in labels:
                hint = did_you_mean(self.baseline, labels)
                raise invalid("baseline", "be one of the rows", repr(self.baseline), hint)
            return self.baseline
        if "nll" in labels:
            return "nll"
        return next((row.label for row in rows if row.method == "nll"), labels[0])

    def runs(self) -> tuple[PlannedRun, ...]:
        """Return every run. All are checked, so a name that does not exist is found before the first run starts."""
        for name, values in (("seeds", self.seeds), ("data", self.data)):
            if not values:
                raise InvalidInput(f"{name} must not be empty.")
            _distinct(name, values)
        _distinct("models", self.models)
        self.baseline_label()
        runs = [
            self._planned(data, model, row, seed)
            for data in self.data
            for model in self.models or (None,)
            for row in self.rows()
            for seed in self.seeds
        ]
        _distinct("run names", [planned.name for planned in runs])
        return tuple(runs)

    def _planned(self, data: str, model: str | None, row: Variant, seed: int) -> PlannedRun:
        shared = flatten(self.recipe)
        taken = [key for key in shared if key.split(".")[0] in {"method", "seed"} or key in {"data.name", "model.name"}]
        if taken:
            raise InvalidInput(
                f"recipe key '{taken[0]}' is set by the study's lists. Use methods, variants, seeds, data or models."
            )
        own = {"method.name": row.method, "method.options": row.options, "seed": seed, "data.name": data}
        if model is not None:
            own["model.name"] = model
        derived = flatten(self.derived.get(data, {}))
        recipe = paper_recipe(data).changed({**derived, **shared, **flatten(row.recipe), **own})
        if not is_own(row.method):  # reading a study imports no code; running it checks the options
            recipe.within_budget().plan()
        name = "-".join(file_word(part) for part in (data, recipe.model.name, row.label, f"seed{seed}"))
        return PlannedRun(name, row.label, recipe)


def file_word(text: str) -> str:
    """Return a part of a file name: a path loses its folders, anything unusual becomes an underscore.

    >>> file_word("arrays:/home/me/x-rays.npz")
    'arrays_x-rays.npz'
    """
    kind, colon, rest = text.partition(":")
    if colon and ("/" in rest or "\\" in rest):
        text = f"{kind}:{rest.replace(chr(92), '/').rstrip('/').rsplit('/', 1)[-1]}"
    word = "".join(c if c.isascii() and (c.isalnum() or c in "+-_.=") else "_" for c in text)
    return word.lstrip(".") or "_"


def _distinct(what: str, values: Any) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise invalid(what, "be distinct", f"{value!r} twice")
        seen.add(value)
