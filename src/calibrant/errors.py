"""Errors and their messages: the argument, the rule, the value, and what to do."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from os import sep
from traceback import extract_tb
from typing import Any
from unicodedata import category

# Unicode categories: control, format (which includes changes of direction), surrogates.
_STEERING = ("Cc", "Cf", "Cs")
# Allowed characters of these categories: line end, tab, and the joiners that some scripts need.
_HARMLESS = "\n\t\u200c\u200d"


class CalibrantError(Exception):
    """Base of every error that this package raises on purpose. Commands print it as one line, with exit code 2."""


class InvalidInput(CalibrantError, ValueError):
    """An argument, a file or a recipe breaks a stated rule."""


class OutputError(CalibrantError, OSError):
    """A result could not be written. An existing file is unchanged."""


class CheckFailed(CalibrantError):
    """A check that the user asked for failed (a gate, a promise). Exit code 1, not 2."""


class CalibrantWarning(UserWarning):
    """Category of every warning of this package, for filters."""


_LONGEST_VALUE = 300


def invalid(argument: str, rule: str, value: object, hint: str = "") -> InvalidInput:
    """Build the error for a broken rule.

    Args:
        argument: What the user passed: a parameter, a column, a file.
        rule: What must hold, as a phrase after "must".
        value: The value instead, shown in one line, and cut if it is long.
        hint: One sentence on what to do; empty if the rule says it.

    >>> str(invalid("alpha", "be positive", -1.0, "The paper uses 0.005."))
    'alpha must be positive, got -1.0. The paper uses 0.005.'
    """
    shown = " ".join(str(value).split())
    if len(shown) > _LONGEST_VALUE:
        shown = f"{shown[:_LONGEST_VALUE]}..."
    message = f"{argument} must {rule}, got {shown}."
    return InvalidInput(f"{message} {hint}".strip())


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Put the name of a file in front of errors about its content, unless they name it already."""
    try:
        yield
    except InvalidInput as error:
        if str(path) in str(error):
            raise
        raise InvalidInput(f"{path}: {error}") from error


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return one sentence with the closest known spelling, or with all known names if none is close.

    >>> did_you_mean("fsld", ["flsd", "nll"])
    "Did you mean 'flsd'?"
    """
    options = list(known)
    folded = {option.casefold(): option for option in options}
    close: list[str] = []
    # The search takes time proportional to the product of both lengths, and a long text is no misspelt name.
    if isinstance(name, str) and len(name) <= _LONGEST_VALUE:
        close = get_close_matches(name.casefold(), folded, n=1)
    if close:
        return f"Did you mean '{folded[close[0]]}'?"
    return f"Known: {', '.join(options)}."


def printable(text: str) -> str:
    r"""Escape what would control a terminal: control characters, changes of direction, lone surrogates.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    shown = []
    for character in text:
        if character not in _HARMLESS and category(character) in _STEERING:
            character = ascii(character)[1:-1]  # noqa: PLW2901
        shown.append(character)
    return "".join(shown)


def one_line(text: object, most: int = 400) -> str:
    r"""Put a message on one line of at most `most` characters. The middle of a longer one is left out.

    >>> one_line("first\nsecond"), one_line("x" * 900, most=11)
    ('first second', 'xxx ... xxx')
    """
    line = " ".join(printable(str(text)).split())
    if len(line) <= most:
        return line
    # The end is kept, because it says what to do.
    half = (most - len(" ... ")) // 2
    return f"{line[:half]} ... {line[-half:]}"


@contextmanager
def importing(needed_by: str, name: str, extra: str) -> Iterator[None]:
    """Raise `InvalidInput` if a library is missing, or if torchvision was built for another torch.

    Lightning and torchmetrics import torchvision if it is installed, although nothing here needs it. One that cannot
    be imported is hidden from them, so that installing it beside a CPU build of torch does not break training.
    """
    if name in ("Lightning", "torchmetrics"):
        _hide_unusable_torchvision()
    fault = _UNUSABLE.get(name, "")
    try:
        yield
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        if any(f"{sep}torchvision{sep}" in frame.filename for frame in extract_tb(error.__traceback__)):
            fault = one_line(error, most=100)
        if fault:
            raise InvalidInput(
                f"{name} cannot be imported, because the installed torchvision does not fit torch ({fault}). "
                "Install the pair: pip install -U 'calibrant[vision]'; or: pip uninstall torchvision."
            ) from error
        if not isinstance(error, ImportError):
            raise
        raise InvalidInput(f"{needed_by} needs {name}. Install it with: pip install 'calibrant[{extra}]'") from error


# Why torchvision cannot be used in this process; empty if it can, or if nobody has tried.
_UNUSABLE: dict[str, str] = {}


def _hide_unusable_torchvision() -> None:
    """Let libraries take torchvision for missing if it is installed and cannot be imported."""
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except Exception as error:  # noqa: BLE001 (a build for another torch fails in many ways)
        imports: Any = import_module("lightning_utilities.core.imports")
        _UNUSABLE["torchvision"] = one_line(error, most=100)
        for module in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # Python's way to say that it is missing
        installed = imports._version  # noqa: SLF001 (they ask for the version and do not try the import)

        def version(name: str) -> str:
            if name == "torchvision":
                raise PackageNotFoundError(name)
            return str(installed(name))

        imports._version = version  # noqa: SLF001


def our_fault(error: BaseException) -> str:
    """Return a message that asks the user to report an unexpected error, with its place in this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if f"{sep}calibrant{sep}" in frame.filename]
    place = ""
    if frames:
        place = f" in {frames[-1].filename.rpartition(f'{sep}calibrant{sep}')[2]}, line {frames[-1].lineno}"
    message = one_line(error, most=150)
    return (
        f"this is a fault of calibrant, and nothing was checked or promised: {type(error).__name__}{place}: {message}. "
        "Please report it, with the traceback that the same command shows with CALIBRANT_DEBUG=1."
    )


@contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """Let loggers pass only messages of at least `level` inside the block, and restore them after it.

    >>> with at_level(logging.ERROR, "noisy"):
    ...     logging.getLogger("noisy").isEnabledFor(logging.WARNING)
    False
    """
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)
