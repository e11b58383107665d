"""Show a person how a study is going."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.errors import printable
from calibrant.scale import Ended
from calibrant.training import Run

if TYPE_CHECKING:
    from calibrant.studies.spec import PlannedRun
    from calibrant.studies.study import Study


class StudyProgress(Protocol):
    """An object that is told about a study's progress."""

    def over(self, study: "Study", pending: "Sequence[PlannedRun]") -> contextlib.AbstractContextManager[None]:
        """A context around all runs; `pending` are those that are left to run."""

    def update(self, ended: list[Ended]) -> None:
        """Called a few times per second with the runs that have ended."""


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def over(self, study: "Study", pending: "Sequence[PlannedRun]") -> Iterator[None]:  # noqa: ARG002
        """Nothing to say."""
        yield

    def update(self, ended: list[Ended]) -> None:
        """Nothing to say."""


class StudyLines:
    """One line per run, for logs and pipes."""

    def __init__(self) -> None:
        self._told = 0
        self._study: Study | None = None

    @contextlib.contextmanager
    def over(self, study: "Study", pending: "Sequence[PlannedRun]") -> Iterator[None]:
        """Say how much there is to do."""
        self._study, self._told = study, 0
        done = len(study.runs) - len(pending)
        runs = "1 run" if len(study.runs) == 1 else f"{len(study.runs)} runs"
        self._write(f"{runs}, {done} of them finished before, {len(pending)} to run")
        yield

    def update(self, ended: list[Ended]) -> None:
        """Say which runs have ended since the last call."""
        for one in ended[self._told :]:
            self._write(f"{one.task}: {self._outcome(one)}")
        self._told = len(ended)

    def _outcome(self, one: Ended) -> str:
        if one.code:
            return "failed"  # why is said at the end, where it cannot be missed
        assert self._study is not None
        test = Run.open(self._study.path / "runs" / one.task).summary["test"]
        return f"test error {test['test_error']:.2%}, ECE {test['ece']:.2%}"

    def _write(self, line: str) -> None:
        sys.stderr.write(printable(line) + "\n")


class StudyBar(StudyLines):
    """A bar over all epochs of all runs, above it a line for each run that has ended."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    @contextlib.contextmanager
    def over(self, study: "Study", pending: "Sequence[PlannedRun]") -> Iterator[None]:
        """Show the bar."""
        self._bar = Progress(
            TextColumn("[bold]epochs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=self._console
        )
        self._logs = [Run(study.folder(planned), planned.recipe).log_path for planned in pending]
        self._task = self._bar.add_task("", total=sum(planned.recipe.within_budget().epochs for planned in pending))
        with super().over(study, pending), self._bar:
            yield

    def update(self, ended: list[Ended]) -> None:
        """Move the bar."""
        super().update(ended)
        self._bar.update(self._task, completed=sum(_lines(path) for path in self._logs))

    def _write(self, line: str) -> None:
        self._console.print(printable(line), highlight=False, markup=False)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def make_progress() -> StudyProgress:
    """A bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    return StudyBar(console) if console.is_terminal else StudyLines()
