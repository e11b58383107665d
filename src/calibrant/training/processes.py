"""Run several processes at once; none of them outlives the process that started them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calibrant.errors import CalibrantError, invalid, one_line, our_fault
from calibrant.files import output_error

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """A Python module to run, its arguments, and the file for its output."""

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path


@dataclass
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
    together: int


@dataclass
class _Child:
    task: Task
    process: "subprocess.Popen[bytes]"
    slot: int
    together: int = field(default=1)


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    watch: Callable[[list[Ended]], None] | None = None,
    on_concurrency: Callable[[dict[str, int]], None] | None = None,
) -> list[Ended]:
    """Run all tasks, at most `jobs` at a time; a failed one does not stop the others.

    Args:
        tasks: What to run, in this order.
        jobs: How many at once.
        watch: Called a few times per second with those that have ended so far.
        on_concurrency: Called as often with each running task's `together` so far: we may be killed before it ends.
    """
    if jobs < 1:
        raise invalid("jobs", "be at least 1", jobs)
    waiting = list(tasks)
    running: list[_Child] = []
    ended: list[Ended] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                slot = min(set(range(jobs)) - {child.slot for child in running})
                running.append(_start(waiting.pop(0), slot, jobs))
            for child in running:
                child.together = max(child.together, len(running))
            if on_concurrency is not None:
                on_concurrency({child.task.name: child.together for child in running})
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                ended.append(_end(child))
            if watch is not None:
                watch(ended)
            if running:
                time.sleep(_POLL_SECONDS)
    finally:
        for child in running:
            _kill(child)
    return ended


def _start(task: Task, slot: int, jobs: int) -> _Child:
    try:
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("ab") as log:
            # A list, no shell; our own interpreter. The pipe is never written to: its closing is the message.
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", task.module, *task.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(os.environ, slot, jobs),
                start_new_session=True,
            )
    except OSError as error:
        raise output_error(task.log, error) from error
    return _Child(task, process, slot)


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


def _end(child: _Child) -> Ended:
    code = child.process.returncode
    assert child.process.stdin is not None
    child.process.stdin.close()
    message = ""
    if code < 0:
        message = f"killed by {signal.Signals(-code).name}"
    elif code:
        message = _last_line(child.task.log)
    return Ended(child.task.name, code, message, child.together)


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


def _kill(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
    if child.process.stdin is not None:
        child.process.stdin.close()


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
