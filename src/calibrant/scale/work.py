"""One interface for work that is spread out: fold a function over parts, or run tasks, on any executor."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from calibrant.errors import invalid
from calibrant.files import refuse_existing

ExecutorName = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """A Python module to run in a process of its own.

    Attributes:
        name: Name of the task in messages.
        module, arguments: It is run as `python -m MODULE ARGUMENTS`.
        log: File to which its output is appended.
        accelerator, devices, cpus: "cpu", "cuda", or "auto" for a GPU if there is one; how many GPUs and cores it uses.
        environment: Variables that are added to its environment.
        lock: A file that the task keeps locked. If its machine is lost and it is started again, the new process waits
            until the first one has released this file.
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
        task: Name of the task.
        code: Exit code. A negative number is the signal that killed the process.
        message: Why the task failed: the last line of its output, or the signal. Empty if it did not fail.
        together: Largest number of tasks that ran at the same time as this one, itself included.
    """

    task: str
    code: int
    message: str
    together: int = 1


class Executor(Protocol):
    """Where work runs. Tasks are submitted, and then collected until none is left."""

    def capacity(self, task: Task) -> int:
        """Return how many tasks like this one can run at once, at least 1. Raise if not even one ever can."""

    def submit(self, task: Task) -> None:
        """Start a task, or queue it."""

    def collect(self) -> list[Ended]:
        """Return the tasks that have ended since the last call, without waiting."""

    def cancel(self) -> None:
        """End all tasks that are still running."""

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Apply a function to each part. Results come in the order of the parts; errors are raised here."""

    def check_shared(self, *paths: Path) -> None:
        """Raise if a machine of this executor does not see these files."""


class Accumulator(Protocol):
    """Collects the results of parts, one after the other."""

    def merge(self, result: Any, /) -> None:
        """Add the result of the next part."""


AccumulatorType = TypeVar("AccumulatorType", bound=Accumulator)


def map_parts(
    function: Callable[[Part], Result], parts: Sequence[Part], executor: Executor | None = None
) -> Iterator[Result]:
    """Apply a function to each part and yield the results in the order of the parts.

    Args:
        function: A function that other processes can import, or a `functools.partial` of one.
        parts: Its arguments, such as the files of a folder.
        executor: Where it runs. None: this process, one part after the other.
    """
    if executor is None:
        return map(function, parts)
    return executor.map(function, parts)


def fold(
    function: Callable[[Part], Any],
    parts: Sequence[Part],
    into: AccumulatorType,
    *,
    executor: Executor | None = None,
) -> AccumulatorType:
    """Apply a function to each part, merge the results into an accumulator in order, and return the accumulator.

    Args:
        function: See `map_parts`.
        parts: See `map_parts`.
        into: Its `merge` is called with each result.
        executor: See `map_parts`.

    >>> from collections import Counter
    >>> class Letters(Counter):
    ...     merge = Counter.update
    >>> fold(str.upper, ["ab", "b"], Letters())
    Letters({'B': 2, 'A': 1})
    """
    for result in map_parts(function, parts, executor):
        into.merge(result)
    return into


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    watch: Callable[[list[Ended]], None] | None = None,
    on_concurrency: Callable[[dict[str, int]], None] | None = None,
    executor: Executor | None = None,
) -> list[Ended]:
    """Run all tasks. A task that fails does not stop the others.

    Args:
        tasks: The tasks, in the order in which they start.
        jobs: How many run at once. None: one on this machine, as many as fit on another executor.
        watch: Called a few times per second with the tasks that have ended so far.
        on_concurrency: Called as often with the number of tasks that ran together with each running task so far. It
            is called before a task ends, because this process may be killed before then.
        executor: Where they run. None: processes of this machine.
    """
    from calibrant.scale.processes import Processes

    if jobs is not None and jobs < 1:
        raise invalid("jobs", "be at least 1", jobs)
    if executor is None:
        executor = Processes(jobs or 1)
    waiting = list(tasks)
    ended: list[Ended] = []
    together: dict[str, int] = {}
    try:
        while waiting or together:
            while waiting and len(together) < min(jobs or len(tasks), executor.capacity(waiting[0])):
                executor.submit(waiting[0])
                together[waiting.pop(0).name] = 1
            together = {name: max(count, len(together)) for name, count in together.items()}
            if on_concurrency is not None:
                on_concurrency(together)
            ended += [replace(task, together=together.pop(task.task)) for task in executor.collect()]
            if watch is not None:
                watch(ended)
            if together:
                time.sleep(_POLL_SECONDS)
    finally:
        executor.cancel()
    return ended


@contextmanager
def make_executor(
    name: ExecutorName = "local", *, address: str | None = None, new_folder: Path | None = None
) -> Iterator[Executor | None]:
    """Open the executor that `--executor` and `--address` name; close it when the block ends.

    Args:
        name: "local" yields None, which every function takes for this machine. "ray" needs `calibrant[ray]`.
        address: `HOST:PORT` of the head of a Ray cluster that this machine belongs to, or "auto" to search for it.
            None: Ray starts on this machine alone, unless the environment variable RAY_ADDRESS names a cluster.
        new_folder: The folder that Ray will write. If it exists, this raises before Ray starts.
    """
    if name not in get_args(ExecutorName):
        raise invalid("executor", "be local or ray", repr(name))
    if name == "local":
        if address is not None:
            raise invalid("address", "be left out for the local executor", repr(address), "Add --executor ray.")
        yield None
        return
    if new_folder is not None:
        refuse_existing(new_folder)
    from calibrant.scale.on_ray import RayExecutor

    with RayExecutor(address) as executor:
        yield executor


def refuse_on_cluster(executor: ExecutorName, **settings: Any) -> None:
    """Raise if a setting is given that works only with the local executor, and another executor is chosen."""
    for name, value in settings.items():
        if executor != "local" and value not in (None, False, 0):
            flag = name.replace("_", "-")
            way_out = f"Leave out --{flag}, or run it locally."
            raise invalid(name, f"be left out with --executor {executor}", value, way_out)
