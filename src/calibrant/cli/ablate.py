"""`calibrant ablate`: the paper's ablations, chosen on validation."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from calibrant.cli._shared import Address, Assignments, DataDir, ExecutorFlag, Json, Many, Out, TrustCode, answer
from calibrant.own_code import trust_named
from calibrant.scale import make_executor


def ablate(
    what: Literal["lambda", "kappa", "interval", "alpha", "fraction", "components"],
    /,
    *,
    values: Annotated[list[float] | None, Many] = None,
    method: str = "flsd+h+p-ema",
    option_: Annotated[list[str] | None, Parameter(name="--option", negative="")] = None,
    seeds: Annotated[list[int] | None, Many] = None,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    recipe: Path | None = None,
    set_: Assignments = None,
    out: Out = None,
    jobs: int | None = None,
    executor: ExecutorFlag = "local",
    address: Address = None,
    data_dir: DataDir = None,
    record: Path | None = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Vary one setting over the paper's grid, or one component after the other; choose by validation ECE.

    Args:
        what: The setting: lambda (weight of the Huber term), kappa (EMA), interval (epochs between prunings), alpha
            (of the Huber term), fraction (that leaves at each pruning); or components (FLSD, +H, +P, ...).
        values: Another grid than the paper's.
        method: The method whose setting is varied.
        option_: Another setting of the method, the same in all runs, as key=value. Repeatable.
        seeds: One run each.
        data: Data set; by default the one that the recipe file names, else the digits.
        model: Network; by default the one that the recipe file names, else the one recommended for the data set.
        epochs: Epochs of every run.
        recipe: Recipe (a file, or the name of one that ships) that all runs share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the study; by default ablation-WHAT. Run it again to go on where it stopped.
        jobs: Runs at the same time. By default 1, and on Ray as many as there is room for.
        record: Also write one JSON per run into this folder, for example results/.
    """
    from calibrant.checks import whole
    from calibrant.studies import Study, ablation_spec, run_ablation
    from calibrant.training.data.spec import own_data
    from calibrant.training.settings import names_in, parse_option, shared_recipe

    if jobs is not None:
        whole("jobs", jobs, 1)
    trust_named(method, model, own_data(data))
    named = {"data": "digits", **names_in(recipe)}
    spec = ablation_spec(
        what,
        method=method,
        values=values or (),
        options=dict(parse_option(text) for text in option_ or []),
        seeds=seeds or [0],
        data=[data or named["data"]],
        models=[name for name in [model or named.get("model")] if name],
        recipe=shared_recipe(recipe, epochs, set_),
    )
    study = Study(out or Path(f"ablation-{what}"), spec)
    with make_executor(executor, address=address) as place:
        how: dict[str, Any] = {"jobs": jobs, "data_dir": data_dir, "trust_code": trust_code, "executor": place}
        outcome = run_ablation(study, what, **how, record=record)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
