"""What recipes, studies and sweeps are made of: frozen models whose errors are one line each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from calibrant.errors import InvalidInput, did_you_mean, invalid

if TYPE_CHECKING:
    # Type checkers cannot follow `type(BaseModel)`. Nothing private is imported at run time.
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
else:
    _ModelMetaclass = type(BaseModel)

# Where pydantic's own words read badly after "must".
_RULES = {
    "missing": "be given",
    "int_parsing": "be a whole number",
    "int_from_float": "be a whole number",
    "int_type": "be a whole number",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "string_type": "be text",
    "tuple_type": "be a list",
}


class _OneLineErrors(_ModelMetaclass):
    """A metaclass: a model that is built from wrong values raises one line about the first broken rule.

    An `__init__` cannot do this: pydantic calls it for nested sections too, and the error would no longer say where in
    the recipe they stand.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise self._explain(error) from error  # type: ignore[attr-defined]  # that of Settings


class Settings(BaseModel, metaclass=_OneLineErrors):
    """A table of settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key_name: ClassVar[str]
    """What messages call a key of the table, for example "recipe key"."""

    @classmethod
    def suggest(cls, key: str) -> str:
        """A sentence about known keys for somebody who wrote an unknown one."""
        return did_you_mean(key, cls.model_fields)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Build from plain values; the first broken rule is one clear line."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise cls._explain(error) from error

    @classmethod
    def _explain(cls, error: ValidationError) -> InvalidInput:
        """The first broken rule."""
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        key = f"{cls.key_name} '{place}'"
        if first["type"] == "extra_forbidden":
            return InvalidInput(f"{key} is unknown. {cls.suggest(place)}")
        if first["type"] == "literal_error":
            return invalid(key, f"be one of {first['ctx']['expected']}", repr(first["input"]))
        if first["type"] == "value_error":
            told = str(first["ctx"]["error"])
            return InvalidInput(told if told.endswith((".", "?")) else f"{told}.")
        if first["type"] == "model_type":
            way_out = f"In TOML: [{place}], its keys below it."
            return invalid(key, "be a table of settings", repr(first["input"]), way_out)
        rule = _RULES.get(first["type"]) or first["msg"].removeprefix("Input should ").strip()
        return invalid(key, rule, repr(first["input"]))


class RecipeSection(Settings):
    """A table of a recipe."""

    key_name = "recipe key"

    @classmethod
    def suggest(cls, key: str) -> str:
        """The closest key of the whole recipe."""
        from calibrant.training.recipe import suggest_key  # which is made of sections

        return suggest_key(key)

    def __setattr__(self, name: str, value: Any) -> None:
        way_out = "recipe.changed({...}) gives a changed copy."
        raise invalid("a recipe", "stay as it is: it says what a run was", f"{name} = {value!r}", way_out)
