"""Run several processes at once; none of them outlives the process that started them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from calibrant.errors import CalibrantError, invalid, one_line, our_fault
from calibrant.files import output_error
from calibrant.scale.task import Ended, Executor, Item, Result, Task

_POLL_SECONDS = 0.1


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    watch: Callable[[list[Ended]], None] | None = None,
    on_concurrency: Callable[[dict[str, int]], None] | None = None,
    executor: Executor | None = None,
) -> list[Ended]:
    """Run all tasks, at most `jobs` at a time; a failed one does not stop the others.

    Args:
        tasks: What to run, in this order.
        jobs: How many at once; None for one here, and for as many as there is room for on an executor.
        watch: Called a few times per second with those that have ended so far.
        on_concurrency: Called as often with each running task's `together` so far: we may be killed before it ends.
        executor: Where they run; None for processes of this machine.
    """
    if jobs is not None and jobs < 1:
        raise invalid("jobs", "be at least 1", jobs)
    place = Processes(jobs or 1) if executor is None else executor
    waiting, ended = list(tasks), list[Ended]()
    together: dict[str, int] = {}
    try:
        while waiting or together:
            while waiting and len(together) < min(jobs or len(tasks), place.room(waiting[0])):
                place.submit(waiting[0])
                together[waiting.pop(0).name] = 1
            together = {name: max(count, len(together)) for name, count in together.items()}
            if on_concurrency is not None:
                on_concurrency(together)
            ended += [replace(one, together=together.pop(one.task)) for one in place.collect()]
            if watch is not None:
                watch(ended)
            if together:
                time.sleep(_POLL_SECONDS)
    finally:
        place.cancel()
    return ended


class Processes:
    """Child processes of this one.

    Args:
        jobs: How many at once; they share the cores and take turns on the GPUs.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._running: dict[int, Child] = {}

    def room(self, task: Task) -> int:  # noqa: ARG002 (all tasks are alike here)
        """As many as there are jobs."""
        return self._jobs

    def submit(self, task: Task) -> None:
        """Start a process."""
        slot = min(set(range(self._jobs)) - self._running.keys())
        self._running[slot] = Child(task, environment(os.environ, slot, self._jobs))

    def collect(self) -> list[Ended]:
        """Those that have ended."""
        done = {slot: child for slot, child in self._running.items() if child.has_ended()}
        for slot in done:
            del self._running[slot]
        return [child.exit() for child in done.values()]

    def cancel(self) -> None:
        """Kill all of them."""
        for child in self._running.values():
            child.kill()
        self._running.clear()

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """In this process."""
        return map(function, items)

    def check_shared(self, *paths: Path) -> None:
        """This machine sees its own files."""


class Child:
    """A process that runs a task and that does not outlive this one.

    Args:
        task: What it runs.
        variables: Its environment; that of the task is added.
        folder: Where it runs; None for the folder of this process.
    """

    def __init__(self, task: Task, variables: Mapping[str, str], folder: Path | None = None) -> None:
        self.task = task
        try:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            with task.log.open("ab") as log:
                # A list, no shell; our own interpreter. The pipe is never written to: its closing is the message.
                self._process = subprocess.Popen(  # noqa: S603
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
        """Whether it has."""
        return self._process.poll() is not None

    def exit(self) -> Ended:
        """How it ended; waits for that."""
        code = self._process.wait()
        self._close()
        message = ""
        if code < 0:
            message = f"killed by {signal.Signals(-code).name}"
        elif code:
            message = _last_line(self.task.log)
        return Ended(self.task.name, code, message)

    def kill(self) -> None:
        """End it and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def environment(inherited: Mapping[str, str], slot: int, jobs: int, gpus: int | None = None) -> dict[str, str]:
    """The environment of the task in a slot: its share of the cores, and its GPU where there are several.

    >>> environment({"OMP_NUM_THREADS": "4"}, slot=1, jobs=2, gpus=2)
    {'OMP_NUM_THREADS': '4', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    made = dict(inherited)
    made.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    visible = inherited.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name.strip()] or [str(n) for n in range(_gpus(gpus))]
    if jobs > 1 and len(names) > 1:
        made["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    return made


def _gpus(stated: int | None) -> int:
    if stated is not None:
        return stated
    import torch

    return torch.cuda.device_count()


def _last_line(log: Path) -> str:
    """The last line of a log; of a traceback the one that names the error, which may be followed by advice (CUDA)."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] + 1 :] if frames else []
    # Source lines of the last frame are indented; what is not, begins with the error.
    error = next((line for line in after if not line.startswith(" ")), lines[-1])
    return (lines[-1] if lines[-1].startswith("calibrant: ") else error).strip().removeprefix("calibrant: ")


def exit_code_of(work: Callable[[], object]) -> int:
    """Do the work of a task; its exit code, as of a command. Bad input and a fault of ours end with one line each."""
    try:
        work()
    except CalibrantError as error:
        line, code = one_line(error), 2
    except Exception as error:  # noqa: BLE001 (whatever nobody foresaw is our fault)
        traceback.print_exc()  # standard error is a log: the line behind it is what the study shows
        line, code = our_fault(error), 70
    else:
        return 0
    sys.stderr.write(f"calibrant: {line}\n")
    return code


def end_with_parent() -> None:
    """Kill this process and all that it started as soon as standard input is closed."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        # The parent made us the leader of a group, so this reaches loader and DDP processes and nobody else.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
