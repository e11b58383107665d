"""When samples may leave: after which epochs, counted from 1."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from calibrant.checks import number, whole
from calibrant.errors import invalid


class Schedule(ABC):
    """Says after which finished epochs (1, 2, 3, ...) a policy acts.

    A schedule holds no state of its own: what it must remember lives in `memory`, a JSON-able dictionary that the
    pruner saves and restores.
    """

    known_ahead: bool = True
    """Whether `due` depends on the epoch alone, so that the number of steps can be computed before training."""

    @property
    @abstractmethod
    def first(self) -> int:
        """Earliest epoch after which the schedule can act."""

    @abstractmethod
    def due(self, epoch: int, memory: dict[str, Any], loss: float | None = None) -> bool:
        """Whether a policy that cuts acts now, after the 1-based `epoch`."""

    @abstractmethod
    def spans(self, epoch: int, memory: dict[str, Any]) -> bool:
        """Whether `epoch` lies between start and end: then a policy that draws anew every epoch draws."""

    def __repr__(self) -> str:
        # Part of the saved settings, so without a memory address; dataclasses bring their own.
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


@dataclass(frozen=True)
class Every(Schedule):
    """After epochs `start`, `start + interval`, `start + 2 * interval`, ..., none later than `until`.

    Args:
        interval: Epochs between two cuts, at least 1.
        start: First epoch after which samples leave; `interval` unless told.
        until: Last epoch after which samples may leave; no end unless told.

    >>> every = Every(10, start=40)
    >>> [epoch for epoch in range(1, 71) if every.due(epoch, {})]
    [40, 50, 60, 70]
    """

    interval: int
    start: int | None = field(default=None, kw_only=True)
    until: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole("interval", self.interval, 1)
        if self.start is not None:
            whole("start", self.start, 1)
        if self.until is not None and whole("until", self.until, 1) < self.first:
            raise invalid("until", f"not lie before the first cut (epoch {self.first})", self.until)

    @property
    def first(self) -> int:
        """The epoch of the first cut."""
        return self.interval if self.start is None else self.start

    def due(self, epoch: int, memory: dict[str, Any], loss: float | None = None) -> bool:  # noqa: ARG002 (Schedule's)
        """Whether `epoch` is `first` plus a multiple of the interval."""
        return self.spans(epoch, memory) and (epoch - self.first) % self.interval == 0

    def spans(self, epoch: int, memory: dict[str, Any]) -> bool:  # noqa: ARG002 (Schedule's signature)
        """Whether `first <= epoch <= until`."""
        return epoch >= self.first and (self.until is None or epoch <= self.until)


@dataclass(frozen=True, init=False)
class AtEpochs(Schedule):
    """After the listed epochs, counted from 1; the paper's set `ep` of pruning epochs.

    >>> AtEpochs([80, 120]).due(80, {})
    True
    """

    epochs: tuple[int, ...]

    def __init__(self, epochs: Iterable[int]) -> None:
        if not isinstance(epochs, Iterable):
            raise invalid("epochs", "be a list of epochs", repr(epochs), f"One is written AtEpochs([{epochs!r}]).")
        listed = tuple(epochs)
        if not listed:
            raise invalid("epochs", "name at least one epoch", "none", "Leave the schedule and the policy out instead.")
        for epoch in listed:
            whole("each of epochs", epoch, 1)
        object.__setattr__(self, "epochs", tuple(sorted(set(listed))))

    @property
    def first(self) -> int:
        """The first of the epochs."""
        return self.epochs[0]

    def due(self, epoch: int, memory: dict[str, Any], loss: float | None = None) -> bool:  # noqa: ARG002 (Schedule's)
        """Whether `epoch` is listed."""
        return epoch in self.epochs

    def spans(self, epoch: int, memory: dict[str, Any]) -> bool:  # noqa: ARG002 (Schedule's signature)
        """Whether the first listed epoch is reached."""
        return epoch >= self.first


@dataclass(frozen=True, repr=False)
class OnPlateau(Schedule):
    """Whenever the epoch's loss, given to `step(loss=...)`, has not improved for `patience` epochs.

    The paper: "when the loss function starts plateauing". After a cut the count starts again, against the best loss so
    far; with an `interval` the first plateau alone is waited for. The number of steps is not known ahead of time with
    this schedule.

    Args:
        patience: Epochs without improvement before a cut, at least 1.
        interval: Epochs between two cuts after the first one, whatever the loss does then; None waits for the next
            plateau.
        improvement: A loss improves where it falls below `best * (1 - improvement)` (for a positive best loss).
        start: Earliest epoch after which samples may leave.

    >>> plateau, memory = OnPlateau(patience=2), {}
    >>> [plateau.due(epoch, memory, loss) for epoch, loss in enumerate([3.0, 2.0, 2.0, 2.0, 1.0], start=1)]
    [False, False, False, True, False]
    """

    patience: int = 5
    improvement: float = field(default=1e-3, kw_only=True)
    start: int = field(default=1, kw_only=True)
    interval: int | None = field(default=None, kw_only=True)
    known_ahead = False

    def __post_init__(self) -> None:
        whole("patience", self.patience, 1)
        whole("start", self.start, 1)
        if self.interval is not None:
            whole("interval", self.interval, 1)
        if not 0 <= number("improvement", self.improvement) < 1:
            raise invalid("improvement", "lie in [0, 1)", self.improvement)

    def __repr__(self) -> str:
        # Part of the saved settings: without an interval it reads as in version 0.1.0, which had none.
        options = f"patience={self.patience}, improvement={self.improvement}, start={self.start}"
        return f"OnPlateau({options}{'' if self.interval is None else f', interval={self.interval}'})"

    @property
    def first(self) -> int:
        """The first epoch that can follow `patience` epochs without improvement."""
        return max(self.start, self.patience + 1)

    def due(self, epoch: int, memory: dict[str, Any], loss: float | None = None) -> bool:
        """Take the loss of this epoch into account, then say whether it has stalled for `patience` epochs."""
        if loss is None:
            raise invalid("loss", "be given to step() with OnPlateau", "None", "Call pruner.step(loss=mean_loss).")
        if self.interval is not None and memory.get("fired"):
            return (epoch - int(memory["first"])) % self.interval == 0
        if not isfinite(loss):
            return False  # one overflowing batch says nothing about a plateau
        best = memory.get("best")
        if best is None or loss < best - abs(best) * self.improvement:
            memory.update(best=loss, waited=0)
            return False
        memory["waited"] += 1
        if memory["waited"] < self.patience or epoch < self.start:
            return False
        memory.update(waited=0, fired=True)
        if self.interval is not None:
            memory["first"] = epoch
        return True

    def spans(self, epoch: int, memory: dict[str, Any]) -> bool:  # noqa: ARG002 (Schedule's signature)
        """Whether a plateau has been met before."""
        return bool(memory.get("fired", False))
