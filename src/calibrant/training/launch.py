"""Several processes that train one run: they start together and end together, whatever ends one of them.

Three things can keep such processes alive for ever. The first meeting of the processes and every collective operation
wait in C++ for a process that may be gone. The destructors of torch's process group may wait for a lock that an
interpreter does not give back when it ends. And children outlive their parent. So a thread in every process watches
signals, children, parent and the connection to the other processes, and ends the process where the main thread does
not. That is safe at any moment: every file of a run is written so that a kill leaves it whole.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed import DistError

from calibrant.errors import CalibrantError, InvalidInput, one_line
from calibrant.logs import at_level
from calibrant.training.lifeline import Lifeline, Reason
from calibrant.training.recipe import first_difference
from calibrant.training.speaking import (
    LAUNCHER,
    REFUSED,
    ProcessLost,
    is_first_process,
    is_told,
    lost_message,
    mark_told,
    stopped_message,
)

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Fabric logs remarks on processes, precision and tensor cores, under the name of the half of Lightning that was
# imported last.
FABRIC_LOGGERS = ("lightning.fabric", "lightning.pytorch")
_POLL = 0.2
# How long the main thread may take to end by itself: it restores the terminal and knows more about what happened.
_GRACE = 2.0
# How long children may take to end after a run that is complete.
_PATIENCE = 10.0


@contextmanager
def launched(fabric: "Fabric", path: Path, settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Launch Fabric's processes; inside the block a process that is left alone ends, and after it none is left.

    Args:
        fabric: Configured, not launched yet.
        path: The run folder, for messages.
        settings: Names and values that must be the same in all processes; JSON must be able to hold them.
    """
    if fabric.world_size == 1:
        fabric.launch()
        yield
        return
    children = _start_children(fabric)
    watch = _Watch(children, path)
    watch.start()
    complete = False
    try:
        with at_level(logging.WARNING, *FABRIC_LOGGERS):
            try:
                watch.lifeline = Lifeline(fabric.global_rank, fabric.world_size)
            except OSError as error:
                raise watch.lost("another process") from error
            _refuse_other_settings(watch.lifeline, fabric.global_rank, settings or {})
            fabric.launch()
        yield
        complete = True
    except RuntimeError as error:
        if watch.saw_interrupt():
            raise KeyboardInterrupt from error
        if not _is_lost_peer(error):
            raise
        watch.wait_for_a_reason()
        raise watch.lost("another process") from error
    except (CalibrantError, OSError) as error:
        watch.tell(Reason(fabric.global_rank, one_line(error)), error)
        raise
    finally:
        watch.stop(complete=complete)
        _end(children, _PATIENCE if complete else 0.0)


def _refuse_other_settings(lifeline: Lifeline, rank: int, settings: Mapping[str, Any]) -> None:
    """Refuse a process that was started with other settings than the first."""
    mine = json.dumps(settings)
    first, here = json.loads(lifeline.shared(mine)), json.loads(mine)
    if (key := first_difference(first, here)) is not None:
        raise InvalidInput(
            f"{key} must be the same in all processes of a run, got {first.get(key)} in process 0 and "
            f"{here.get(key)} in process {rank}. Start all of them with one command line."
        )


def _start_children(fabric: "Fabric") -> list[subprocess.Popen[bytes]]:
    """Start the other processes of this machine, unless torchrun or a scheduler did.

    Fabric's own launcher would do, but for two things: an interrupt from the terminal reaches its children while they
    import, and they show a traceback; and where a child ends, it kills the first process without a word.
    """
    launcher: Any = fabric.strategy.launcher
    if launcher is None or launcher.cluster_environment.creates_processes_externally:
        return []
    cluster = launcher.cluster_environment
    os.environ["MASTER_ADDR"] = cluster.main_address
    os.environ["MASTER_PORT"] = str(cluster.main_port)
    os.environ["NODE_RANK"] = "0"
    # From now on Fabric takes this process for one that was started by somebody else, and starts none itself.
    os.environ["LOCAL_RANK"] = "0"
    os.environ["WORLD_SIZE"] = str(fabric.world_size)
    command = [sys.executable, *sys.orig_argv[1:]]
    children = []
    with _interrupts_held_back():
        for rank in range(1, fabric.world_size):
            environment = {**os.environ, "LOCAL_RANK": str(rank), LAUNCHER: str(os.getpid())}
            children.append(subprocess.Popen(command, env=environment))  # noqa: S603 (our own command line)
    return children


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Block SIGINT. A child that is started here keeps it blocked for ever: this process ends it, not the terminal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(children: list[subprocess.Popen[bytes]], patience: float) -> None:
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        child.kill()
        child.wait()


def _is_lost_peer(error: RuntimeError) -> bool:
    """Whether an error of torch says that another process is gone; only its text tells, for gloo."""
    return isinstance(error, DistError) or "gloo" in str(error).lower()


class _Watch(threading.Thread):
    """Ends this process where the main thread cannot."""

    def __init__(self, children: list[subprocess.Popen[bytes]], path: Path) -> None:
        super().__init__(daemon=True, name="calibrant-processes")
        self._interrupted = False
        self._children, self._path = children, path
        self._parent = int(os.environ.get(LAUNCHER, os.getppid()))
        self.lifeline: Lifeline | None = None
        """Once the processes have met."""
        self._done = threading.Event()
        self._signals: int | None = None
        self._before = -1
        if hasattr(os, "set_blocking") and threading.current_thread() is threading.main_thread():
            # The system writes the number of a signal here at once; Python's own handler waits for the main thread.
            self._signals, write = os.pipe()
            os.set_blocking(self._signals, False)
            os.set_blocking(write, False)
            self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def stop(self, *, complete: bool) -> None:
        """The main thread has left the run by itself; the other processes need not end where it is complete."""
        self._done.set()
        self.join()
        if self.lifeline is not None:
            self.lifeline.close(farewell=complete)
        if self._signals is not None:
            os.close(signal.set_wakeup_fd(self._before))
            os.close(self._signals)

    def run(self) -> None:
        """Look around a few times per second, and end the process where the main thread does not do so in time."""
        while not self._done.wait(_POLL):
            if (ending := self._ending()) is not None and not self._done.wait(_GRACE):
                self._leave(*ending)

    def _ending(self) -> tuple[str | None, int] | None:
        """What to say, if anything, and the exit code; None where there is no reason to end."""
        if self.saw_interrupt():
            return (stopped_message(self._path) if is_first_process() else None), 128 + signal.SIGINT
        if os.getppid() != self._parent:
            return lost_message("the first process", self._path), REFUSED
        for rank, child in enumerate(self._children, 1):
            if child.poll():
                # With this code it has said by itself why, unless it told this process.
                silent = child.returncode == REFUSED and self._reason() is None
                lost = self.lost(f"process {rank} (exit code {child.returncode})")
                return (None if silent else str(lost)), REFUSED
        if self.lifeline is not None and self.lifeline.broken():
            lost = self.lost("another process")
            return (None if is_told(lost) else str(lost)), REFUSED
        return None

    def lost(self, which: str) -> ProcessLost:
        """The error where another process has ended: what that said last, where it said anything."""
        reason = self._reason()
        if reason is None:
            return ProcessLost(lost_message(which, self._path))
        lost = ProcessLost(f"process {reason.rank}: {reason.words}")
        self.tell(reason, lost)
        return lost

    def _reason(self) -> Reason | None:
        return None if self.lifeline is None else self.lifeline.reason()

    def wait_for_a_reason(self) -> None:
        """Give the first process time to pass on what a third one told it."""
        last = time.monotonic() + 2 * _GRACE  # it may itself wait for its main thread
        while self.lifeline is not None and not self.lifeline.broken() and time.monotonic() < last:
            time.sleep(_POLL)

    def tell(self, reason: Reason, error: Exception) -> None:
        """Let the processes at the other end know why this one ends. Only the first of them all speaks to the user."""
        told = self.lifeline is not None and (self.lifeline.tell(reason) or self._reason() is not None)
        if told and not is_first_process():
            mark_told(error)

    def saw_interrupt(self) -> bool:
        """Whether SIGINT has come, also where the main thread does not know it yet."""
        if self._signals is not None:
            with suppress(BlockingIOError):
                self._interrupted |= signal.SIGINT in os.read(self._signals, 64)
        return self._interrupted

    def _leave(self, message: str | None, code: int) -> NoReturn:
        """End at once, without a destructor or an exit handler."""
        for child in self._children:
            child.kill()
        if message is not None:
            # Past Python's buffers, whose locks the main thread may hold; and the cursor that a live bar has hidden.
            cursor = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
            os.write(2, f"{cursor}calibrant: {one_line(message)}\n".encode())
        os._exit(code)
