"""What a sweep leaves behind: search here or in several processes, then write the Pareto front."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import CheckFailed
from calibrant.files import write_json, write_text
from calibrant.report import pareto_picture, save_figure
from calibrant.scale import Executor, Task, run_tasks
from calibrant.studies.search import TrialStopped
from calibrant.studies.sweeps import SAME_SETTINGS, Sweep, SweepSpec
from calibrant.tables import Table, counted, preformatted
from calibrant.training import make_reporter
from calibrant.training.settings import check_inputs

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# Worker processes read it, too: it keeps a password out of the process list.
_STORAGE = "CALIBRANT_STORAGE"


def plan_sweep(
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    recipe: Mapping[str, Any] | None = None,
    defaults: Mapping[str, str] | None = None,
    storage: str | None = None,
    data_dir: Path | None = None,
    trust_code: bool = False,
) -> Sweep:
    """Return the sweep that the settings describe. Without settings, return the one in the folder.

    Args:
        folder: Folder of the sweep.
        settings: `method`, `data`, `model`, `seed`, `name`, `search`, `dominators`, `objective`. None is not set.
        recipe: Dotted recipe keys that all trials share.
        defaults: `data` and `model` if the settings name none.
        storage: Optuna storage URL. None: the environment variable CALIBRANT_STORAGE, else SQLite in the folder.
        data_dir: Folder of the image sets.
        trust_code: Whether to run code of the user's own that was not used on this machine before.
    """
    merged: dict[str, Any] = dict(defaults or {})
    merged |= {key: value for key, value in settings.items() if value is not None}
    spec = None
    if merged or recipe:
        spec = SweepSpec.parse({**merged, "recipe": dict(recipe or {})})
        check_inputs([spec.base()], data_dir=data_dir)
    return Sweep(folder, spec, storage=storage or os.environ.get(_STORAGE), trust_code=trust_code)


@dataclass(frozen=True)
class SweepOutcome:
    """The result of running a sweep.

    Attributes:
        sweep: The sweep.
        text: The front and the files that were written, for people.
        content: The same as plain JSON values.
        broken: One sentence for each worker process that failed.
        jobs: Number of worker processes.
    """

    sweep: Sweep
    text: str
    content: dict[str, Any]
    broken: list[str]
    jobs: int

    def _repr_html_(self) -> str:
        return preformatted(self.text)

    def raise_failures(self) -> None:
        """Raise if worker processes failed, or if no trial finished."""
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
    """Search, here or in several processes, and write the results.

    Args:
        sweep: The sweep.
        trials: Number of trials in all, over all processes and earlier calls.
        timeout: Seconds after which no new trial begins.
        jobs: Number of processes; 1 searches in this one. None: 1, or as many as the executor can run at once.
        storage: Optuna storage URL, for the processes.
        data_dir: Folder of the image sets.
        executor: Where the processes run. None: this machine. Other machines must see the folder of the sweep.
    """
    broken = []
    if jobs is None:
        jobs = 1
        if executor is not None:
            jobs = min(trials, executor.capacity(_worker(sweep, 1)))
    if executor is None and jobs == 1:
        sweep.run(trials=trials, timeout=timeout, data_dir=data_dir, reporter=make_reporter())
    else:
        arguments = [str(trials), "-" if timeout is None else str(timeout)]
        if data_dir is not None:
            arguments.append(str(data_dir))
        tasks = [_worker(sweep, number, arguments, storage) for number in range(1, jobs + 1)]
        if executor is not None:
            executor.check_shared(sweep.path.absolute() / "sweep.toml")
        ended = run_tasks(tasks, jobs=jobs, executor=executor)
        broken = [f"{worker.task}: {worker.message}" for worker in ended if worker.code]
    files = write_sweep(sweep)
    text = f"{front_table(sweep).terminal()}\n\nwritten: {', '.join(str(path) for path in files)}"
    return SweepOutcome(sweep, text, sweep_json(sweep), broken, jobs)


def _worker(sweep: Sweep, number: int, arguments: Sequence[str] = (), storage: str | None = None) -> Task:
    """Return the task of one worker process."""
    environment = {}
    url = storage or os.environ.get(_STORAGE)
    if url is not None:
        environment[_STORAGE] = url
    return Task(
        f"worker {number}",
        "calibrant.studies",
        ("search", str(sweep.path), *arguments),
        sweep.path / "logs" / f"worker-{number}.log",
        accelerator=sweep.recipe.engine.accelerator,
        cpus=1 + sweep.recipe.engine.workers,
        environment=environment,
    )


# Files.


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return all trials, and the numbers of those on the front, as plain values."""
    return {
        "objectives": list(sweep.spec.objectives),
        "front": [trial.number for trial in sweep.front()],
        "finished": [_trial_json(sweep, trial) for trial in sweep.finished()],
        "stopped": [_trial_json(sweep, trial) for trial in sweep.stopped()],
    }


def _trial_json(sweep: Sweep, trial: "FrozenTrial") -> dict[str, Any]:
    values = None
    if trial.values:
        values = dict(zip(sweep.spec.objectives, trial.values, strict=True))
    content = {"number": trial.number, "settings": trial.params, "values": values, "run": trial.user_attrs.get("run")}
    return content | {key: trial.user_attrs[key] for key in ("test", "stopped") if key in trial.user_attrs}


def front_table(sweep: Sweep) -> Table:
    """Return the Pareto front as a table, with test figures, which the search did not use."""
    rows = []
    for trial in sweep.front():
        error, calibration, seen = trial.values
        test = trial.user_attrs["test"]
        settings = ", ".join(f"{name} {_word(value)}" for name, value in trial.params.items())
        figures = [f"{100 * value:.2f}" for value in (error, calibration, seen, test["test_error"], test["ece"])]
        if sweep.spec.objective == "scaled-nll":
            figures[1] = f"{calibration:.4f}"
        rows.append((str(trial.number), *figures, settings))
    title = f"{sweep.recipe.data.name}, {sweep.recipe.model.name}, {sweep.spec.method}: Pareto front"
    unit = "In percent" if sweep.spec.objective == "ece" else "In percent but for the NLL"
    caption = f"{unit}; {_how_trials_ended(sweep)} The search saw the validation columns only."
    heads = ("trial", "validation TE", sweep.spec.objectives[1], "samples seen", "test TE", "test ECE", "settings")
    return Table(title, tuple(rows), heads, caption)


def failures(sweep: Sweep) -> list[str]:
    """Return why trials failed: they diverged or were not possible.

    Trials that were stopped early do not count, nor those whose settings another worker was training.
    """
    reasons = (" ".join(trial.user_attrs.get("stopped", "").split()) for trial in sweep.stopped())
    return [reason for reason in reasons if not TrialStopped.is_reason(reason) and reason != SAME_SETTINGS]


def _how_trials_ended(sweep: Sweep) -> str:
    failed = failures(sweep)
    finished = len(sweep.finished())
    sentence = f"{counted(finished, 'trial')} finished, {len(sweep.stopped()) - len(failed)} stopped early"
    if failed:
        sentence += f", {len(failed)} failed (the first: {failed[0].rstrip('.')})"
    return f"{sentence}."


def write_sweep(sweep: Sweep) -> list[Path]:
    """Write `sweep.json`, `pareto.md` and, if a trial has finished, `pareto.svg` and `pareto.png`."""
    paths = [sweep.path / "sweep.json", sweep.path / "pareto.md"]
    write_json(paths[0], sweep_json(sweep))
    write_text(paths[1], front_table(sweep).markdown())
    finished = sweep.finished()
    if finished:
        error, calibration, seen = zip(*(trial.values for trial in finished), strict=True)
        front = {trial.number for trial in sweep.front()}
        title = f"{sweep.recipe.data.name}, {sweep.recipe.model.name}, {sweep.spec.method}"
        on_front = [trial.number in front for trial in finished]
        figure = pareto_picture(error, calibration, seen, on_front, title=title, objective=sweep.spec.objective)
        paths += save_figure(figure, sweep.path / "pareto")
    return paths


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
