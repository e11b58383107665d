"""What commands share: flags, each with one name and one explanation, and how results and errors are printed.

Names, paths and messages may come from other people's files. Nothing in them is read as markup, and nothing in them
reaches the terminal as a control sequence.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from calibrant.defaults import Kind
from calibrant.errors import CalibrantWarning, invalid, one_line, printable
from calibrant.scale import make_executor
from calibrant.scale.work import ExecutorName
from calibrant.tables import Table


def _columns(_: type, tokens: Sequence[Token]) -> dict[str, str]:
    from calibrant.predictions import parse_columns

    return parse_columns(tokens[0].value)


Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, in fractions, for machines.")]
NBins = Annotated[int, Parameter(help="Bins of every binned metric.")]
OutOr = Parameter(name=["--out", "-o"])
Out = Annotated[Path | None, OutOr]
Switch = Parameter(negative="")
Many = Parameter(consume_multiple=True, negative="")
Repeated = Parameter(negative="")
Assignments = Annotated[list[str] | None, Parameter(name="--set", negative="")]
TrustCode = Annotated[
    bool,
    Parameter(
        name="--trust-code",
        negative="",
        help="Run code of your own (module:name) that a file names and that you have not used on this machine before.",
    ),
]
DataDir = Annotated[
    Path | None, Parameter(help="Where image sets lie; then CALIBRANT_DATA, then the user's cache are looked in.")
]
ExecutorFlag = Annotated[
    ExecutorName, Parameter(name="--executor", help="Where the work is done: local, or ray for a Ray cluster.")
]
Address = Annotated[
    str | None,
    Parameter(
        name="--address",
        help="Of the Ray cluster of this machine: HOST:PORT or auto. By default Ray starts on this machine alone.",
    ),
]
PolicyFile = Annotated[
    Path | None, Parameter(help="Written by calibrate or route: how scores become decisions. Default: the run's own.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """The flags of every command that reads predictions."""

    kind: Annotated[
        Kind | None,
        Parameter(
            help="What the scores are, for files that do not say: logits, probabilities; of a predicted class: "
            "confidence, score (any number)."
        ),
    ] = None
    columns: Annotated[
        dict[str, str] | None,
        Parameter(
            converter=_columns,
            n_tokens=1,
            accepts_keys=False,
            help="Columns of a table: target=label,id=case,scores=p_*; predicted=answer,confidence=sure.",
        ),
    ] = None
    positive: Annotated[str | None, Parameter(help="The class whose score a single column of two classes holds.")] = (
        None
    )

    def options(self) -> dict[str, Any]:
        """Return `kind` and `columns`, which the functions that read predictions take."""
        columns = self.columns
        if self.positive is not None:
            columns = {**(columns or {}), "positive": self.positive}
        return {"kind": self.kind, "columns": columns}


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """The flags of commands that train many times: compare, ablate and sweep."""

    epochs: Annotated[int | None, Parameter(help="Epochs of every run; schedules and plans scale with it.")] = None
    recipe: Annotated[
        Path | None,
        Parameter(
            help="Recipe (a file, or the name of one that ships) that all runs share; its method and seed are replaced."
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any other recipe setting, as key=value. Repeatable."),
    ] = None
    jobs: Annotated[
        int | None,
        Parameter(
            help="How many run at the same time, each in a process of its own; also on one GPU. Default: 1, and on "
            "Ray as many runs of a study as fit."
        ),
    ] = None
    executor: ExecutorFlag = "local"
    address: Address = None
    data_dir: DataDir = None
    trust_code: TrustCode = False

    def shared_recipe(self) -> dict[str, Any]:
        """Return the recipe keys that all runs share."""
        from calibrant.training.settings import shared_recipe

        return shared_recipe(self.recipe, self.epochs, self.set_)

    def named(self) -> dict[str, str]:
        """Return the data set and the network that the recipe file names."""
        from calibrant.training.settings import names_in

        return names_in(self.recipe)

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Give the arguments that say how runs are made. The executor is closed when the block ends."""
        from calibrant.checks import whole

        if self.jobs is not None:
            whole("jobs", self.jobs, 1)
        with make_executor(self.executor, address=self.address) as place:
            yield {"jobs": self.jobs, "data_dir": self.data_dir, "executor": place}


def say(text: str) -> None:
    """Print a line or block on standard output, as it is."""
    Console().print(printable(text), soft_wrap=True, highlight=False, markup=False, emoji=False)


def say_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    say(Table("", rows, headings).terminal())


def say_json(content: Any) -> None:
    """Print JSON; NaN and infinity are refused because they are not JSON."""
    sys.stdout.write(f"{json.dumps(content, indent=2, allow_nan=False)}\n")


def answer(text: str, content: Any, *, as_json: bool) -> None:
    """Print a result: text for a person, or the same as JSON."""
    if as_json:
        say_json(content)
    else:
        say(text)


def complain(text: object) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"calibrant: {one_line(text)}\n")


@contextmanager
def steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on a terminal. Call it with a step's name, its number from 0 on, and the number of steps."""
    console = Console(stderr=True)
    if not console.is_terminal:  # a bar that is only disabled leaves an empty line behind in some versions of rich
        yield lambda *_: None
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda name, place, total: bars.update(task, description=printable(name), completed=place, total=total)


def refuse_with_labels(**flags: object) -> None:
    """Refuse flags that say nothing about rules for several labels, whose file names its columns."""
    for name, value in flags.items():
        if value not in (None, False):
            raise invalid(f"--{name.replace('_', '-')}", "be left out for rules of several labels", value)


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
