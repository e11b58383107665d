"""What a study leaves behind: run what is left of it, then write its tables and pages."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.errors import CheckFailed
from calibrant.files import write_json, write_text
from calibrant.report import ReportEntry, Section, save_figure, write_report
from calibrant.studies.ablation import ablation_figure, ablation_table, choose_by_validation
from calibrant.studies.result_tables import paper_tables, percent
from calibrant.studies.study_folder import Study
from calibrant.studies.study_results import Results
from calibrant.studies.study_spec import file_word
from calibrant.training import Run


@dataclass
class Outcome:
    """The result of running a study or a sweep.

    `failed` says why runs or workers failed; it is empty if none did. `text` has the tables for people, `content` the
    same as plain JSON values, and `results` those of a study, one for each data set and network.
    """

    failed: str = ""
    files: list[Path] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the tables and the names of the files, for people."""
        lines = list(self.text)
        if self.files:
            lines.append(f"written: {', '.join(map(str, self.files))}")
        return "\n".join(lines)

    def raise_failures(self) -> None:
        """Raise if something failed."""
        if self.failed:
            raise CheckFailed(self.failed)


def run_study(study: Study, *, page: bool = False, **how: Any) -> Outcome:
    """Run what is not finished, and write tables and pages of what is.

    Args:
        study: The study.
        page: Whether to write report pages.
        how: `jobs`, `data_dir`, `trust_code` and `executor` of `Study.run`.
    """
    outcome = Outcome()
    try:
        study.run(**how)
    except CheckFailed as error:  # the finished runs are shown first
        outcome.failed = str(error)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("stopped; run the same command again to continue") from error
    outcome.results = study.results()
    outcome.content = _json(study, outcome.results)
    if outcome.results:
        outcome.files = write_tables(study, outcome.results)
        outcome.text = [f"{table.terminal()}\n" for results in outcome.results for table in paper_tables(results)]
        if page:
            outcome.files += report_study(study, outcome.results, data_dir=how.get("data_dir"))
    return outcome


def run_ablation(study: Study, name: str, **how: Any) -> Outcome:
    """Run the study of an ablation, choose by validation, and write its table and its figure. See `run_study`."""
    outcome = run_study(study, **how)
    if not outcome.results:
        return outcome
    results = outcome.results[0]
    table = ablation_table(name, results)
    chosen = choose_by_validation(results)
    write_text(study.path / f"{name}.md", table.markdown())
    outcome.files += [study.path / f"{name}.md", *save_figure(ablation_figure(name, results), study.path / name)]
    outcome.content = {"ablation": name, "chosen_on_validation": chosen.label, **outcome.content}
    shown = {"ECE": "ece", "TE": "test_error", "ECE(S95)": "ece@0.95", "|S95|": "share@0.95"}
    test = ", ".join(f"{label} {percent(chosen[metric])}" for label, metric in shown.items())
    word = "chosen on validation"
    if name == "components":  # they are compared, not chosen
        word = "lowest ECE on validation"
    sentence = f"{word}: {chosen.label} (validation ECE {percent(chosen['validation_ece'])}); on test: {test}"
    outcome.text = [f"{table.terminal()}\n", sentence]
    return outcome


def _json(study: Study, all_results: Sequence[Results]) -> dict[str, Any]:
    """Return all results of a study as plain values, in fractions."""
    finished = study.finished()
    runs = [{"name": run.name, "label": run.label, "finished": run in finished} for run in study.runs]
    return {"runs": runs, "comparisons": [results.to_dict() for results in all_results]}


def write_tables(study: Study, all_results: Sequence[Results]) -> list[Path]:
    """Write `tables.md`, `tables.tex`, `comparison.json` and `runs.csv` into the study's folder."""
    tables = [table for results in all_results for table in paper_tables(results)]
    paths = [study.path / name for name in ("tables.md", "tables.tex", "comparison.json", "runs.csv")]
    write_text(paths[0], "\n".join(table.markdown() for table in tables))
    write_text(paths[1], "\n".join(table.latex() for table in tables))
    write_json(paths[2], _json(study, all_results))
    write_text(paths[3], runs_csv(study))
    return paths


def runs_csv(study: Study) -> str:
    """Return CSV with one line per finished run: `Record.figures`."""
    lines: list[dict[str, Any]] = []
    for planned in study.finished():
        record = study.record(planned)
        names = {"data": record.data, "model": record.model, "label": planned.label}
        lines.append({**names, "method": record.method, "seed": record.seed, **record.figures})
    out = io.StringIO()
    columns = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def report_study(study: Study, all_results: Sequence[Results], **settings: Any) -> list[Path]:
    """Write one report page per data set and network: the tables over all seeds, and the first seed of every row.

    Args:
        study: The study. Its folder gets `report.html`, or one page for each data set and network.
        all_results: The result of `study.results()`.
        settings: Further arguments of `write_report`.
    """
    places: dict[tuple[str, str], dict[str, ReportEntry]] = {}
    for planned in study.finished():
        run = Run(study.folder(planned))
        name = planned.label
        if len(study.spec.seeds) > 1:
            name = f"{name} (seed {planned.recipe.seed})"
        entry = ReportEntry(name, run.predictions("test"), run)
        places.setdefault(planned.place, {}).setdefault(planned.label, entry)
    # A page from the time when the study had one data set would look like the whole study.
    (study.path / "report.html").unlink(missing_ok=True)
    pages = []
    for results in all_results:
        where = f"{results.data}, {results.model}"
        name = "report.html"
        if len(places) > 1:
            name = f"report-{file_word(results.data)}-{file_word(results.model)}.html"
        sections = [
            Section(f"Over all seeds: {table.title.removeprefix(f'{where}: ')}", table, leads=True)
            for table in paper_tables(results)
        ]
        entries = list(places[results.data, results.model].values())
        title = f"{where}: what may each model decide alone?"
        pages.append(write_report(entries, study.path / name, sections=sections, title=title, **settings))
    return pages
