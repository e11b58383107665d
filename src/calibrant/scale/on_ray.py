"""Work on a Ray cluster: tasks as processes of its machines, functions over parts in its workers.

A task is a child process of a Ray worker and ends with it. If the worker or its machine is lost, Ray starts the task
again on another one. It continues from what the first attempt left on the storage that all machines share.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from calibrant import __version__
from calibrant.errors import CalibrantError, InvalidInput, importing, invalid, one_line
from calibrant.files import try_lock
from calibrant.scale.work import ChildProcess, Ended, Part, Result, Task

# How often a task is started again because its worker was lost, before it counts as failed.
_RETRIES = 10
_PROBE_SECONDS = 60.0
# `ray.init` waits for minutes if nothing listens at the address.
_CONNECT_SECONDS = 5.0


class RayExecutor:
    """A Ray cluster, or Ray on this machine alone; `make_executor` explains the address."""

    def __init__(self, address: str | None = None) -> None:
        # Ray prints remarks about lost workers on standard output, where programs expect JSON.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        with importing("--executor ray", "Ray", "ray"):
            import ray
            import ray.exceptions
            import ray.util.scheduling_strategies
        self._ray: Any = ray
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            # Without an address, Ray would join any cluster that runs on this machine.
            self._connect(address or os.environ.get("RAY_ADDRESS", "local"))

    def _connect(self, address: str) -> None:
        # Ray's own messages are for its developers. Users get one line from us.
        settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            settings["include_dashboard"] = False
        elif address != "auto":
            _check_connection(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError, SystemExit) as error:
            reason = one_line(error, most=150)
            hint = "Start a cluster: ray start --head"
            raise invalid("address", "be that of a running Ray cluster", f"none ({reason})", hint) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started_here:
            self._ray.shutdown()

    # Tasks.

    def run(self, tasks: Sequence[Task], jobs: int | None, watch: Callable[[Ended], None]) -> None:
        """Run tasks. Ray starts each on a machine with enough cores and GPUs, as many at once as fit."""
        waiting = list(tasks)
        running: dict[Any, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (jobs or len(tasks)):
                    task = waiting.pop(0)
                    running[self._start(task)] = task.name
                (reference,), _ = self._ray.wait(list(running))
                watch(self._end_of(reference, running.pop(reference)))
        finally:
            self._cancel(running)

    def _start(self, task: Task) -> Any:
        cpus, gpus = self._needs(task)
        remote = self._ray.remote(_run_here).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        return remote.remote(task, Path.cwd())

    def _end_of(self, reference: Any, name: str) -> Ended:
        try:
            ended: Ended = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Ended(name, 1, f"{_in_words(error)} Run the same command again to continue.")
        return ended

    def _cancel(self, references: Iterable[Any]) -> None:
        """End the workers and the processes of their tasks."""
        for reference in references:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)

    # Functions over parts.

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Apply a function to each part in the workers of the cluster; results come in the order of the parts."""
        remote = self._ray.remote(_apply).options(max_retries=_RETRIES)
        waiting = [remote.remote(function, part) for part in parts]
        try:
            while waiting:
                outcome = self._ray.get(waiting[0])
                del waiting[0]  # frees the memory of the result in the cluster
                if isinstance(outcome, CalibrantError):
                    raise outcome
                yield outcome
        except self._ray.exceptions.RayError as error:
            raise InvalidInput(f"{_in_words(error)} Nothing was written; run the same command again.") from error
        finally:
            self._cancel(waiting)

    # The machines.

    def check_shared(self, *paths: Path) -> None:
        """Raise if a machine does not see these files, or has another version of this package.

        A task on such a machine would write its results to a disk that nobody else sees.
        """
        wanted = {str(path): _stamp(path) for path in paths}
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        probes = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                on_node = strategy(node_id=node["NodeID"], soft=True)
                probe = self._ray.remote(_look_at).options(num_cpus=0, scheduling_strategy=on_node)
                probes[probe.remote(tuple(wanted))] = node["NodeManagerHostname"]
        for reference, host in probes.items():
            try:
                version, seen = self._ray.get(reference, timeout=_PROBE_SECONDS)
            except self._ray.exceptions.RayError as error:
                raise invalid(f"machine {host}", "answer and have calibrant installed", _in_words(error)) from error
            if version != __version__:
                raise invalid(f"machine {host}", f"have calibrant {__version__} as this one", version)
            for path, stamp in wanted.items():
                if seen[path] != stamp:
                    hint = "Use a folder on storage that all machines share."
                    raise invalid(path, f"be the same file on {host}", "none or another", hint)

    def _needs(self, task: Task) -> tuple[int, int]:
        """Return the cores and GPUs that a task gets. It gets no more cores than the largest machine has."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = max((int(node.get("CPU", 0)) for node in nodes), default=1)
        has_gpu = any(node.get("GPU", 0) >= task.devices for node in nodes)
        if task.accelerator == "cuda" and not has_gpu:
            rule = f"have a machine with {task.devices} GPUs for {task.name}"
            raise invalid("cluster", rule, f"{len(nodes)} without")
        gpus = 0
        if task.accelerator != "cpu" and has_gpu:
            gpus = task.devices
        return max(1, min(task.cpus, cores)), gpus


def _check_connection(address: str) -> None:
    """Raise if the address is malformed or nothing listens there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise invalid("address", "be HOST:PORT or auto", repr(address))
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        hint = "Check that the cluster is running: ray status"
        reason = f"no answer from {address} ({error})"
        raise invalid("address", "be that of a running Ray cluster", reason, hint) from error


def _in_words(error: Exception) -> str:
    """Return one sentence for an error of Ray, which prints many lines."""
    kind = type(error).__name__
    words = {
        "WorkerCrashedError": f"a worker was lost {_RETRIES + 1} times.",
        "NodeDiedError": f"a machine was lost {_RETRIES + 1} times.",
        "OutOfMemoryError": "a machine ran out of memory.",
        "GetTimeoutError": f"no answer in {_PROBE_SECONDS:.0f} seconds.",
    }
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return words.get(kind, f"Ray failed: {kind}: {lines[-1][:200]}.")


# These functions run in Ray's workers. They are sent by name, because the package is installed on every machine.


def _run_here(task: Task, folder: Path) -> Ended:
    """Run a task as a child process of this worker, in the folder where the command was started."""
    if not folder.is_dir():
        where = f"{folder} does not exist on {socket.gethostname()}"
        return Ended(task.name, 2, f"{where}. Run the command in a folder that all machines share.")
    if task.lock is not None:
        _wait_until_free(folder / task.lock)
    try:
        # Relative paths start at the folder of the command. The worker has another working directory.
        return ChildProcess(replace(task, log=folder / task.log), os.environ, folder).wait()
    except CalibrantError as error:
        return Ended(task.name, 2, one_line(error))


def _wait_until_free(path: Path) -> None:
    """Wait while an earlier attempt keeps a file locked.

    The child of a killed worker ends after some moments. Network storage releases the locks of a lost machine after
    about two minutes. A worker that lost its connection to Ray may even finish the task; then nothing is left to do.
    """
    while path.is_file():
        with path.open("r+") as handle:
            if try_lock(handle, inherited=False):
                return
        time.sleep(0.2)


def _look_at(paths: Sequence[str]) -> tuple[str, dict[str, tuple[int, int] | None]]:
    """Return the version of this package on this machine, and size and time of some files."""
    return __version__, {path: _stamp(Path(path)) for path in paths}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _apply(function: Callable[[Part], Result], part: Part) -> Result | CalibrantError:
    """Apply a function to a part. An error about bad input is returned: Ray would add its traceback to the message."""
    try:
        return function(part)
    except CalibrantError as error:
        return error
