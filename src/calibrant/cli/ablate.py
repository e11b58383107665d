"""`calibrant ablate`: the paper's ablations, chosen on validation."""

from pathlib import Path
from typing import Annotated, Literal

from calibrant.cli._shared import Json, Many, Out, Repeated, Running, answer
from calibrant.own_code import trust_named


def ablate(
    what: Literal["lambda", "kappa", "interval", "alpha", "fraction", "components"],
    /,
    *,
    values: Annotated[list[float] | None, Many] = None,
    method: str = "flsd+h+p-ema",
    option: Annotated[list[str] | None, Repeated] = None,
    seeds: Annotated[list[int] | None, Many] = None,
    data: str | None = None,
    model: str | None = None,
    out: Out = None,
    running: Running = Running(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Vary one setting over the paper's grid, or one component after the other; choose by validation ECE.

    Args:
        what: lambda (weight of the Huber term), kappa (EMA), interval (epochs between prunings), alpha (of the Huber
            term), fraction (that leaves at each pruning), or components (FLSD, +H, +P, ...).
        values: Another grid than the paper's.
        method: The method whose setting is varied.
        option: Another setting of the method, the same in all runs, as key=value. Repeatable.
        seeds: One run each.
        data: Data set; by default that of the recipe file, else the digits.
        model: Network; by default that of the recipe file, else the one recommended for the data set.
        out: Folder of the study; by default ablation-WHAT.
    """
    from calibrant.studies import Study, ablation_spec, run_ablation
    from calibrant.training.data.spec import own_data
    from calibrant.training.settings import parse_option

    trust_named(method, model, own_data(data))
    named = {"data": "digits", **running.named()}
    spec = ablation_spec(
        what,
        method=method,
        values=values or (),
        options=dict(parse_option(text) for text in option or []),
        seeds=seeds or [0],
        data=[data or named["data"]],
        models=[name for name in [model or named.get("model")] if name],
        recipe=running.shared_recipe(),
    )
    study = Study(out or Path(f"ablation-{what}"), spec)
    with running.opened() as how:
        outcome = run_ablation(study, what, **how, trust_code=running.trust_code)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
