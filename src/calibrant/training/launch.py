"""Several processes that train one run, started here or by torchrun.

`train` with `engine.devices` above 1 starts one process per device with `torch.multiprocessing` and waits for them.
They meet through a file and talk over the loopback interface only. The waiting process shows the progress; if one
process ends early, it ends the others, and if it is itself killed, the system kills them. Each file of a run is
written so that a kill at any moment leaves it whole.
"""

import ctypes
import logging
import math
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed as dist

from calibrant.errors import CalibrantError, InvalidInput, at_level
from calibrant.runs import is_run
from calibrant.training.progress import Reporter
from calibrant.training.recipe import first_difference

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

T = TypeVar("T")
# Fabric logs remarks on processes, precision and tensor cores, under the name of the half of Lightning that was
# imported last.
FABRIC_LOGGERS = ("lightning.fabric", "lightning.pytorch")
# Seconds between two looks at the processes.
_POLL = 0.05
# Seconds in which the process that failed first may report its error after another one has noticed that it is gone.
_GRACE = 3.0
# Exit codes of a process: its error was reported, or it has lost the connection to another process.
_REPORTED = 2
_LEFT_ALONE = 3
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


def joins_a_group() -> bool:
    """Whether this process is one of several that torchrun or `start_processes` started."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def is_first_process() -> bool:
    """Whether this process reports to the user: the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def group_layout() -> "tuple[ClusterEnvironment, int, int]":
    """Lightning's view of the group that this process joins, the processes per machine, and the number of machines."""
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    processes = int(os.environ["WORLD_SIZE"])
    per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return TorchElasticEnvironment(), per_machine, processes // per_machine


@contextmanager
def joined(fabric: "Fabric", path: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Join the processes of the run, and report a lost connection as `ProcessLost`.

    `settings` are names and values that must be the same in all processes.
    """
    if fabric.world_size == 1:
        fabric.launch()
        yield
        return
    _end_with_parent(int(os.environ.get("CALIBRANT_LAUNCHER", os.getppid())))
    _refuse_lost_torchrun(path)
    try:
        with at_level(logging.WARNING, *FABRIC_LOGGERS):
            fabric.launch()
        _refuse_other_settings(dict(settings))
        yield
    except RuntimeError as error:
        # For gloo only the text says that another process is gone.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise ProcessLost(lost_message("another process", path)) from error


def _refuse_other_settings(settings: dict[str, Any]) -> None:
    """Refuse processes that were started with different settings; all of them raise the same error."""
    everyone: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, settings)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        key = first_difference(first, other)
        if key is not None:
            raise InvalidInput(
                f"{key} must be the same in all processes of a run, got {first.get(key)} in process 0 and "
                f"{other.get(key)} in process {rank}. Start all of them with one command line."
            )


def on_first_rank(fabric: "Fabric", work: Callable[[], T]) -> T:
    """Do `work` on the first rank while the others wait; all get its result, or raise its error.

    Without this an error on the first rank (a full disk) would leave the others waiting for it for half an hour.
    """
    if fabric.world_size == 1:
        return work()
    result: T | None = None
    problem: CalibrantError | None = None
    if fabric.global_rank == 0:
        try:
            result = work()
        except CalibrantError as error:
            problem = error
    problem_of_first, shared = cast("tuple[CalibrantError | None, T]", fabric.broadcast((problem, result)))
    if problem_of_first is not None:
        raise problem_of_first
    return shared


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
    give_up = math.inf
    while True:
        # Read before the messages: all that an ended process has sent is then among them.
        codes = [process.exitcode for process, _ in started]
        for _, receiver in started:
            _deliver(receiver, reporter)
        if all(code == 0 for code in codes):
            return
        for rank, code in enumerate(codes):
            if code not in (None, 0, _LEFT_ALONE):
                reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise ProcessLost(lost_message(f"process {rank} ({reason})", path))
        if _LEFT_ALONE in codes:
            give_up = min(give_up, time.monotonic() + _GRACE)
        if time.monotonic() > give_up:
            raise ProcessLost(lost_message("a process", path))
        time.sleep(_POLL)


def _deliver(receiver: Connection, reporter: Reporter) -> None:
    """Hand over all messages that have come so far; a reported error is raised."""
    while True:
        try:
            if not receiver.poll():
                return
            kind, content = receiver.recv()
        except (EOFError, OSError):  # the process has ended
            return
        if kind == "error":
            raise content
        if kind == "warning":
            warnings.warn(content, stacklevel=2)
        else:
            getattr(reporter, kind)(*content)


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
    code = 0
    try:
        _join_local_group(**group)
        reporter = Reporter()
        if group["rank"] == 0:
            reporter = _SendingReporter(sender)
        work(reporter=reporter)
    except ProcessLost:
        code = _LEFT_ALONE
    except BaseException as error:  # noqa: BLE001 (the process that waits decides what to do about it)
        if not isinstance(error, CalibrantError):
            error.add_note(traceback.format_exc())
        sender.send(("error", _transferable(error)))
        code = _REPORTED
    sys.stdout.flush()
    sys.stderr.flush()
    # Not an ordinary end: it runs the destructors of torch's process group, which may wait for ever.
    os._exit(code)


def _join_local_group(rank: int, devices: int, folder: str, *, on_gpu: bool) -> None:
    """Set torch's process group up before Fabric does, which would listen on all addresses of this machine."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices)}
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
        os._exit(_LEFT_ALONE)


def _refuse_lost_torchrun(path: Path) -> None:
    """Refuse to wait for processes if torchrun is gone: it serves the address at which they meet.

    If it is killed while this process starts, `_end_with_parent` takes the process that adopted this one for torchrun.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10).close()
    except OSError as error:
        raise ProcessLost(lost_message("torchrun", path)) from error


def _transferable(error: BaseException) -> BaseException:
    """The error itself if it can be sent to another process, else one with the same text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
    except Exception:  # noqa: BLE001 (errors of others may fail here in any way)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _SendingReporter(Reporter):
    """Sends what it gets to the process that waits, which itself knows when the run has stopped."""

    def __init__(self, sender: Connection) -> None:
        for kind in ("start", "begin_epoch", "step", "end_epoch"):
            setattr(self, kind, partial(self._send, sender, kind))

    def _send(self, sender: Connection, kind: str, *content: object) -> None:
        sender.send((kind, content))
