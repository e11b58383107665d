"""`calibrant compare`: methods times seeds times data sets, one table."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from calibrant.cli._shared import (
    Address,
    Assignments,
    DataDir,
    ExecutorFlag,
    Json,
    Many,
    OutOr,
    Switch,
    TrustCode,
    answer,
)
from calibrant.own_code import trust_named
from calibrant.scale import make_executor


def compare(
    file: Path | None = None,
    /,
    *,
    methods: Annotated[list[str] | None, Many] = None,
    seeds: Annotated[list[int] | None, Many] = None,
    data: Annotated[list[str] | None, Many] = None,
    model: Annotated[list[str] | None, Many] = None,
    epochs: int | None = None,
    budgets: Annotated[
        list[float] | None, Parameter(name=("--budgets", "--budget"), consume_multiple=True, negative="")
    ] = None,
    control: Annotated[bool, Parameter(negative="--no-control")] = True,
    baseline: str | None = None,
    decides: str | None = None,
    recipe: Path | None = None,
    set_: Assignments = None,
    out: Annotated[Path, OutOr] = Path("study"),
    jobs: int | None = None,
    executor: ExecutorFlag = "local",
    address: Address = None,
    data_dir: DataDir = None,
    record: Path | None = None,
    trust_code: TrustCode = False,
    page: Annotated[bool, Parameter(negative="--no-page")] = True,
    raw: Annotated[bool, Switch] = False,
    as_json: Json = False,
) -> None:
    """Run methods over seeds and data sets, and end with the paper's tables. Run it again to go on where it stopped.

    Args:
        file: TOML file with methods, seeds, data, models, a shared [recipe] and [[variants]]; flags override it.
        methods: Names from `calibrant methods`, or module:function for a loss of your own.
        seeds: One run each.
        data: Data sets. See `calibrant data list`.
        model: Networks; by default the one that the data set's recipe names.
        epochs: Epochs of every run; schedules and pruning plans scale with it.
        budgets: Shares of epochs times samples that may be trained on, and every method at each of them: a plan solves
            for it, a method without one gets fewer epochs. Several give the budget curve.
        control: Add to each plan its control: the same loss and schedule on all data, for as many updates.
        baseline: The row that the others are compared with; by default nll, at a budget nll@EPOCHS, else the first.
        decides: The metric of the verdict, named before the runs: test_error, scaled_nll (the default) and so on.
        recipe: Recipe (a file, or the name of one that ships) that all runs share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the study. Given alone, the study in it goes on.
        jobs: Runs at the same time, each in a process of its own; also on one GPU. By default 1, and on Ray as many as
            there is room for.
        record: Also write one JSON per run into this folder, for example results/.
        page: Also write the report page.
        raw: Leave out the table of the runs behind their own calibrators.
    """
    from calibrant.checks import whole
    from calibrant.studies import plan_study, run_study
    from calibrant.training.data.spec import own_data
    from calibrant.training.settings import names_in, shared_recipe

    if jobs is not None:
        whole("jobs", jobs, 1)
    trust_named(*methods or (), *model or (), *map(own_data, data or ()))
    study = plan_study(
        out,
        file=file,
        lists={
            "methods": methods,
            "seeds": seeds,
            "data": data,
            "models": model,
            "baseline": baseline,
            "decides": decides,
        },
        recipe=shared_recipe(recipe, epochs, set_),
        defaults=names_in(recipe),
        budgets=budgets or (),
        control=control,
    )
    with make_executor(executor, address=address) as place:
        how: dict[str, Any] = {"jobs": jobs, "data_dir": data_dir, "trust_code": trust_code, "executor": place}
        outcome = run_study(study, **how, record=record, page=page, raw=raw)
    answer(outcome.describe(), outcome.content, as_json=as_json)
    outcome.raise_failures()
