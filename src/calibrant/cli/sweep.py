"""`calibrant sweep`: search for settings that are accurate, calibrated and cheap at once."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from calibrant.cli._flags import TrustCode
from calibrant.cli._say import say, say_json
from calibrant.cli._study import at_least_one, names_in, shared_recipe
from calibrant.errors import CheckFailed
from calibrant.own_code import trust_named

if TYPE_CHECKING:
    from calibrant.sweep import Sweep


def sweep(
    *,
    method: str | None = None,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    search: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    trials: int = 20,
    timeout: float | None = None,
    stop_dominated_by: int | None = None,
    recipe: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    out: Path = Path("sweep"),
    storage: str | None = None,
    name: str | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    trust_code: TrustCode = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Search with three objectives: validation error, validation ECE, samples seen. Run it again to go on.

    Args:
        method: Method whose settings are searched; flsd+h+unbiased by default.
        data: Data set.
        model: Network; by default the one that the data set's recipe names.
        epochs: Epochs of every trial.
        seed: Seed of every trial.
        search: What to vary: a setting (drop), a range (drop=0.3:0.8, optimiser.lr=0.01:0.3:log) or values
            (schedule.kind=step,cosine). By default every setting of the method that has a usual range.
        trials: Trials in all, over all workers and earlier calls.
        timeout: Seconds after which no new trial begins.
        stop_dominated_by: Stop a trial that, at a quarter, half or three quarters of its epochs, is behind this many
            finished ones in error and ECE and no cheaper; 0: never. 3 by default.
        recipe: Recipe file that all trials share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the sweep. Given alone, the sweep in it goes on.
        storage: Optuna storage URL shared by workers on many machines; by default SQLite in the folder. The
            environment variable CALIBRANT_STORAGE does the same and keeps a password out of the process list.
        name: Name of the study in the storage.
        jobs: Workers to start here, each in a process of its own.
        data_dir: Where image sets lie.
        trust_code: Also run code of your own (module:name) that a file names and that you have not used here before.
        json: Print everything as JSON.
    """
    at_least_one(jobs=jobs, trials=trials)
    trust_named(method, model)
    from calibrant.report import to_terminal
    from calibrant.sweep import Sweep, SweepSpec, failures, front_table, sweep_json, write_sweep
    from calibrant.training import check_inputs

    flags = {"method": method, "data": data, "model": model, "seed": seed, "name": name, "search": search}
    given: dict[str, Any] = {**names_in(recipe), **{key: value for key, value in flags.items() if value is not None}}
    if stop_dominated_by is not None:
        given["dominators"] = stop_dominated_by
    shared = shared_recipe(recipe, epochs, set_)
    spec = SweepSpec.parse({**given, "recipe": shared}) if given or shared else None
    if spec is not None:
        check_inputs([spec.base()], data_dir=data_dir)
    url = storage or os.environ.get("CALIBRANT_STORAGE")
    made = Sweep(out, spec, storage=url, trust_code=trust_code)
    broken = _run(made, url, trials=trials, timeout=timeout, jobs=jobs, data_dir=data_dir)
    files = write_sweep(made)
    if json:
        say_json(sweep_json(made))
    else:
        say(to_terminal(front_table(made)) + "\n")
        say(f"written: {', '.join(str(path) for path in files)}")
    if broken:
        raise CheckFailed(f"{len(broken)} of {jobs} workers failed: {'; '.join(broken)}")
    failed = failures(made)
    if failed and not made.finished():
        raise CheckFailed(f"no trial finished, {len(failed)} failed. The first: {failed[0]}")


def _run(
    sweep: "Sweep", url: str | None, *, trials: int, timeout: float | None, jobs: int, data_dir: Path | None
) -> list[str]:
    """Work here, or start workers and wait for them; returns what went wrong with those."""
    if jobs == 1:
        from calibrant.cli.train import make_reporter

        sweep.run(trials=trials, timeout=timeout, data_dir=data_dir, reporter=make_reporter())
        return []
    from calibrant.training import Task, run_tasks

    if url is not None:
        os.environ["CALIBRANT_STORAGE"] = url
    arguments = [str(sweep.path), str(trials), "-" if timeout is None else str(timeout)]
    if data_dir is not None:
        arguments.append(str(data_dir))
    module, logs = "calibrant.sweep.search_process", sweep.path / "logs"
    tasks = [
        Task(f"worker {number}", module, tuple(arguments), logs / f"worker-{number}.log")
        for number in range(1, jobs + 1)
    ]
    return [f"{one.task}: {one.message}" for one in run_tasks(tasks, jobs=jobs) if one.code]
