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

from calibrant.data import Unreadable
from calibrant.errors import CalibrantError, InvalidInput, one_line
from calibrant.logs import at_level
from calibrant.training.cluster import launched_by_srun
from calibrant.training.lifeline import Lifeline, Reason
from calibrant.training.run import is_run

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Fabric logs remarks on processes, precision and tensor cores, under the name of the half of Lightning that was
# imported last.
FABRIC_LOGGERS = ("lightning.fabric", "lightning.pytorch")
_LAUNCHER = "CALIBRANT_LAUNCHER"
# torchrun shows what lies in this file below the tracebacks of its own.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# A note on an error that the first process says to the user.
_TOLD = "The first process says this, too."
_POLL = 0.2
# How long the main thread may take to end by itself: it restores the terminal and knows more about what happened.
_GRACE = 2.0
# How long children may take to end after a run that is complete.
_PATIENCE = 10.0
# The exit code of a process that has complained in a line.
_REFUSED = 2


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
    """Let one of several processes say what went wrong: the first, unless another one knows more."""
    try:
        yield
    except (CalibrantError, OSError, KeyboardInterrupt) as error:
        if not isinstance(error, KeyboardInterrupt):
            _leave_for_torchrun(error)
        if is_first_process() or _knows_more(error):
            raise
        if _started_by_us() and not (_is_told(error) or isinstance(error, KeyboardInterrupt)):
            # The first process came further than this one, or there would be no other.
            raise CalibrantError(f"process {os.environ['LOCAL_RANK']}: {error}") from error
        raise SystemExit(2) from error


def _knows_more(error: BaseException) -> bool:
    """Whether a process beside the first has to speak itself."""
    # Where a process was lost, the first one may be the one that is gone; a picture is met by one process alone.
    alone = isinstance(error, ProcessLost | Unreadable) or not isinstance(error, CalibrantError | KeyboardInterrupt)
    return alone and not _is_told(error)


def _is_told(error: BaseException) -> bool:
    return _TOLD in getattr(error, "__notes__", ())


def _started_by_us() -> bool:
    return _LAUNCHER in os.environ and "RANK" not in os.environ and not launched_by_srun()


def _leave_for_torchrun(error: Exception) -> None:
    """Write an error where torchrun looks for it: it shows the earliest one as the cause, and its own noise above."""
    place = os.environ.get(_ERROR_FILE)
    if place:
        # It counts whole seconds, and a lost process is never the cause.
        moment = int(time.time()) + isinstance(error, ProcessLost)
        told = {"message": f"calibrant: {one_line(error)}", "extraInfo": {"timestamp": str(moment)}}
        with suppress(OSError):
            Path(place).write_text(json.dumps({"message": told}))


def is_first_process() -> bool:
    """Whether this process is the one that speaks, also before the processes have met."""
    # torchrun sets RANK, srun SLURM_PROCID (also for a process alone, where it says nothing), our launcher LOCAL_RANK.
    alone = os.environ.get("SLURM_PROCID", "0") if launched_by_srun() else os.environ.get("LOCAL_RANK", "0")
    return int(os.environ.get("RANK", alone)) == 0


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
            watch.lifeline = _lifeline(fabric, path)
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
    first = json.loads(lifeline.shared(json.dumps(settings)))
    mine = json.loads(json.dumps(settings))
    for key in sorted(first.keys() | mine.keys()):
        if first.get(key) != mine.get(key):
            raise InvalidInput(
                f"{key} must be the same in all processes of a run, got {first.get(key)} in process 0 and "
                f"{mine.get(key)} in process {rank}. Start all of them with one command line."
            )


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
                    lost = self.lost(f"process {rank} (exit code {child.returncode})")
                    # With this code it has said by itself why, unless it told this process.
                    silent = child.returncode == _REFUSED and (self.lifeline is None or self.lifeline.reason() is None)
                    self._leave(None if silent else str(lost), 2)
            if self.lifeline is not None and self.lifeline.broken():
                self._wait_for_the_main_thread()
                lost = self.lost("another process")
                self._leave(None if _is_told(lost) else str(lost), 2)

    def lost(self, which: str) -> ProcessLost:
        """The error where another process has ended: what that said last, where it said anything."""
        reason = None if self.lifeline is None else self.lifeline.reason()
        if reason is None:
            return ProcessLost(lost_message(which, self._path))
        lost = ProcessLost(f"process {reason.rank}: {reason.words}")
        self.tell(reason, lost)
        return lost

    def wait_for_a_reason(self) -> None:
        """Give the first process time to pass on what a third one told it."""
        last = time.monotonic() + 2 * _GRACE  # it may itself wait for its main thread
        while self.lifeline is not None and not self.lifeline.broken() and time.monotonic() < last:
            time.sleep(_POLL)

    def tell(self, reason: Reason, error: Exception) -> None:
        """Let the processes at the other end know why this one ends. Only the first of them all speaks to the user."""
        told = self.lifeline is not None and (self.lifeline.tell(reason) or self.lifeline.reason() is not None)
        if told and not is_first_process():
            error.add_note(_TOLD)

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
            os.write(2, f"{cursor}calibrant: {one_line(message)}\n".encode())
        os._exit(code)
