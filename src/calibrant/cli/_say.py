"""What a command prints: text as it is, tables, JSON, and complaints as one line each.

Names, paths and messages may come from files of others. Nothing in them is read as markup, and nothing in them reaches
the terminal as a control sequence.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from calibrant.errors import CalibrantWarning, one_line, printable


def say(text: str) -> None:
    """One line or block on standard output, as it is."""
    Console().print(printable(text), soft_wrap=True, highlight=False, markup=False, emoji=False)


def say_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as the terminal; what does not fit is folded, except for the first column."""
    table = Table()
    for number, heading in enumerate(headings):
        table.add_column(Text(heading), no_wrap=not number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def say_json(content: Any) -> None:
    """JSON on standard output; NaN and infinity are refused because they are not JSON."""
    sys.stdout.write(f"{json.dumps(content, indent=2, allow_nan=False)}\n")


def answer(text: str, content: Any, *, as_json: bool) -> None:
    """What a command found: text for a person, or the same as JSON."""
    if as_json:
        say_json(content)
    else:
        say(text)


def complain(text: object) -> None:
    """One line on standard error."""
    sys.stderr.write(f"calibrant: {one_line(text)}\n")


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """A bar over named steps on standard error, for calls with name, place from 0 on and number; silent elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:  # a bar that is only disabled leaves an empty line behind in some versions of rich
        yield lambda *_: None
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda name, place, total: bars.update(task, description=printable(name), completed=place, total=total)


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
