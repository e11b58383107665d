"""`calibrant ablate`: the paper's ablations, chosen on validation."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from calibrant.cli._flags import TrustCode
from calibrant.cli._say import say, say_json
from calibrant.cli._study import at_least_one, names_in, option, record_all, run_study, shared_recipe
from calibrant.errors import CheckFailed
from calibrant.own_code import trust_named

_Many = Parameter(consume_multiple=True, negative="")


def ablate(
    what: Literal["lambda", "kappa", "interval", "alpha", "fraction", "components"],
    /,
    *,
    values: Annotated[list[float] | None, _Many] = None,
    method: str = "flsd+h+p-ema",
    option_: Annotated[list[str] | None, Parameter(name="--option", negative="")] = None,
    seeds: Annotated[list[int] | None, _Many] = None,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    recipe: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    out: Path | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    record: Path | None = None,
    trust_code: TrustCode = False,
    json: Annotated[bool, Parameter(negative="")] = False,
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
        recipe: Recipe file that all runs share; its method and seed are replaced.
        set_: Any other recipe setting, as key=value. Repeatable.
        out: Folder of the study; by default ablation-WHAT. Run it again to go on where it stopped.
        jobs: Runs at the same time.
        data_dir: Where image sets lie.
        record: Also write one JSON a run into this folder, for example results/.
        trust_code: Also run code of your own (module:name) that a file names and that you have not used here before.
        json: Print everything as JSON.
    """
    at_least_one(jobs=jobs)
    trust_named(method, model)
    from calibrant.study import Study, ablation_spec

    named = names_in(recipe)
    network = model or named.get("model")
    lists: dict[str, Any] = {"seeds": seeds or [0], "data": [data or named.get("data", "digits")]}
    lists["models"] = [] if network is None else [network]
    lists["recipe"] = shared_recipe(recipe, epochs, set_)
    options = dict(option(text) for text in option_ or [])
    spec = ablation_spec(what, method=method, values=values or (), options=options, **lists)
    study = Study(out or Path(f"ablation-{what}"), spec)
    failed = run_study(study, jobs=jobs, data_dir=data_dir, trust_code=trust_code)
    complaints = record_all(study, record) if record is not None else []
    _finish(study, what, as_json=json)
    if failed is not None:
        raise failed
    if complaints:
        raise CheckFailed("; ".join(complaints))


def _finish(study: Any, what: str, *, as_json: bool) -> None:
    from calibrant.report import save_figure, to_terminal
    from calibrant.study import ablation_figure, ablation_table, choose_by_validation, percent, study_json, write_tables

    all_results = study.results()
    if not all_results:
        return
    results = all_results[0]
    table, chosen = ablation_table(what, results), choose_by_validation(results)
    files = write_tables(study, all_results, extra=[table])
    files += save_figure(ablation_figure(what, results), study.path / what)
    if as_json:
        say_json({"ablation": what, "chosen_on_validation": chosen.label, **study_json(study, all_results)})
        return
    say(to_terminal(table) + "\n")
    test = ", ".join(
        f"{name} {percent(chosen.test[metric])}"
        for name, metric in (("ECE", "ece"), ("TE", "test_error"), ("ECE(S95)", "ece@0.95"), ("|S95|", "share@0.95"))
    )
    # Components are compared; nobody chooses one by its validation ECE.
    word = "lowest ECE on validation" if what == "components" else "chosen on validation"
    say(f"{word}: {chosen.label} (validation ECE {percent(chosen.validation_ece)}); on test: {test}")
    say(f"written: {', '.join(str(path) for path in files)}")
