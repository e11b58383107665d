"""One interface for work that is spread out: apply a function to parts, or run tasks, on any executor."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from calibrant.errors import CalibrantError, InvalidInput, invalid, one_line
from calibrant.files import output_error
from calibrant.own_code import unexpected

ExecutorName = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """A Python module to run in a process of its own, as `python -m MODULE ARGUMENTS`.

    Its output is appended to `log`, and `environment` is added to its variables. It uses `cpus` cores and, with the
    accelerator "cuda" or "auto" if there is one, `devices` GPUs. It keeps the file `lock` locked: if its machine is
    lost and it is started again, the new process waits until the first one has released this file.
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
    """How a task ended."""

    task: str
    code: int  # a negative number is the signal that killed the process
    message: str  # why it failed: the last line of its output, or the signal; empty if it did not fail


class Executor(Protocol):
    """Where work runs."""

    def run(self, tasks: Sequence[Task], jobs: int | None, watch: Callable[[Ended], None]) -> None:
        """Run tasks, at most `jobs` at once, and call `watch` with each that ends. An error ends those that run."""

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Apply a function to each part. Results come in the order of the parts; errors are raised here."""

    def check_shared(self, *paths: Path) -> None:
        """Raise if a machine of this executor does not see these files."""


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


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    watch: Callable[[Ended], None] = lambda _: None,
    executor: Executor | None = None,
) -> list[Ended]:
    """Run all tasks. A task that fails does not stop the others.

    Args:
        tasks: The tasks, in the order in which they start.
        jobs: How many run at once. None: one on this machine, as many as fit on another executor.
        watch: Called with each task that has ended.
        executor: Where they run. None: processes of this machine.
    """
    if jobs is not None and jobs < 1:
        raise invalid("jobs", "be at least 1", jobs)
    ended: list[Ended] = []

    def note(task: Ended) -> None:
        ended.append(task)
        watch(task)

    (executor or Processes(jobs or 1)).run(tasks, jobs, note)
    return ended


@contextmanager
def make_executor(name: ExecutorName = "local", *, address: str | None = None) -> Iterator[Executor | None]:
    """Open the executor that `--executor` and `--address` name; close it when the block ends.

    Args:
        name: "local" yields None, which every function takes for this machine. "ray" needs `calibrant[ray]`.
        address: `HOST:PORT` of the head of a Ray cluster that this machine belongs to, or "auto" to search for it.
            None: Ray starts on this machine alone, unless the environment variable RAY_ADDRESS names a cluster.
    """
    if name not in get_args(ExecutorName):
        raise invalid("executor", "be local or ray", repr(name))
    if name == "local":
        if address is not None:
            raise invalid("address", "be left out for the local executor", repr(address), "Add --executor ray.")
        yield None
        return
    from calibrant.scale.on_ray import RayExecutor

    with RayExecutor(address) as executor:
        yield executor


def refuse_on_cluster(executor: ExecutorName, **settings: Any) -> None:
    """Raise if a setting is given that works only with the local executor, and another executor is chosen."""
    for name, value in settings.items():
        if executor != "local" and value not in (None, False, 0):
            flag = name.replace("_", "-")
            hint = f"Leave out --{flag}, or run it locally."
            raise invalid(name, f"be left out with --executor {executor}", value, hint)


class Processes:
    """Runs work in child processes of this one.

    Args:
        jobs: How many at once. They share the cores and take turns on the GPUs. `map` with one job runs in this
            process.
    """

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise invalid("jobs", "be at least 1", jobs)
        self._jobs = jobs

    def run(self, tasks: Sequence[Task], jobs: int | None, watch: Callable[[Ended], None]) -> None:
        """Run each task in a process. An error in this process kills those that run."""
        slots = range(min(jobs or self._jobs, self._jobs))
        waiting = list(tasks)
        running: dict[int, ChildProcess] = {}
        try:
            while waiting or running:
                for slot in slots:
                    if waiting and slot not in running:
                        variables = task_environment(os.environ, slot, len(slots))
                        running[slot] = ChildProcess(waiting.pop(0), variables)
                time.sleep(_POLL_SECONDS)
                for slot, child in list(running.items()):
                    if child.process.poll() is not None:
                        del running[slot]
                        watch(child.wait())
        finally:
            for child in running.values():
                child.kill()

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Apply a function to each part; results come in the order of the parts."""
        if self._jobs == 1:
            yield from map(function, parts)
            return
        done = 0
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._jobs, mp_context=spawn, initializer=_set_up_worker) as pool:
            try:
                for result in pool.map(function, parts):
                    done += 1
                    yield result
            except BrokenProcessPool as error:
                raise InvalidInput(
                    f"A worker process was killed at part {done + 1} of {len(parts)} or one of the next. "
                    "If memory ran out, use fewer jobs or smaller parts."
                ) from error

    def check_shared(self, *paths: Path) -> None:
        """Do nothing: this machine sees its own files."""


def _set_up_worker() -> None:
    """Let a worker of a pool end with Ctrl-C, silently, and with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_for_parent, daemon=True).start()


class ChildProcess:
    """A process that runs a task; that of the task is added to its environment `variables`."""

    def __init__(self, task: Task, variables: Mapping[str, str], folder: Path | None = None) -> None:
        self.task = task
        try:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            with task.log.open("ab") as log:
                # Nothing is written to standard input. The task ends when the system closes it: see `task_main`.
                self.process = subprocess.Popen(  # noqa: S603 (a list, no shell, our own interpreter)
                    [sys.executable, "-m", task.module, *task.arguments],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**variables, **task.environment},
                    cwd=folder,
                    start_new_session=True,
                )
        except OSError as error:
            raise output_error(task.log, error) from error

    def wait(self) -> Ended:
        """Wait until the process ends, and return how it ended."""
        code = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        message = ""
        if code < 0:
            message = f"killed by {signal.Signals(-code).name}"
        elif code > 0:
            message = _reason_in(self.task.log)
        return Ended(self.task.name, code, message)

    def kill(self) -> None:
        """End the process and every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()


def task_environment(inherited: Mapping[str, str], slot: int, jobs: int, gpus: int | None = None) -> dict[str, str]:
    """Return the environment of a task: its share of the cores, and one GPU if there are several.

    A number of threads that this process inherited is kept. Without `gpus`, torch counts them.

    >>> task_environment({"OMP_NUM_THREADS": "4"}, slot=1, jobs=2, gpus=2)
    {'OMP_NUM_THREADS': '4', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    made = dict(inherited)
    made.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    names = [name for name in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not names:
        if gpus is None:
            import torch

            gpus = torch.cuda.device_count()
        names = [str(number) for number in range(gpus)]
    if jobs > 1 and len(names) > 1:
        made["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    return made


def _reason_in(log: Path) -> str:
    """Return the last line of a log, which says why its process failed: `task_main` and Python end with the error."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return last.removeprefix("calibrant: ")


def task_main(work: Callable[[], object]) -> None:
    """Do the work of a task in its own process, and exit as a command does. Call it in the module that a task names.

    Bad input exits with 2 and a fault of ours with 70, after one line that says why. If the process that started this
    one ends, in any way, this process and every process that it started are killed.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work()
    except CalibrantError as error:
        message, code = one_line(error), 2
    except Exception as error:  # noqa: BLE001 (whatever nobody expected is our fault)
        traceback.print_exc()
        message, code = unexpected(error)
    else:
        sys.exit(0)
    sys.stderr.write(f"calibrant: {message}\n")
    sys.exit(code)


def _end_with_parent() -> None:
    """Wait until standard input is closed, then kill the process group of this process."""
    while os.read(0, 1024):
        pass
    # `ChildProcess` started this process as the leader of a new group, so this kills only what belongs to the task.
    os.killpg(os.getpgrp(), signal.SIGKILL)
