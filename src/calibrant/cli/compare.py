"""`calibrant compare`: methods times seeds times data sets, one table."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.cli._shared import Json, Many, OutOr, Running, answer
from calibrant.own_code import trust_named


def compare(
    file: Path | None = None,
    /,
    *,
    methods: Annotated[list[str] | None, Many] = None,
    seeds: Annotated[list[int] | None, Many] = None,
    data: Annotated[list[str] | None, Many] = None,
    model: Annotated[list[str] | None, Many] = None,
    budget: float | None = None,
    control: Annotated[bool, Parameter(negative="--no-control")] = True,
    baseline: str | None = None,
    decides: str | None = None,
    out: Annotated[Path, OutOr] = Path("study"),
    page: Annotated[bool, Parameter(negative="--no-page")] = True,
    running: Running = Running(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Run methods over seeds and data sets, and end with the paper's tables. Run it again to go on where it stopped.

    Args:
        file: TOML file with methods, seeds, data, models, a shared [recipe] and [[variants]]; flags override it.
        methods: Names from `calibrant methods`, or module:function for a loss of your own.
        seeds: One run each.
        data: Data sets. See `calibrant data list`.
        model: Networks; by default the one that the data set's recipe names.
        budget: Share of the compute: a plan solves for it, a method without one gets fewer epochs.
        control: Add to each plan its control: the same loss and schedule on all data at equal compute.
        baseline: The row that the others are compared with; by default nll, at a budget nll@EPOCHS, else the first.
        decides: The metric of the verdict, named before the runs: test_error, scaled_nll (the default) and so on.
        out: Folder of the study. Given alone, the study in it goes on.
        page: Also write the report page.
    """
    from calibrant.studies import plan_study, run_study
    from calibrant.training.data.spec import own_data

    trust_named(*methods or (), *model or (), *map(own_data, data or ()))
    lists = {"methods": methods, "seeds": seeds, "data": data, "models": model, "baseline": baseline}
    recipe = running.shared_recipe()
    if budget is not None:
        recipe["budget"] = budget
    study = plan_study(
        out,
        file=file,
        lists={**lists, "decides": decides},
        recipe=recipe,
        defaults=running.named(),
        control=control,
    )
    with running.opened() as how:
        outcome = run_study(study, **how, trust_code=running.trust_code, page=page)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
