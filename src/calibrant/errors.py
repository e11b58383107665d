"""What can go wrong, said in one line: the argument, the rule, the value, the way out."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from os import sep
from traceback import extract_tb
from unicodedata import category

# Control, format (among them changes of direction) and surrogates.
_STEERING = ("Cc", "Cf", "Cs")
# Of these: line end, tabulator, and the joiners that some scripts are written with.
_HARMLESS = "\n\t\u200c\u200d"


class CalibrantError(Exception):
    """Base of every error that this package raises on purpose. The command line prints it as one line, exit code 2."""


class InvalidInput(CalibrantError, ValueError):
    """An argument, a file or a recipe breaks a stated rule."""


class OutputError(CalibrantError, OSError):
    """A result could not be written; what was there before is untouched."""


class CheckFailed(CalibrantError):
    """A check that the user asked for did not hold (a gate, a promise). Exit code 1, not 2."""


class CalibrantWarning(UserWarning):
    """Category of every warning of this package, so that it can be filtered on its own."""


_LONGEST_VALUE = 300


def invalid(argument: str, rule: str, value: object, way_out: str = "") -> InvalidInput:
    """Build the error for a broken rule.

    Args:
        argument: What the user passed: a parameter, a column, a file.
        rule: What must hold, to be read after "must".
        value: What was found instead; shown in one line, and cut where it is long.
        way_out: One sentence on what to do; may be empty where the rule says it.

    >>> str(invalid("alpha", "be positive", -1.0, "The paper uses 0.005."))
    'alpha must be positive, got -1.0. The paper uses 0.005.'
    """
    shown = " ".join(str(value).split())
    shown = shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."
    message = f"{argument} must {rule}, got {shown}."
    return InvalidInput(f"{message} {way_out}".strip())


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Put the name of a file before what is wrong with its content, where that does not name it already."""
    try:
        yield
    except InvalidInput as error:
        if str(path) in str(error):
            raise
        raise InvalidInput(f"{path}: {error}") from error


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """One sentence that names the closest known spelling, or all of them where none is close (or it is no text).

    >>> did_you_mean("fsld", ["flsd", "nll"])
    "Did you mean 'flsd'?"
    """
    options = list(known)
    folded = {option.casefold(): option for option in options}
    # The search takes the product of both lengths, and nobody means a name of ours by a long text.
    short = isinstance(name, str) and len(name) <= _LONGEST_VALUE
    close = get_close_matches(str(name).casefold(), folded, n=1) if short else []
    return f"Did you mean '{folded[close[0]]}'?" if close else f"Known: {', '.join(options)}."


def printable(text: str) -> str:
    r"""`text` with what would steer a terminal written out: control characters, changes of direction, lone surrogates.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(c if c in _HARMLESS or category(c) not in _STEERING else ascii(c)[1:-1] for c in text)


def one_line(text: object, most: int = 400) -> str:
    r"""A message on one line of at most `most` characters; the middle of a longer one is left out.

    >>> one_line("first\nsecond"), one_line("x" * 900, most=11)
    ('first second', 'xxx ... xxx')
    """
    line = " ".join(printable(str(text)).split())
    if len(line) <= most:
        return line
    # The end is kept, because that is where the way out stands.
    half = (most - len(" ... ")) // 2
    return f"{line[:half]} ... {line[-half:]}"


@contextmanager
def importing(needed_by: str, name: str, extra: str) -> Iterator[None]:
    """One line where a library is missing, or where it stumbles over a torchvision that was built for another torch.

    torchmetrics and Lightning import torchvision wherever it is installed, although nothing here needs it.

    Args:
        needed_by: What cannot be done without the library.
        name: The library, for people.
        extra: The extra that brings it.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidInput(f"{needed_by} needs {name}. Install it with: pip install 'calibrant[{extra}]'") from error
    except (RuntimeError, OSError, AttributeError) as error:
        if not any(f"{sep}torchvision{sep}" in frame.filename for frame in extract_tb(error.__traceback__)):
            raise
        told = one_line(error, most=100)
        raise InvalidInput(
            f"{name} cannot be imported, because the installed torchvision does not fit torch ({told}). "
            "Install the pair: pip install -U 'calibrant[vision]'; or: pip uninstall torchvision."
        ) from error


def outdated() -> str | None:
    """One line about an imported package whose version our own bounds rule out; None where there is none.

    Asked where something failed that nobody foresaw. pip keeps the bounds of an extra only where the extra was asked
    for; a package that was there before may be of any age.
    """
    from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version

    from packaging.requirements import Requirement  # comes with torchmetrics
    from packaging.utils import canonicalize_name

    parts = packages_distributions().items()
    imported = {canonicalize_name(name) for module, names in parts if module in sys.modules for name in names}
    try:
        needed = [Requirement(each) for each in requires("calibrant") or ()]
    except PackageNotFoundError:  # run from the sources
        return None
    for each in needed:
        if canonicalize_name(each.name) in imported and not each.specifier.contains(version(each.name), True):
            bounds = f"{each.name}{each.specifier}"
            return f"{each.name} {version(each.name)} does not fit: this needs {bounds}. Run: pip install '{bounds}'"
    return None


def our_fault(error: BaseException) -> str:
    """One line that asks for a report of an error that nobody foresaw; it names the place in this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if f"{sep}calibrant{sep}" in frame.filename]
    place = (
        f" in {frames[-1].filename.rpartition(f'{sep}calibrant{sep}')[2]}, line {frames[-1].lineno}" if frames else ""
    )
    told = one_line(error, most=150)
    return (
        f"this is a fault of calibrant, and nothing was checked or promised: {type(error).__name__}{place}: {told}. "
        "Please report it, with the traceback that the same command shows with CALIBRANT_DEBUG=1."
    )
