"""What is run, and the door of the places that run it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """A Python module to run, its arguments, and the file for its output.

    Attributes:
        name: What messages call it.
        module: Run as `python -m MODULE`.
        arguments: Its arguments.
        log: What it says is added to this file.
        accelerator: Whether it needs a GPU; "auto" takes one where there are any.
        devices: How many GPUs, where it takes them.
        cpus: Processor cores that it keeps busy.
        environment: Variables that it gets beside those of the process that starts it.
        lock: A file that the task holds locked. Where a task is started again because its machine was lost, the first
            attempt may hold it for some moments more.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    cpus: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None


@dataclass(frozen=True)
class Ended:
    """How a task ended.

    Attributes:
        task: Its name.
        code: Exit code; negative: the signal that killed it.
        message: The last line that it said, for a task that failed.
        together: The largest number of tasks that ran at the same time as it, itself included.
    """

    task: str
    code: int
    message: str
    together: int = 1


class Executor(Protocol):
    """A place that runs work. Tasks are submitted, then collected until none is left."""

    def room(self, task: Task) -> int:
        """How many tasks like this one can run at the same time, at least 1; refused where not even one ever can."""

    def submit(self, task: Task) -> None:
        """Start a task, or queue it until there is room."""

    def collect(self) -> list[Ended]:
        """The tasks that have ended since the last call; does not wait."""

    def cancel(self) -> None:
        """End all tasks that have not ended."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results of a function in the order of the items; an error of one item is raised here."""

    def check_shared(self, *paths: Path) -> None:
        """Refuse files that some machine of this place does not see."""


def as_mapper(executor: Executor | None) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """`executor.map`, or the built-in `map` where there is no executor: in this process, one item after the other."""
    return map if executor is None else executor.map
