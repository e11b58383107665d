"""Show a person how a run is going: a live bar on a terminal, one line per epoch elsewhere."""

import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from calibrant.errors import printable
from calibrant.training.run import Run


class Reporter:
    """Gets the progress of a run and does nothing; reporters override the methods that they need."""

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


class Quiet(Reporter):
    """Says nothing."""


class PlainLines(Reporter):
    """One line per epoch, for logs and pipes."""

    def __init__(self, write: Any = None) -> None:
        self._write = write or (lambda text: sys.stderr.write(printable(text) + "\n"))
        self._epochs = 0

    def start(self, run: Run, done: int) -> None:
        """Say what begins."""
        self._epochs = run.recipe.epochs
        recipe = run.recipe
        text = f"{recipe.method.name} on {recipe.data.name} with {recipe.model.name}, seed {recipe.seed}"
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
        self._done, self._inside, self._share, self._drawn = 0, 0.0, 0.0, 0.0

    def start(self, run: Run, done: int) -> None:
        """Show the bar."""
        for line in _derived(run, done):
            self._console.print(Text(printable(line), style="dim"))
        self._done = done
        self._task = self._progress.add_task(run.recipe.method.name, total=run.recipe.epochs, completed=done)
        self._live.start(refresh=True)

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Move to an epoch."""
        self._done, self._inside, self._share = epoch - 1, 0.0, 1 / max(steps, 1)

    def step(self) -> None:
        """Move a little; the bar is redrawn at most ten times per second, however fast the steps are."""
        self._inside += self._share
        now = time.monotonic()
        if now - self._drawn > 0.1:
            self._drawn = now
            self._progress.update(self._task, completed=self._done + self._inside)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Show the newest figures."""
        self._progress.update(self._task, completed=line["epoch"])
        self._figures.plain = describe(line)
        self._live.refresh()

    def stop(self) -> None:
        """Remove the bar."""
        self._live.stop()


class ForwardingReporter(Reporter):
    """Passes everything on to another reporter; a base for reporters that add something of their own."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner

    def start(self, run: Run, done: int) -> None:
        """Pass on."""
        self._inner.start(run, done)

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Pass on."""
        self._inner.begin_epoch(epoch, steps)

    def step(self) -> None:
        """Pass on."""
        self._inner.step()

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Pass on."""
        self._inner.end_epoch(line)

    def stop(self) -> None:
        """Pass on."""
        self._inner.stop()


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
