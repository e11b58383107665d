"""Settings given as text on the command line: `--set schedule.kind=cosine`."""

import ast
from typing import Any

from calibrant.errors import InvalidInput

_METHOD_OPTION = "method.options."


def assignment(text: str, *, method_options: bool = False) -> tuple[str, Any]:
    """`schedule.kind=cosine` as a key of the recipe and a value.

    Args:
        text: What stands behind --set.
        method_options: Whether `method.options.NAME` may be set too; the method itself then knows which names exist.
    """
    from calibrant.training import recipe_keys, suggest_key

    key, sign, value = text.partition("=")
    if not sign or not key:
        raise InvalidInput(f"--set must be key=value, got {text!r}. For example --set schedule.kind=cosine")
    if key not in recipe_keys() and not (method_options and key.startswith(_METHOD_OPTION)):
        raise InvalidInput(f"--set: key '{key}' is unknown. {suggest_key(key)}")
    return key, literal(value)


def literal(text: str) -> Any:
    """A number, true or false, a list; anything else is text.

    >>> literal("0.1"), literal("true"), literal("cosine")
    (0.1, True, 'cosine')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text, text)
