"""When a trial of a sweep is stopped early. Optuna's pruners support one objective only; this rule uses all three.

At each rung (a quarter, half and three quarters of the epochs) a trial is looked at: its validation error, its
validation ECE, the samples it has seen so far. It is stopped if at least `dominators` trials that ran to the end had,
at the same rung, a lower error and a lower ECE after no more samples. One better trial is no reason: figures in the
middle of a training are noisy, and error and ECE still move when the learning rate falls.
"""

from collections.abc import Callable, Iterable
from typing import Any

from calibrant.training import ForwardingReporter, Reporter, Run

Figures = tuple[float, float, float]
"""Validation error, validation ECE, samples seen so far: lower is better in each."""


def rungs(epochs: int) -> tuple[int, ...]:
    """The epochs after which a trial is looked at.

    >>> rungs(160), rungs(3), rungs(1)
    ((40, 80, 120), (1, 2), ())
    """
    return tuple(sorted({share * epochs // 4 for share in (1, 2, 3)} - {0, epochs}))


def is_dominated(figures: Figures, finished: Iterable[Figures], *, dominators: int = 3) -> bool:
    """Whether at least `dominators` finished trials had a lower error and ECE at this rung after no more samples.

    >>> is_dominated((0.2, 0.1, 1000), [(0.1, 0.05, 900)] * 3)
    True
    >>> is_dominated((0.2, 0.01, 1000), [(0.1, 0.05, 900)] * 3)
    False
    """
    error, ece, seen = figures
    return sum(each[0] < error and each[1] < ece and each[2] <= seen for each in finished) >= dominators


def figures_at_rungs(log: Iterable[dict[str, Any]], epochs: int) -> dict[int, Figures]:
    """A run's figures at the rungs, from its log."""
    found: dict[int, Figures] = {}
    seen = 0
    for line in log:
        seen += line["samples"]
        if line["epoch"] in rungs(epochs) and "validation" in line:
            found[line["epoch"]] = _figures(line, seen)
    return found


def _figures(line: dict[str, Any], seen: int) -> Figures:
    return 1.0 - line["validation"]["accuracy"], line["validation"]["ece"], float(seen)


class TrialStopped(Exception):
    """Raised inside a training to stop it; the run folder stays and could be continued."""

    _WORDS = "stopped after epoch"

    def __init__(self, epoch: int) -> None:
        super().__init__(f"{self._WORDS} {epoch}")
        self.epoch = epoch

    @classmethod
    def said(cls, reason: str) -> bool:
        """Whether a trial was stopped by this exception; a storage keeps only its text."""
        return reason.startswith(cls._WORDS)


class RungReporter(ForwardingReporter):
    """Shows a trial's figures at each rung to `judge(epoch, figures)` and stops the training where it says so."""

    def __init__(self, judge: Callable[[int, Figures], bool], inner: Reporter) -> None:
        super().__init__(inner)
        self._judge = judge
        self._seen = 0
        self._rungs: tuple[int, ...] = ()

    def start(self, run: Run, done: int) -> None:
        """Count the samples that a continued run has seen already."""
        self._rungs = rungs(run.recipe.epochs)
        self._seen = sum(line["samples"] for line in run.epochs() if line["epoch"] <= done)
        super().start(run, done)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """At a rung, pass the figures to `judge`."""
        self._seen += line["samples"]
        super().end_epoch(line)
        at_rung = line["epoch"] in self._rungs and "validation" in line
        if at_rung and self._judge(line["epoch"], _figures(line, self._seen)):
            raise TrialStopped(line["epoch"])
