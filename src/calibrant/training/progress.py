"""Report how a run is going: a live bar on a terminal, one line per epoch elsewhere."""

import sys
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from calibrant.errors import printable
from calibrant.training.run import Run


class Reporter:
    """Gets the progress of a run, and shows nothing itself."""

    def start(self, run: Run, done: int) -> None:
        """A run begins, or continues after `done` finished epochs."""

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """An epoch with that many steps begins."""

    def step(self) -> None:
        """A step begins."""

    def end_epoch(self, line: dict[str, Any]) -> None:
        """An epoch is over; `line` is what the log says about it."""

    def stop(self) -> None:
        """The run is over or was stopped."""


class PlainLines(Reporter):
    """One line per epoch, for logs and pipes."""

    def __init__(self, write: Any = None) -> None:
        self._write = write or (lambda text: sys.stderr.write(printable(text) + "\n"))
        self._epochs = 0

    def start(self, run: Run, done: int) -> None:
        """Say what begins."""
        self._epochs = run.recipe.epochs
        recipe = run.recipe
        what = f"{recipe.method.name} on {recipe.data.name} with {recipe.model.name}"
        text = f"{what}, {recipe.epochs} epochs, seed {recipe.seed}"
        if done:
            text += f", going on after epoch {done}"
        self._write(text)
        for line in _derived(run, done):
            self._write(line)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Say how the epoch went."""
        self._write(f"epoch {line['epoch']}/{self._epochs}: {describe(line)}")


def _derived(run: Run, done: int) -> list[str]:
    """What a new run's recipe takes from the data, and why."""
    if done:
        return []
    return [f"  {key}: {reason}" for key, reason in run.recipe.reasons.items()]


class LiveBar(Reporter):
    """A bar over epochs with the time left, and below it the newest figures."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )
        # A line of its own: beside the bar the figures would be cut off on most terminals.
        self._figures = Text(style="dim")
        self._live = Live(Group(self._progress, self._figures), console=console, transient=True)

    def start(self, run: Run, done: int) -> None:
        """Show the bar."""
        for line in _derived(run, done):
            self._console.print(Text(printable(line), style="dim"))
        self._task = self._progress.add_task(run.recipe.method.name, total=run.recipe.epochs, completed=done)
        self._live.start(refresh=True)

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Move to an epoch."""
        self._progress.update(self._task, completed=epoch - 1)
        self._share = 1 / max(steps, 1)

    def step(self) -> None:
        """Move a little. The bar is drawn anew a few times per second, however fast the steps are."""
        self._progress.advance(self._task, self._share)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Show the newest figures."""
        self._progress.update(self._task, completed=line["epoch"])
        self._figures.plain = describe(line)
        self._live.refresh()

    def stop(self) -> None:
        """Remove the bar."""
        self._live.stop()


def describe(line: dict[str, Any]) -> str:
    """An epoch's figures in one line, in percent."""
    parts = [f"loss {line['loss']:.3f}"]
    if len(line["terms"]) > 1:
        parts.append("(" + ", ".join(f"{name} {value:.4f}" for name, value in line["terms"].items()) + ")")
    parts += [f"accuracy {line['accuracy']:.1%}", f"ECE {line['ece']:.2%}"]
    if "validation" in line:
        parts.append(f"validation {line['validation']['accuracy']:.1%}, ECE {line['validation']['ece']:.2%}")
    parts += [f"kept {line['kept_share']:.0%}", f"{line['samples_per_second']:,.0f} samples/s"]
    return ", ".join(parts).replace(", (", " (")


def make_reporter() -> Reporter:
    """A live bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return LiveBar(console)
    return PlainLines()
