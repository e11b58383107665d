"""From settings to what a sweep leaves behind: plan it, search here or in several processes, write what was found."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.display import preformatted
from calibrant.errors import CheckFailed
from calibrant.report import to_terminal
from calibrant.scale import Executor, Task, run_tasks
from calibrant.studies.sweep import Sweep, SweepSpec
from calibrant.studies.sweep_output import failures, front_table, sweep_json, write_sweep
from calibrant.training import check_inputs, make_reporter

# Also for worker processes: a password in it stays out of the process list.
_STORAGE = "CALIBRANT_STORAGE"


def sweep_from(
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    recipe: Mapping[str, Any] | None = None,
    defaults: Mapping[str, str] | None = None,
    storage: str | None = None,
    data_dir: Path | None = None,
    trust_code: bool = False,
) -> Sweep:
    """The sweep that settings describe; without any, the one that is in the folder already.

    Args:
        folder: Where the sweep is kept.
        settings: `method`, `data`, `model`, `seed`, `name`, `search`, `dominators`, `objective`; None is not set.
        recipe: Dotted recipe keys that all trials share.
        defaults: `data` and `model` where the settings name none.
        storage: Optuna storage URL; by default the environment variable CALIBRANT_STORAGE, else SQLite in the folder.
        data_dir: Where image sets lie.
        trust_code: Whether to run code of the user's own that was not used on this machine before.
    """
    given = {**(defaults or {}), **{key: value for key, value in settings.items() if value is not None}}
    spec = SweepSpec.parse({**given, "recipe": dict(recipe or {})}) if given or recipe else None
    if spec is not None:
        check_inputs([spec.base()], data_dir=data_dir)
    return Sweep(folder, spec, storage=storage or os.environ.get(_STORAGE), trust_code=trust_code)


@dataclass(frozen=True)
class SweepOutcome:
    """What running a sweep left behind.

    Attributes:
        sweep: The sweep.
        text: The front and the files that were written, for a person.
        content: The same as plain JSON values.
        broken: One sentence for each process that failed.
        jobs: How many processes there were.
    """

    sweep: Sweep
    text: str
    content: dict[str, Any]
    broken: list[str]
    jobs: int

    def _repr_html_(self) -> str:
        return preformatted(self.text)

    def raise_failures(self) -> None:
        """Raise where processes failed, or where no trial finished."""
        if self.broken:
            raise CheckFailed(f"{len(self.broken)} of {self.jobs} workers failed: {'; '.join(self.broken)}")
        failed = failures(self.sweep)
        if failed and not self.sweep.finished():
            raise CheckFailed(f"no trial finished, {len(failed)} failed. The first: {failed[0]}")


def run_sweep(
    sweep: Sweep,
    *,
    trials: int,
    timeout: float | None = None,
    jobs: int | None = None,
    storage: str | None = None,
    data_dir: Path | None = None,
    executor: Executor | None = None,
) -> SweepOutcome:
    """Search, here or in several processes, and write what was found.

    Args:
        sweep: The sweep.
        trials: Trials in all, over all processes and earlier calls.
        timeout: Seconds after which no new trial begins.
        jobs: Processes; 1 searches in this one. None for 1, or for as many as the executor has room for.
        storage: Optuna storage URL, for the processes.
        data_dir: Where image sets lie.
        executor: Where the processes run; None for this machine. Others must see the sweep's folder.
    """
    broken = []
    jobs = jobs or (1 if executor is None else min(trials, executor.room(_worker(sweep, 1))))
    if executor is None and jobs == 1:
        sweep.run(trials=trials, timeout=timeout, data_dir=data_dir, reporter=make_reporter())
    else:
        arguments = [
            str(trials),
            "-" if timeout is None else str(timeout),
            *([] if data_dir is None else [str(data_dir)]),
        ]
        tasks = [_worker(sweep, number, arguments, storage) for number in range(1, jobs + 1)]
        if executor is not None:
            executor.check_shared(sweep.path.absolute() / "sweep.toml")
        ended = run_tasks(tasks, jobs=jobs, executor=executor)
        broken = [f"{one.task}: {one.message}" for one in ended if one.code]
    files = write_sweep(sweep)
    text = f"{to_terminal(front_table(sweep))}\n\nwritten: {', '.join(str(path) for path in files)}"
    return SweepOutcome(sweep, text, sweep_json(sweep), broken, jobs)


def _worker(sweep: Sweep, number: int, arguments: Sequence[str] = (), storage: str | None = None) -> Task:
    """One of several processes that search."""
    url = storage or os.environ.get(_STORAGE)
    return Task(
        f"worker {number}",
        "calibrant.studies.search_process",
        (str(sweep.path), *arguments),
        sweep.path / "logs" / f"worker-{number}.log",
        accelerator=sweep.recipe.engine.accelerator,
        cpus=1 + sweep.recipe.engine.workers,
        environment={} if url is None else {_STORAGE: url},
    )
