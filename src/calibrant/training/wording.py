"""One line about what is wrong with a recipe or a study, from what pydantic says."""

from collections.abc import Callable

from pydantic import ValidationError

from calibrant.errors import InvalidInput, invalid


def one_line(error: ValidationError, what: str, suggest: Callable[[str], str]) -> InvalidInput:
    """The first broken rule of a pydantic model.

    Args:
        error: What pydantic says.
        what: What a place in it is called, for example "recipe key".
        suggest: From an unknown place to a sentence about known ones.
    """
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return InvalidInput(f"{what} '{place}' is unknown. {suggest(place)}")
    if first["type"] == "literal_error":
        return invalid(f"{what} '{place}'", f"be one of {first['ctx']['expected']}", repr(first["input"]))
    if first["type"] == "value_error":
        told = str(first["ctx"]["error"])
        return InvalidInput(told if told.endswith((".", "?")) else f"{told}.")
    if first["type"] == "model_type":
        way_out = f"In TOML: [{place}], its keys below it."
        return invalid(f"{what} '{place}'", "be a table of settings", repr(first["input"]), way_out)
    rule = _RULES.get(first["type"]) or first["msg"].removeprefix("Input should ").strip()
    return invalid(f"{what} '{place}'", rule, repr(first["input"]))


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
