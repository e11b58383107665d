"""What a user brings as `module:name`, a network or a method: found, imported, or refused in one line."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import sha256_of


def load_callable(module: str, attribute: str, *, kind: str) -> Callable[..., Any]:
    """The function or class `attribute` of a module that can be imported from here (the working directory counts).

    Args:
        module: Its dotted name.
        attribute: The name in it.
        kind: What it is for, for messages: `model`, `method`.
    """
    found = _import(module, kind)
    wanted = getattr(found, attribute, None) if attribute else None
    if wanted is None or not callable(wanted):
        known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        way_out = did_you_mean(attribute, known) if known else ""
        raise invalid(f"{kind} {module}:{attribute}", f"name a function or class in {module}", repr(attribute), way_out)
    result: Callable[..., Any] = wanted
    return result


def fingerprint(module: str, *, kind: str) -> str:
    """SHA-256 of the module's file, so that a run can tell whether it is still the code it began with.

    Only that file: what it imports in turn is not followed. Empty where there is no file, as in a notebook.
    """
    path = getattr(_import(module, kind), "__file__", None)
    return sha256_of(path) if path else ""


def _import(module: str, kind: str) -> Any:
    # The user's file usually lies where the command is run; an installed console script does not look there by itself.
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"{kind} module {module} cannot be imported: {error}.") from error
        known = f"A known {kind} has no colon; your own needs a module that Python can find from this folder."
        raise invalid(f"{kind} module", "be importable", repr(module), known) from error
    except Exception as error:  # whatever the user's own file raises becomes one line
        raise InvalidInput(f"{kind} module {module} cannot be imported: {type(error).__name__}: {error}.") from error
    finally:
        if added:
            sys.path.remove(here)
