"""Work in processes of this machine. No process outlives the one that started it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

from calibrant.errors import CalibrantError, InvalidInput, invalid, one_line, our_fault
from calibrant.files import output_error
from calibrant.scale.work import Ended, Part, Result, Task


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
        self._running: dict[int, ChildProcess] = {}

    def capacity(self, task: Task) -> int:  # noqa: ARG002 (all tasks are alike here)
        """Return the number of jobs."""
        return self._jobs

    def submit(self, task: Task) -> None:
        """Start a process."""
        slot = min(set(range(self._jobs)) - self._running.keys())
        self._running[slot] = ChildProcess(task, task_environment(os.environ, slot, self._jobs))

    def collect(self) -> list[Ended]:
        """Return the tasks that have ended since the last call."""
        ended = []
        for slot, child in list(self._running.items()):
            if child.has_ended():
                del self._running[slot]
                ended.append(child.wait())
        return ended

    def cancel(self) -> None:
        """Kill all running tasks."""
        for child in self._running.values():
            child.kill()
        self._running.clear()

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
    """A process that runs a task.

    Args:
        task: The task.
        variables: Environment of the process; that of the task is added.
        folder: Working directory. None: that of this process.
    """

    def __init__(self, task: Task, variables: Mapping[str, str], folder: Path | None = None) -> None:
        self.task = task
        try:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            with task.log.open("ab") as log:
                # Nothing is written to standard input. The task ends when the system closes it: see `task_main`.
                self._process = subprocess.Popen(  # noqa: S603 (a list, no shell, our own interpreter)
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

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def wait(self) -> Ended:
        """Wait until the process ends, and return how it ended."""
        code = self._process.wait()
        self._close()
        message = ""
        if code < 0:
            message = f"killed by {signal.Signals(-code).name}"
        elif code > 0:
            message = _reason_in(self.task.log)
        return Ended(self.task.name, code, message)

    def kill(self) -> None:
        """End the process and every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def task_environment(inherited: Mapping[str, str], slot: int, jobs: int, gpus: int | None = None) -> dict[str, str]:
    """Return the environment of a task: its share of the cores, and one GPU if there are several.

    Args:
        inherited: Environment of this process. A number of threads that it sets is kept.
        slot: Which of the jobs the task is, from 0.
        jobs: How many tasks run at once.
        gpus: Number of GPUs of this machine. None: ask torch.

    >>> task_environment({"OMP_NUM_THREADS": "4"}, slot=1, jobs=2, gpus=2)
    {'OMP_NUM_THREADS': '4', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    made = dict(inherited)
    cores = os.cpu_count() or 1
    made.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    names = [name for name in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not names:
        names = [str(number) for number in range(_number_of_gpus() if gpus is None else gpus)]
    if jobs > 1 and len(names) > 1:
        made["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    return made


def _number_of_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _reason_in(log: Path) -> str:
    """Return the line of a log that says why its process failed.

    That is the last line of ours, or the line that names the error of a traceback: CUDA adds advice below it.
    """
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if not lines:
        return "no output"
    if lines[-1].startswith("calibrant: "):
        return lines[-1].removeprefix("calibrant: ").strip()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    if frames:
        # The source lines of the last frame are indented, the error below them is not.
        for line in lines[frames[-1] + 1 :]:
            if not line.startswith(" "):
                return line.strip()
    return lines[-1].strip()


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
        message, code = our_fault(error), 70
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
