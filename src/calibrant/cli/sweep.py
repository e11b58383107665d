"""`calibrant sweep`: search for settings that are accurate, calibrated and cheap at once."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from calibrant.cli._shared import Json, Many, OutOr, Running, answer
from calibrant.own_code import trust_named


def sweep(
    *,
    method: str | None = None,
    data: str | None = None,
    model: str | None = None,
    seed: int | None = None,
    search: Annotated[list[str] | None, Many] = None,
    trials: int = 20,
    objective: Literal["ece", "scaled-nll"] | None = None,
    out: Annotated[Path, OutOr] = Path("sweep"),
    storage: Annotated[str | None, Parameter(env_var="CALIBRANT_STORAGE")] = None,
    name: str | None = None,
    running: Running = Running(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Search with three objectives: validation error, ECE or NLL after scaling, samples seen. Run it again to go on.

    Args:
        method: Method whose settings are searched; flsd+h+unbiased by default.
        data: Data set.
        model: Network; by default the one that the data set's recipe names.
        seed: Seed of every trial.
        search: What to vary: a setting (drop), a range (drop=0.3:0.8, optimiser.lr=0.01:0.3:log) or values
            (schedule.kind=step,cosine). Default: every setting of the method that has a usual range.
        trials: Trials in all, over all workers and earlier calls.
        objective: The second objective: ece, or scaled-nll (validation NLL after temperature scaling).
        out: Folder of the sweep. Given alone, the sweep in it goes on.
        storage: Optuna storage URL shared by workers on many machines; by default SQLite in the folder. A URL with a
            password belongs into the environment variable.
        name: Name of the study in the storage.
    """
    from calibrant.checks import whole
    from calibrant.studies import Sweep, SweepSpec, run_sweep
    from calibrant.training.data.spec import own_data
    from calibrant.training.settings import check_inputs

    whole("trials", trials, 1)
    trust_named(method, model, own_data(data))
    flags: dict[str, Any] = {"method": method, "data": data, "model": model, "seed": seed, "name": name}
    flags |= {"search": search, "objective": objective, "recipe": running.shared_recipe() or None}
    settings = running.named() | {key: value for key, value in flags.items() if value is not None}
    # First: if no cluster answers, no folder is made.
    with running.opened() as how:
        spec = None  # without settings, the sweep in the folder goes on
        if settings:
            spec = SweepSpec.parse(settings)
            check_inputs([spec.base()], data_dir=running.data_dir)
        made = Sweep(out, spec, storage=storage, trust_code=running.trust_code)
        outcome = run_sweep(made, trials=trials, **how)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
