"""Several processes that train one run, one per device.

`train` with `engine.devices` above 1 starts them with `torch.multiprocessing` and waits for them. They meet through a
file and talk over the loopback interface only. The waiting process shows the progress; if one process ends early, it
ends the others, and if it is itself killed, the system kills them. Each file of a run is written so that a kill at any
moment leaves it whole.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed as dist

from calibrant.errors import CalibrantError, at_level
from calibrant.runs import is_run
from calibrant.training.progress import Reporter

if TYPE_CHECKING:
    from lightning.fabric import Fabric

T = TypeVar("T")
# Fabric logs remarks on processes, precision and tensor cores, under the name of the half of Lightning that was
# imported last.
FABRIC_LOGGERS = ("lightning.fabric", "lightning.pytorch")
# Seconds between two looks at the processes.
_POLL = 0.05
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class ProcessLost(CalibrantError):
    """A process of the run ended before the run did."""


def lost_message(which: str, path: Path) -> str:
    """Say that a process of the run in `path` is gone, and how to continue."""
    if not is_run(path):
        return f"{which} of this run ended before the run did."
    return f"{which} of this run ended before the run did. Continue with: calibrant train --resume {path}"


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Let an interrupt say how the run in `path` can be continued."""
    try:
        yield
    except KeyboardInterrupt as error:
        message = "stopped before anything was written"
        if is_run(path):
            message = f"stopped; continue with: calibrant train --resume {path}"
        raise KeyboardInterrupt(message) from error


@contextmanager
def launched(fabric: "Fabric", path: Path) -> Iterator[None]:
    """Launch Fabric, and report a lost connection to another process as `ProcessLost`."""
    try:
        with at_level(logging.WARNING, *FABRIC_LOGGERS):
            fabric.launch()
        yield
    except RuntimeError as error:
        # For gloo only the text says that another process is gone.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise ProcessLost(lost_message("another process", path)) from error


def on_first_rank(fabric: "Fabric", work: Callable[[], T]) -> T:
    """Do `work` on the first rank while the others wait for its result. An error there ends all processes."""
    result: T | None = None
    if fabric.global_rank == 0:
        result = work()
    return cast("T", fabric.broadcast(result))


def start_processes(
    devices: int, work: Callable[..., object], path: Path, reporter: Reporter, *, on_gpu: bool = False
) -> None:
    """Run `work` in one new process per device; returns when all are done, raises when one fails.

    `work` must be picklable; it is called with the keyword argument `reporter`. The `reporter` given here stays in this
    process and gets what the first process reports.
    """
    context = torch.multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []  # processes, and what they report
    with TemporaryDirectory(prefix="calibrant-") as folder:
        try:
            with _interrupts_blocked():
                for rank in range(devices):
                    receiver, sender = context.Pipe(duplex=False)
                    group = {"rank": rank, "devices": devices, "folder": folder, "on_gpu": on_gpu}
                    process = context.Process(target=_run_rank, args=(group, os.getpid(), work, sender))
                    process.start()
                    # The process has its own copy. With this one open, its end could not be seen at the pipe.
                    sender.close()
                    started.append((process, receiver))
            _follow(started, path, reporter)
        finally:
            for process, receiver in started:
                process.kill()
                process.join()
                receiver.close()
            reporter.stop()


def _follow(started: list[tuple[Any, Connection]], path: Path, reporter: Reporter) -> None:
    """Pass on what the processes report until all have ended well or one has failed."""
    while True:
        # Read before the messages: all that an ended process has sent is then among them.
        codes = [process.exitcode for process, _ in started]
        for _, receiver in started:
            for kind, content in _messages(receiver):
                if kind == "error":
                    raise content
                if kind == "warning":
                    warnings.warn(content, stacklevel=2)
                else:
                    getattr(reporter, kind)(*content)
        if all(code == 0 for code in codes):
            return
        if failed := [code for code in codes if code]:
            # A signal, which is negative, comes before the end of a process that was left alone.
            raise ProcessLost(lost_message(f"a process (exit code {min(failed)})", path))
        time.sleep(_POLL)


def _messages(receiver: Connection) -> Iterator[tuple[str, Any]]:
    """All messages that have come so far."""
    with suppress(EOFError, OSError):  # the process has ended
        while receiver.poll():
            yield receiver.recv()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that never see Ctrl-C: the process that waits for them ends them, in order and silently."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_rank(group: dict[str, Any], parent: int, work: Callable[..., object], sender: Connection) -> None:
    """What a new process does: join the others, work, and report an error."""
    _end_with_parent(parent)
    warnings.showwarning = lambda message, *_, **__: sender.send(("warning", message))
    code = 1
    try:
        _join_group(**group)
        reporter = Reporter()
        if group["rank"] == 0:
            reporter = _SendingReporter(sender)
        work(reporter=reporter)
        code = 0
    except ProcessLost:
        pass  # the process that waits sees which one is gone
    except CalibrantError as error:
        sender.send(("error", error))
    except BaseException:  # noqa: BLE001 (the process that waits decides what to do about it)
        sender.send(("error", RuntimeError(traceback.format_exc())))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not an ordinary end: it runs the destructors of torch's process group, which may wait for ever.
    os._exit(code)


def _join_group(rank: int, devices: int, folder: str, *, on_gpu: bool) -> None:
    """Set torch's process group up before Fabric does, which would listen on all addresses of this machine."""
    os.environ["LOCAL_RANK"] = str(rank)  # Fabric then starts no processes itself
    for _, interface in socket.if_nameindex():
        if interface.startswith("lo"):  # lo on Linux, lo0 on macOS
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    settings: dict[str, Any] = {"backend": "gloo"}
    if on_gpu:
        settings = {"backend": "nccl", "device_id": torch.device("cuda", rank)}
    dist.init_process_group(**settings, init_method=Path(folder, "store").as_uri(), rank=rank, world_size=devices)


def _end_with_parent(parent: int) -> None:
    """Ask the system to kill this process when its parent dies.

    Elsewhere than on Linux the next report of progress fails instead, which ends the process too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


class _SendingReporter(Reporter):
    """Sends what it gets to the process that waits, which itself knows when the run has stopped."""

    def __init__(self, sender: Connection) -> None:
        for kind in ("start", "begin_epoch", "step", "end_epoch"):
            setattr(self, kind, partial(self._send, sender, kind))

    def _send(self, sender: Connection, kind: str, *content: object) -> None:
        sender.send((kind, content))
