"""`calibrant compare`: methods times seeds times data sets, one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from calibrant.cli._flags import TrustCode
from calibrant.cli._say import say, say_json
from calibrant.cli._study import at_least_one, names_in, record_all, run_study, shared_recipe
from calibrant.errors import CheckFailed, InvalidInput
from calibrant.own_code import trust_named

if TYPE_CHECKING:
    from calibrant.study import Study

_Many = Parameter(consume_multiple=True, negative="")


def compare(
    file: Path | None = None,
    /,
    *,
    methods: Annotated[list[str] | None, _Many] = None,
    seeds: Annotated[list[int] | None, _Many] = None,
    data: Annotated[list[str] | None, _Many] = None,
    model: Annotated[list[str] | None, _Many] = None,
    epochs: int | None = None,
    baseline: str | None = None,
    recipe: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    out: Path = Path("study"),
    jobs: int = 1,
    data_dir: Path | None = None,
    record: Path | None = None,
    trust_code: TrustCode = False,
    page: Annotated[bool, Parameter(negative="--no-page")] = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Run methods over seeds and data sets, and end with the paper's tables. Run it again to go on where it stopped.

    Args:
        file: TOML file with methods, seeds, data, models, a shared [recipe] and [[variants]]; flags override it.
        methods: Names from `calibrant methods`, or module:function for a loss of your own.
        seeds: One run each.
        data: Data sets. See `calibrant data list`.
        model: Networks; by default the one that the data set's recipe names.
        epochs: Epochs of every run; schedules and pruning plans scale with it.
        baseline: The row that the others are compared with; by default nll, else the first.
        recipe: Recipe file that all runs share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the study. Given alone, the study in it goes on.
        jobs: Runs at the same time, each in a process of its own; also on one GPU.
        data_dir: Where image sets lie; by default CALIBRANT_DATA, then the user's cache.
        record: Also write one JSON a run into this folder, for example results/.
        trust_code: Also run code of your own (module:name) that a file names and that you have not used here before.
        page: Also write the report page.
        json: Print everything as JSON.
    """
    at_least_one(jobs=jobs)
    trust_named(*methods or (), *model or ())
    from calibrant.study import Study

    lists = {"methods": methods, "seeds": seeds, "data": data, "models": model, "baseline": baseline}
    given = {key: value for key, value in lists.items() if value is not None}
    shared = shared_recipe(recipe, epochs, set_)
    study = Study(out, _spec(file, given, shared, names_in(recipe), out))
    failed = run_study(study, jobs=jobs, data_dir=data_dir, trust_code=trust_code)
    finish(study, record=record, page=page, as_json=json, data_dir=data_dir)
    if failed is not None:
        raise failed


def _spec(file: Path | None, given: dict[str, Any], shared: dict[str, Any], named: dict[str, str], out: Path) -> Any:
    """The study that file and flags describe; None where only the folder was given."""
    from calibrant.study import StudySpec
    from calibrant.training import flatten

    if file is None and not given and not shared:
        return None
    if file is None and "methods" not in given and (out / "study.toml").is_file():
        raise InvalidInput(
            "--methods must be given to change a study. Leave out all settings to go on with it as it is."
        )
    content = {} if file is None else StudySpec.load(file).model_dump(exclude_unset=True)
    defaults = {"models" if key == "model" else key: (name,) for key, name in named.items()}
    merged = {**defaults, **content, **given}
    merged["recipe"] = {**flatten(content.get("recipe", {})), **shared}
    return StudySpec.parse(merged)


def finish(study: "Study", *, record: Path | None, page: bool, as_json: bool, data_dir: Path | None = None) -> None:
    """Tables, page and records of what has finished."""
    from calibrant.report import to_terminal
    from calibrant.study import paper_tables, study_json, try_pages, write_tables

    all_results = study.results()
    # Where no run has finished there is nothing to tabulate; what failed is said elsewhere.
    files = write_tables(study, all_results) if all_results else []
    pages, complaint = try_pages(study, data_dir=data_dir) if page and all_results else ([], "")
    complaints = record_all(study, record) if record is not None else []
    if as_json:
        say_json(study_json(study, all_results))
    else:
        for results in all_results:
            for grid in paper_tables(results, brief=True):
                say(to_terminal(grid) + "\n")
        if files:
            say(f"written: {', '.join(str(path) for path in [*files, *pages])}")
        if complaint:
            say(complaint)
    if complaints:
        raise CheckFailed("; ".join(complaints))
