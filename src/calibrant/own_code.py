"""What a user brings as `module:name`, a network or a method: found, imported, or refused in one line."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from calibrant.errors import CalibrantError, InvalidInput, did_you_mean, invalid
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
        # Which file, because another module may have the same name: a random.py of yours is not the one Python takes.
        where = getattr(found, "__file__", None) or module
        raise invalid(f"{kind} {module}:{attribute}", f"name a function or class in {where}", repr(attribute), way_out)
    result: Callable[..., Any] = wanted
    return result


def fingerprint(module: str, *, kind: str) -> str:
    """SHA-256 of the module's file, so that a run can tell whether it is still the code it began with.

    Of the file as it was imported: whoever edits it later still runs the old code until Python starts again.
    Only that file: what it imports in turn is not followed. Empty where there is no file, as in a notebook.
    """
    return _digests[_import(module, kind)]


_digests: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


@contextlib.contextmanager
def own_code_at_work(doing: str) -> Iterator[None]:
    """Around calls of the user's code: it finds what lies beside it, and whatever it raises becomes one line.

    What it prints goes to the error stream: the output may be JSON that a program reads.
    """
    # The user's file usually lies where the command is run; an installed console script does not look there by itself.
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except CalibrantError:
        raise
    except (Exception, SystemExit) as error:  # a file may be a script that ends itself
        told = " ".join(str(error).split())
        raise InvalidInput(f"{doing} {type(error).__name__}: {told.removesuffix('.')}.") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _import(module: str, kind: str) -> ModuleType:
    if not module or module.startswith(".") or "/" in module:
        raise invalid(f"{kind} module", "be a name as in import", repr(module), "For mine.py: mine:function.")
    with own_code_at_work(f"{kind} module {module} cannot be imported:"):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            known = f"A known {kind} has no colon; your own needs a module that Python can find from this folder."
            raise invalid(f"{kind} module", "be importable", repr(module), known) from error
    if found not in _digests:
        path = Path(getattr(found, "__file__", None) or "")
        _digests[found] = sha256_of(path) if path.is_file() else ""
    return found
