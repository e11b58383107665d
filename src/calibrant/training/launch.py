"""Several processes that train one run: they start together and end together, whatever ends one of them.

Three things can keep such processes alive for ever. The first meeting of the processes and every collective operation
wait in C++ for a process that may be gone. The destructors of torch's process group may wait for a lock that an
interpreter does not give back when it ends. And children outlive their parent. So a thread in every process watches
signals, children, parent and the connection to the other processes, and ends the process where the main thread does
not. That is safe at any moment: every file of a run is written so that a kill leaves it whole.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from calibrant.data import Unreadable
from calibrant.errors import CalibrantError
from calibrant.logs import at_level
from calibrant.training.cluster import launched_by_srun
from calibrant.training.lifeline import Lifeline
from calibrant.training.run import is_run

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Fabric logs remarks on processes, precision and tensor cores, under the name of the half of Lightning that was
# imported last.
FABRIC_LOGGERS = ("lightning.fabric", "lightning.pytorch")
_LAUNCHER = "CALIBRANT_LAUNCHER"
_POLL = 0.2
# How long the main thread may take to end by itself: it restores the terminal and knows more about what happened.
_GRACE = 2.0
# How long children may take to end after a run that is complete.
_PATIENCE = 10.0


class ProcessLost(CalibrantError):
    """Another process of the run ended before the run did."""


def stopped_message(path: Path) -> str:
    """What a person who stopped the run at `path` should know."""
    if not is_run(path):
        return "stopped before anything was written"
    return f"stopped; continue with: calibrant train --resume {path}"


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Say in an interrupt how the run at `path` can be continued."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(stopped_message(path)) from error


@contextmanager
def first_process_speaks() -> Iterator[None]:
    """Let only the first of several processes say what went wrong: they all know the same."""
    try:
        yield
    except (CalibrantError, KeyboardInterrupt) as error:
        # Where a process was lost, the first one may be the one that is gone; a picture is met by one process alone.
        if is_first_process() or isinstance(error, ProcessLost | Unreadable):
            raise
        raise SystemExit(2) from error


def is_first_process() -> bool:
    """Whether this process is the one that speaks, also before the processes have met."""
    # torchrun sets RANK, srun SLURM_PROCID (also for a process alone, where it says nothing), our launcher LOCAL_RANK.
    alone = os.environ.get("SLURM_PROCID", "0") if launched_by_srun() else os.environ.get("LOCAL_RANK", "0")
    return int(os.environ.get("RANK", alone)) == 0


@contextmanager
def launched(fabric: "Fabric", path: Path) -> Iterator[None]:
    """Launch Fabric's processes; inside the block a process that is left alone ends, and after it none is left.

    Args:
        fabric: Configured, not launched yet.
        path: The run folder, for messages.
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
            watch.lifeline = _lifeline(fabric, path)
            fabric.launch()
        yield
        complete = True
    except RuntimeError as error:
        if watch.saw_interrupt():
            raise KeyboardInterrupt from error
        if not _is_lost_peer(error):
            raise
        raise ProcessLost(lost_message("another process", path)) from error
    finally:
        watch.stop(complete=complete)
        _end(children, _PATIENCE if complete else 0.0)


def _lifeline(fabric: "Fabric", path: Path) -> Lifeline:
    try:
        return Lifeline(fabric.global_rank, fabric.world_size)
    except OSError as error:
        raise ProcessLost(lost_message("another process", path)) from error


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
            environment = {**os.environ, "LOCAL_RANK": str(rank), _LAUNCHER: str(os.getpid())}
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
    from torch import distributed

    kinds = tuple(getattr(distributed, name) for name in ("DistBackendError", "DistNetworkError", "DistStoreError"))
    return isinstance(error, kinds) or "gloo" in str(error).lower()


def lost_message(which: str, path: Path) -> str:
    """What a person should know where a process of the run at `path` is gone."""
    way_out = f" Continue with: calibrant train --resume {path}" if is_run(path) else ""
    return f"{which} of this run ended before the run did.{way_out}"


class _Watch(threading.Thread):
    """Ends this process where the main thread cannot."""

    def __init__(self, children: list[subprocess.Popen[bytes]], path: Path) -> None:
        super().__init__(daemon=True, name="calibrant-processes")
        self._interrupted = False
        self._children, self._path = children, path
        self._parent = int(os.environ.get(_LAUNCHER, os.getppid()))
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
        """Look around a few times per second."""
        while not self._done.wait(_POLL):
            if self.saw_interrupt():
                self._wait_for_the_main_thread()
                self._leave(stopped_message(self._path) if is_first_process() else None, 128 + signal.SIGINT)
            if os.getppid() != self._parent:
                self._leave(lost_message("the first process", self._path), 2)
            for rank, child in enumerate(self._children, 1):
                if child.poll():
                    self._wait_for_the_main_thread()
                    self._leave(lost_message(f"process {rank} (exit code {child.returncode})", self._path), 2)
            if self.lifeline is not None and self.lifeline.broken():
                self._wait_for_the_main_thread()
                self._leave(lost_message("another process", self._path), 2)

    def saw_interrupt(self) -> bool:
        """Whether SIGINT has come, also where the main thread does not know it yet."""
        if self._signals is not None:
            with suppress(BlockingIOError):
                self._interrupted |= signal.SIGINT in os.read(self._signals, 64)
        return self._interrupted

    def _wait_for_the_main_thread(self) -> None:
        if self._done.wait(_GRACE):
            # It ends this thread, too: `stop` waits for it.
            sys.exit()

    def _leave(self, message: str | None, code: int) -> NoReturn:
        """End at once, without a destructor or an exit handler."""
        for child in self._children:
            child.kill()
        if message is not None:
            # Past Python's buffers, whose locks the main thread may hold; and the cursor that a live bar has hidden.
            cursor = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
            os.write(2, f"{cursor}calibrant: {message}\n".encode())
        os._exit(code)
