"""What recipes, studies and sweeps are made of: frozen models whose errors are one line each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from calibrant.errors import InvalidInput, invalid
from calibrant.training.wording import one_line

if TYPE_CHECKING:
    # Type checkers cannot follow `type(BaseModel)`. Nothing private is imported at run time.
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
else:
    _ModelMetaclass = type(BaseModel)


class OneLineErrors(_ModelMetaclass):
    """A metaclass: a model that is built from wrong values raises one line about the first broken rule.

    An `__init__` cannot do this: pydantic calls it for nested sections too, and the error would no longer say where in
    the recipe they stand. `explain` words the line.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        """Build an instance, or raise one line about what is wrong."""
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise self.explain(error) from error

    def explain(self, error: ValidationError) -> InvalidInput:
        """The line about the first broken rule; a class may override it with its own words."""
        from calibrant.training.recipe import suggest_key  # which is made of sections

        return one_line(error, "recipe key", suggest_key)


class Settings(BaseModel, metaclass=OneLineErrors):
    """A table of settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Build from plain values; the first broken rule is one clear line."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise cls.explain(error) from error


class RecipeSection(Settings):
    """A table of a recipe."""

    def __setattr__(self, name: str, value: Any) -> None:
        way_out = "recipe.changed({...}) gives a changed copy."
        raise invalid("a recipe", "stay as it is: it says what a run was", f"{name} = {value!r}", way_out)
