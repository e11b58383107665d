"""Work on a Ray cluster: tasks in processes of its machines, functions over many items through Ray Data.

A task is a child process of a Ray worker and ends with it. Where the worker or its machine is lost, Ray starts the task
again elsewhere, and the task continues from what the first attempt left on the storage that all machines share.
"""

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from calibrant import __version__
from calibrant.errors import CalibrantError, InvalidInput, importing, invalid, one_line
from calibrant.lock import try_lock
from calibrant.logs import at_level
from calibrant.scale.answers import check_answers
from calibrant.scale.processes import Child
from calibrant.scale.task import Ended, Item, Result, Task

# How often a task is started again because its worker was lost, before it counts as failed.
_RETRIES = 10
_PROBE_SECONDS = 60.0


class RayExecutor:
    """A Ray cluster, or Ray on this machine alone.

    Args:
        address: See `make_executor`.

    Raises:
        InvalidInput: Ray is not installed, nobody answers at the address, or the answer is not Ray's.
    """

    def __init__(self, address: str | None = None) -> None:
        self._ray = _ray_module()
        self._started_here = not self._ray.is_initialized()
        self._tasks: dict[Any, str] = {}
        if self._started_here:
            # By itself Ray would join whatever cluster runs on this machine.
            self._connect(address or os.environ.get("RAY_ADDRESS", "local"))

    def _connect(self, address: str) -> None:
        # Ray's own messages are for its developers; what a user needs is said in one line here.
        settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            settings["include_dashboard"] = False
        elif address != "auto":
            check_answers(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError, SystemExit) as error:
            said = next(iter(str(error).splitlines()), "")[:150]
            way_out = "Start one: ray start --head"
            raise invalid("address", "be that of a running Ray cluster", f"none ({said})", way_out) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        if self._started_here:
            self._ray.shutdown()

    # Tasks.

    def room(self, task: Task) -> int:
        """How many fit into the cluster as it is now."""
        nodes, (cpus, gpus) = self._nodes(), self._needs(task)
        fitting = [min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else 1e9) for node in nodes]
        if nodes and not any(fitting):
            needed = f"{cpus} cores and {gpus} GPUs" if gpus else f"{cpus} cores"
            raise invalid("cluster", f"have a machine with {needed} for {task.name}", f"{len(nodes)} without")
        return max(1, int(sum(fitting)))

    def submit(self, task: Task) -> None:
        """Queue a task; Ray places it by its cores and GPUs."""
        cpus, gpus = self._needs(task)
        remote = self._ray.remote(_run_here).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        self._tasks[remote.remote(task, Path.cwd())] = task.name

    def collect(self) -> list[Ended]:
        """Those that have ended, or that lost their worker too often."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return [self._exit(reference, self._tasks.pop(reference)) for reference in ready]

    def _exit(self, reference: Any, name: str) -> Ended:
        try:
            found: Ended = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Ended(name, 1, f"{_in_words(error)} Run the same command again to continue.")
        return found

    def cancel(self) -> None:
        """End the workers, and with them the processes of their tasks."""
        for reference in self._tasks:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._tasks.clear()

    # Functions over items.

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply a function in the cluster's workers through Ray Data; results come in the order of the items."""
        import ray.data

        rows = ray.data.from_items(list(range(len(items))), override_num_blocks=max(1, len(items)))
        early: dict[int, Any] = {}
        due = 0
        with at_level(logging.CRITICAL, "ray.data"):
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            try:
                for row in _mapped(rows, _Each(function, tuple(items))).iter_rows():
                    if "fault" in row["found"]:
                        raise InvalidInput(row["found"]["fault"])
                    early[row["at"]] = row["found"]["result"]
                    while due in early:
                        yield early.pop(due)
                        due += 1
            except self._ray.exceptions.RayError as error:
                raise InvalidInput(f"{_in_words(error)} Nothing was written; run the same command again.") from error

    # The machines.

    def check_shared(self, *paths: Path) -> None:
        """Refuse a machine without these files, or with another version of this package.

        Nothing else can be trusted there: a run would end on a disk that nobody else sees.
        """
        wanted = {str(path): _stamp(path) for path in paths}
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        probes = {
            self._ray.remote(_look)
            .options(num_cpus=0, scheduling_strategy=strategy(node_id=node["NodeID"], soft=True))
            .remote(tuple(wanted)): node["NodeManagerHostname"]
            for node in self._ray.nodes()
            if node["Alive"]
        }
        for reference, host in probes.items():
            try:
                version, seen = self._ray.get(reference, timeout=_PROBE_SECONDS)
            except self._ray.exceptions.RayError as error:
                raise invalid(f"machine {host}", "answer and have calibrant installed", _in_words(error)) from error
            if version != __version__:
                raise invalid(f"machine {host}", f"have calibrant {__version__} as this one", version)
            hidden = next((path for path, stamp in wanted.items() if seen[path] != stamp), None)
            if hidden is not None:
                way_out = "Use a folder on storage that all machines share."
                raise invalid(hidden, f"be the same file on {host}", "none or another", way_out)

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _needs(self, task: Task) -> tuple[int, int]:
        """Cores and GPUs of a task; no more cores than the largest machine has, because fewer are only slower."""
        nodes = self._nodes()
        most = max((int(node.get("CPU", 0)) for node in nodes), default=1)
        on_gpu = task.accelerator == "cuda" or (
            task.accelerator == "auto" and any(node.get("GPU", 0) >= task.devices for node in nodes)
        )
        return max(1, min(task.cpus, most)), task.devices if on_gpu else 0


def _ray_module() -> Any:
    # Ray prints remarks about lost workers on standard output, where a program reads JSON.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    with importing("--executor ray", "Ray", "ray"):
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    return ray


def _mapped(rows: Any, function: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Let Ray Data start an item again ten times; by itself it does so for ever where an item kills its worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray means to take the argument away in 2.64
        try:
            return rows.map(function, max_retries=_RETRIES)
        except TypeError:
            return rows.map(function)


def _in_words(error: Exception) -> str:
    """What happened, without the many lines that Ray says about it."""
    kind = type(error).__name__
    words = {
        "WorkerCrashedError": f"a worker was lost {_RETRIES + 1} times.",
        "NodeDiedError": f"a machine was lost {_RETRIES + 1} times.",
        "OutOfMemoryError": "a machine ran out of memory.",
        "GetTimeoutError": f"no answer in {_PROBE_SECONDS:.0f} seconds.",
    }
    lines = [line for line in str(error).splitlines() if line.strip()]
    return words.get(kind, f"Ray failed: {kind}: {lines[-1].strip()[:200] if lines else 'it said nothing'}.")


# What runs in Ray's workers. These functions travel by their name: the package is installed on every machine.


def _run_here(task: Task, folder: Path) -> Ended:
    """Run a task as a child process of this worker, in the folder where the command was given."""
    if not folder.is_dir():
        where = f"{folder} does not exist on {socket.gethostname()}"
        return Ended(task.name, 2, f"{where}. Run the command in a folder that all machines share.")
    if task.lock is not None:
        _wait_until_free(folder / task.lock)
    try:
        # A relative path means one from the folder of the command, which is not that of this worker.
        return Child(replace(task, log=folder / task.log), os.environ, folder).exit()
    except CalibrantError as error:
        return Ended(task.name, 2, one_line(error))


def _wait_until_free(path: Path) -> None:
    """Wait while an earlier attempt holds a file.

    The child of a worker that was killed needs some moments to notice, and network storage about two minutes to forget
    a machine. A worker whose Ray is gone may even finish the task; then nothing is left to do.
    """
    while path.is_file():
        with path.open("r+") as handle:
            if try_lock(handle, inherited=False):
                return
        time.sleep(0.2)


def _look(paths: Sequence[str]) -> tuple[str, dict[str, tuple[int, int] | None]]:
    """The version of this package here, and what is known of some files."""
    return __version__, {path: _stamp(Path(path)) for path in paths}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class _Each:
    """A function applied to the item of a number; bad input comes back as its line, not as Ray's pages of traceback."""

    function: Callable[[Any], Any]
    items: tuple[Any, ...]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"at": row["item"], "found": {"result": self.function(self.items[row["item"]])}}
        except CalibrantError as error:
            return {"at": row["item"], "found": {"fault": one_line(error)}}
