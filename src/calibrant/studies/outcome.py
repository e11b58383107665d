"""From settings to what a study leaves behind: plan it, run what is left of it, write tables, pages and records."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.checks import whole
from calibrant.display import preformatted
from calibrant.errors import CalibrantWarning, CheckFailed, InvalidInput
from calibrant.report import save_figure, to_terminal
from calibrant.scale import Executor
from calibrant.studies.ablation import ablation_figure, ablation_table, choose_by_validation
from calibrant.studies.budgets import at_budgets
from calibrant.studies.calibrated import calibrated_tables
from calibrant.studies.groups import group_tables, read_groups
from calibrant.studies.output import study_json, try_pages, write_curves, write_tables
from calibrant.studies.progress import make_progress
from calibrant.studies.record import Record, record_run, write_record
from calibrant.studies.spec import StudySpec
from calibrant.studies.study import Study
from calibrant.studies.tables import paper_tables, percent
from calibrant.training import Run, flatten, method_settings


def plan_study(
    folder: str | Path,
    *,
    file: str | Path | None = None,
    lists: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    defaults: Mapping[str, str] | None = None,
    budgets: Sequence[float] = (),
    control: bool = False,
) -> Study:
    """The study that a file and settings describe; without any, the one that is in the folder already.

    Args:
        folder: Where the study is kept.
        file: A study as TOML.
        lists: `methods`, `seeds`, `data`, `models`, `baseline`; they win over the file. What is None is not set.
        recipe: Dotted recipe keys that all runs share; they win over the file.
        defaults: `data` and `model` where neither the file nor `lists` names any.
        budgets: Shares of all updates at which each method is run.
        control: Whether each plan gets its control: all data for as many updates in fewer epochs.
    """
    given = {key: value for key, value in (lists or {}).items() if value is not None}
    out = Path(folder)
    if file is None and not given and not recipe and not budgets:
        return Study(out, None)
    if file is None and "methods" not in given and (out / "study.toml").is_file():
        raise InvalidInput(
            "--methods must be given to change a study. Leave out all settings to go on with it as it is."
        )
    content = {} if file is None else StudySpec.load(file).model_dump(exclude_unset=True)
    named = {"models" if key == "model" else key: (name,) for key, name in (defaults or {}).items()}
    merged = {**named, **content, **given}
    merged["recipe"] = {**flatten(content.get("recipe", {})), **(recipe or {})}
    if "derived" not in merged:
        merged["derived"] = {data: found for data in merged.get("data", ()) if (found := _derived(data))}
    return Study(out, at_budgets(StudySpec.parse(merged), budgets, control=control))


def _derived(data: str) -> dict[str, Any]:
    try:
        return method_settings(data)
    except InvalidInput:  # running the study says what is wrong with it, before anything is written
        return {}


@dataclass
class Outcome:
    """What running a study left behind.

    Attributes:
        study: The study.
        failed: What to raise in the end, where runs failed.
        files: Tables and pages that were written.
        text: The tables for a person.
        content: The same as plain JSON values.
        complaints: One sentence for each record that was not written.
    """

    study: Study
    failed: CheckFailed | None = None
    files: list[Path] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        return preformatted(self.describe())

    def raise_failures(self) -> None:
        """Raise where runs failed, or where a record could not be written."""
        if self.failed is not None:
            raise self.failed
        if self.complaints:
            raise CheckFailed("; ".join(self.complaints))

    def describe(self) -> str:
        """Tables and files for a person."""
        written = [f"written: {', '.join(str(path) for path in self.files)}"] if self.files else []
        return "\n".join([*self.text, *written])


def run_study(
    study: Study,
    *,
    jobs: int | None = None,
    data_dir: Path | None = None,
    trust_code: bool = False,
    executor: Executor | None = None,
    record: Path | None = None,
    page: bool = False,
    raw: bool = False,
    groups: Path | None = None,
) -> Outcome:
    """Run what is left to run; write tables, pages and records of what has finished.

    Args:
        study: The study.
        jobs: Runs at the same time, each in a process of its own; None for 1, or as many as the executor has room for.
        data_dir: Where image sets lie.
        trust_code: Whether to run code of the user's own that was not used on this machine before.
        executor: Where the runs are made; None for processes of this machine.
        record: Folder for one JSON per finished run; None for none.
        page: Whether to write report pages.
        raw: Leave out the table of the runs behind their own calibrators.
        groups: A CSV file with a column `group`, one row for each test case in the order of the test set: adds a table
            by group to the others and to the pages, with the worst one named.
    """
    by_group = None if groups is None else read_groups(groups)
    outcome = _run(study, jobs=jobs, data_dir=data_dir, trust_code=trust_code, executor=executor)
    all_results = study.results()
    outcome.content = study_json(study, all_results)
    # Where no run has finished there is nothing to tabulate; `failed` says why.
    if all_results:
        calibrated = [] if raw else calibrated_tables(study)
        calibrated += [] if by_group is None else group_tables(study, by_group)
        outcome.files = [*write_tables(study, all_results, extra=calibrated), *write_curves(study, all_results)]
        shown = [grid for results in all_results for grid in paper_tables(results, brief=True)]
        outcome.text = [to_terminal(grid) + "\n" for grid in (*shown, *calibrated)]
        if page:
            pages, complaint = try_pages(study, all_results, data_dir=data_dir, raw=raw, groups=by_group)
            outcome.files += pages
            outcome.text += [complaint] if complaint else []
    outcome.complaints = [] if record is None else record_all(study, record)
    return outcome


def run_ablation(
    study: Study,
    name: str,
    *,
    jobs: int | None = None,
    data_dir: Path | None = None,
    trust_code: bool = False,
    executor: Executor | None = None,
    record: Path | None = None,
) -> Outcome:
    """Run the study of an ablation, choose by validation, and write its table and its figure; see `run_study`."""
    outcome = _run(study, jobs=jobs, data_dir=data_dir, trust_code=trust_code, executor=executor)
    outcome.complaints = [] if record is None else record_all(study, record)
    all_results = study.results()
    if not all_results:
        return outcome
    results = all_results[0]
    table, chosen = ablation_table(name, results), choose_by_validation(results)
    outcome.files = write_tables(study, all_results, extra=[table])
    outcome.files += save_figure(ablation_figure(name, results), study.path / name)
    outcome.content = {
        "ablation": name,
        "chosen_on_validation": chosen.label,
        **study_json(study, all_results),
    }
    test = ", ".join(
        f"{label} {percent(chosen.test[metric])}"
        for label, metric in (("ECE", "ece"), ("TE", "test_error"), ("ECE(S95)", "ece@0.95"), ("|S95|", "share@0.95"))
    )
    # Components are compared; nobody chooses one by its validation ECE.
    word = "lowest ECE on validation" if name == "components" else "chosen on validation"
    sentence = f"{word}: {chosen.label} (validation ECE {percent(chosen.validation_ece)}); on test: {test}"
    outcome.text = [to_terminal(table) + "\n", sentence]
    return outcome


def _run(
    study: Study, *, jobs: int | None, data_dir: Path | None, trust_code: bool, executor: Executor | None
) -> Outcome:
    """Run what is left; failures are kept, so that what did finish can be shown first."""
    study.pending()  # where it refuses a run, nothing is about to be left out
    _warn_of_what_is_left_out(study)
    try:
        study.run(jobs=jobs, data_dir=data_dir, progress=make_progress(), trust_code=trust_code, executor=executor)
    except CheckFailed as failed:
        return Outcome(study, failed)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("stopped; run the same command again to go on") from error
    return Outcome(study)


def _warn_of_what_is_left_out(study: Study) -> None:
    """Warn where the folder held a larger study: `study.toml` and the tables are about to forget a part of it."""
    try:
        before = StudySpec.load(study.path / "study.toml").runs()
    except InvalidInput:  # none there, or one that cannot be read: nothing is forgotten
        return
    names = {planned.name for planned in study.runs}
    left = [planned.name for planned in before if planned.name not in names and study.folder(planned).is_dir()]
    if left:
        count = "1 run" if len(left) == 1 else f"{len(left)} runs"
        warnings.warn(
            f"{count} of the study that was in {study.path} left out of study.toml and the tables (first: {left[0]}); "
            "what was trained stays in runs/. Name all methods, seeds and data sets to have it back.",
            CalibrantWarning,
            stacklevel=4,
        )


def record_all(study: Study, folder: Path) -> list[str]:
    """Write a record of every finished run; returns complaints about those that were not written."""
    complaints = []
    for planned in study.finished():
        try:
            write_record(study.record(planned), folder)
        except InvalidInput as error:
            complaints.append(str(error))
    return complaints


@dataclass
class Recorded:
    """What `record_runs` wrote.

    Attributes:
        records: What was measured.
        lines: For each of them the run and its file.
        unfinished: Runs that were not recorded.
    """

    records: list[Record] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def raise_unfinished(self) -> None:
        """Raise where runs were not recorded."""
        if self.unfinished:
            way_out = "Continue them with: calibrant train --resume RUN"
            raise InvalidInput(f"not finished, so not recorded: {', '.join(self.unfinished)}. {way_out}")


def record_runs(
    runs: Sequence[str | Path], folder: Path, *, concurrent: int | None = None, replace: bool = False
) -> Recorded:
    """Measure finished runs and write one JSON each.

    Args:
        runs: Run folders.
        folder: Where the records are written.
        concurrent: How many runs shared the machine, these included; times are only compared where this is 1.
        replace: Whether to replace a record of the same settings and seed whose outcome differs.
    """
    if not runs:
        raise InvalidInput("record needs at least one run folder. For example: calibrant record runs/* --out results")
    if concurrent is not None:
        whole("concurrent", concurrent, 1, "It counts the runs themselves.")
    recorded = Recorded()
    for path in runs:
        run = Run.open(path)
        if not run.finished:
            recorded.unfinished.append(str(path))
            continue
        recorded.records.append(record_run(run, concurrent_runs=concurrent))
        file = write_record(recorded.records[-1], folder, replace=replace)
        recorded.lines.append(f"{path} -> {file}")
    return recorded
