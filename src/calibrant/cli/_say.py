"""What a command prints: text as it is, JSON, and warnings as one line each."""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from calibrant.errors import CalibrantWarning


def say(text: str) -> None:
    """One line or block on standard output, as it is."""
    Console().print(text, soft_wrap=True, highlight=False, markup=False)


def say_json(content: Any) -> None:
    """JSON on standard output; NaN and infinity are refused because they are not JSON."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def complain(text: object) -> None:
    """One line on standard error."""
    line = " ".join(str(text).split())
    sys.stderr.write(f"calibrant: {line}\n")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show this package's warnings as one line each, at once, without file and line number."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, CalibrantWarning):
                complain(f"warning: {message}")
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", CalibrantWarning)
        yield
