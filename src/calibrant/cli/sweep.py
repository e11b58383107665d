"""`calibrant sweep`: search for settings that are accurate, calibrated and cheap at once."""

from pathlib import Path
from typing import Annotated, Any, Literal

from calibrant.cli._shared import Address, Assignments, DataDir, ExecutorFlag, Json, Many, OutOr, TrustCode, answer
from calibrant.own_code import trust_named
from calibrant.scale import make_executor


def sweep(
    *,
    method: str | None = None,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    search: Annotated[list[str] | None, Many] = None,
    trials: int = 20,
    timeout: float | None = None,
    objective: Literal["ece", "scaled-nll"] | None = None,
    recipe: Path | None = None,
    set_: Assignments = None,
    out: Annotated[Path, OutOr] = Path("sweep"),
    storage: str | None = None,
    name: str | None = None,
    jobs: int | None = None,
    executor: ExecutorFlag = "local",
    address: Address = None,
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Search with three objectives: validation error, ECE or NLL after scaling, samples seen. Run it again to go on.

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
        objective: The second objective: ece, or scaled-nll (validation NLL after temperature scaling).
        recipe: Recipe (a file, or the name of one that ships) that all trials share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the sweep. Given alone, the sweep in it goes on.
        storage: Optuna storage URL shared by workers on many machines; by default SQLite in the folder. The
            environment variable CALIBRANT_STORAGE does the same and keeps a password out of the process list.
        name: Name of the study in the storage.
        jobs: Workers to start, each in a process of its own. By default 1, and on Ray as many as there is room for.
    """
    from calibrant.checks import whole
    from calibrant.studies import plan_sweep, run_sweep
    from calibrant.training.data.spec import own_data
    from calibrant.training.settings import names_in, shared_recipe

    if jobs is not None:
        whole("jobs", jobs, 1)
    whole("trials", trials, 1)
    trust_named(method, model, own_data(data))
    flags = {"method": method, "data": data, "model": model, "seed": seed, "name": name, "search": search}
    # First: if no cluster answers, no folder is made.
    with make_executor(executor, address=address) as place:
        made = plan_sweep(
            out,
            {**flags, "objective": objective},
            recipe=shared_recipe(recipe, epochs, set_),
            defaults=names_in(recipe),
            storage=storage,
            data_dir=data_dir,
            trust_code=trust_code,
        )
        how: dict[str, Any] = {"jobs": jobs, "storage": storage, "data_dir": data_dir, "executor": place}
        outcome = run_sweep(made, trials=trials, timeout=timeout, **how)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
