"""Tables of a study as Markdown and LaTeX, its numbers as JSON, and its report page."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path, write_json, write_text
from calibrant.metrics import Groups
from calibrant.report import Grid, ReportEntry, Section, save_figure, to_latex, to_markdown, write_report
from calibrant.studies.calibrated import calibrated_tables
from calibrant.studies.curve import budget_figure
from calibrant.studies.groups import group_tables
from calibrant.studies.spec import file_word
from calibrant.studies.study import Study
from calibrant.studies.summary import Results
from calibrant.studies.tables import control_table, paper_tables
from calibrant.training import Run


def study_json(study: Study, all_results: Sequence[Results]) -> dict[str, Any]:
    """All results of a study as plain values, in fractions."""
    done = {planned.name for planned in study.finished()}
    return {
        "runs": [
            {"name": planned.name, "label": planned.label, "finished": planned.name in done} for planned in study.runs
        ],
        "comparisons": [results.to_dict() for results in all_results],
    }


def write_tables(study: Study, all_results: Sequence[Results], *, extra: Sequence[Grid] = ()) -> list[Path]:
    """Write `tables.md`, `tables.tex`, `comparison.json` and `runs.csv` into the study's folder."""
    grids = [*extra, *(grid for results in all_results for grid in paper_tables(results))]
    paths = [study.path / name for name in ("tables.md", "tables.tex", "comparison.json", "runs.csv")]
    write_text(paths[0], "\n".join(to_markdown(grid) for grid in grids))
    write_text(paths[1], "\n".join(to_latex(grid) for grid in grids))
    write_json(paths[2], study_json(study, all_results))
    write_text(paths[3], runs_csv(study))
    return paths


def runs_csv(study: Study) -> str:
    """One line for each finished run, for pandas or a spreadsheet: its costs and all test metrics, as fractions.

    Metrics have 10 bins, `ece_15_bins` has 15; `scaled_...` are those after temperature scaling.
    """
    lines: list[dict[str, Any]] = []
    for planned in study.finished():
        record = study.record(planned)
        line: dict[str, Any] = {"data": record.data, "model": record.model, "label": planned.label}
        for key in ("method", "seed", "samples_seen", "seen_share", "samples_scored", "train_seconds", "temperature"):
            line[key] = getattr(record, key)
        for scaled, prefix in ((False, ""), (True, "scaled_")):
            line |= {f"{prefix}{name}": value for name, value in record.evaluation(scaled=scaled).values().items()}
            line[f"{prefix}ece_15_bins"] = record.value("ece", n_bins=15, scaled=scaled)
        lines.append(line)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def write_pages(
    study: Study,
    all_results: Sequence[Results] | None = None,
    *,
    path: str | Path | None = None,
    raw: bool = False,
    groups: Groups | None = None,
    **settings: Any,
) -> list[Path]:
    """One report page for each data set and network: the tables over all seeds, and the first seed of every row.

    Args:
        study: The study.
        all_results: What `study.results()` gives; None to compute it.
        path: The page, where there is one data set and network; None for `report.html` in the study's folder, or one
            page for each.
        raw: Leave out what the calibrators and rules in the runs make.
        groups: Name of an extra column of the runs' test predictions, or one value for each test case in the order of
            the test set: also a table of the means over seeds in each group.
        settings: Further arguments of `write_report`.
    """
    places: dict[tuple[str, str], dict[str, ReportEntry]] = {}
    several = len(study.spec.seeds) > 1
    for planned in study.finished():
        run = Run.open(study.folder(planned))
        name = f"{planned.label} (seed {planned.recipe.seed})" if several else planned.label
        entries = places.setdefault(planned.place, {})
        if planned.label not in entries:
            entries[planned.label] = ReportEntry(name, run.predictions("test"), run)
    if path is not None and len(places) > 1:
        raise invalid("path", "be left out for a study of several data sets or networks", str(path))
    all_results = study.results() if all_results is None else all_results
    tables = [] if raw else calibrated_tables(study)
    tables += [] if groups is None else group_tables(study, groups)
    pages = []
    # Both are in the order of the finished runs.
    for (data, model), entries, results in zip(places, places.values(), all_results, strict=True):
        name = "report.html" if len(places) == 1 else f"report-{file_word(data)}-{file_word(model)}.html"
        extra = [grid for grid in tables if grid.title.startswith(f"{data}, {model}:")]
        given = {"title": f"{data}, {model}: what may each model decide alone?", **settings}
        target = study.path / name if path is None else path
        sections = _sections(results, extra)
        pages.append(write_report(list(entries.values()), target, raw=raw, sections=sections, **given))
    if len(places) > 1:
        # A page from when the study had one data set would look like the whole study; that set has its own page now.
        (study.path / "report.html").unlink(missing_ok=True)
    return pages


def _sections(results: Results, extra: Sequence[Grid] = ()) -> list[Section]:
    """The tables of the study, means and verdicts over seeds; the budget curve stands with the plans."""
    sections = []
    for grid in (*paper_tables(results), *extra):
        heading = f"Over all seeds: {grid.title.removeprefix(f'{results.data}, {results.model}: ')}"
        if results.controls and grid == control_table(results):
            sections.append(Section("Is the plan worth it?", grid, budget_figure(results), _CURVE))
        else:
            sections.append(Section(heading, grid))
    return sections


_CURVE = "Error, NLL and what may be automated over the share of updates; a line for each plan and its control."


def holds_study(sources: Sequence[str | Path]) -> bool:
    """Whether one of the folders is that of a study."""
    return any((as_path(path) / "study.toml").is_file() for path in sources)


def report_study(
    sources: Sequence[str | Path],
    path: str | Path | None = None,
    *,
    not_for_studies: Mapping[str, Any],
    **settings: Any,
) -> list[Path]:
    """The pages of the one study among the sources.

    Args:
        sources: The folder of a study, alone.
        path: As for `write_pages`.
        not_for_studies: Arguments that a study has no use for; one that is given is refused.
        settings: Further arguments of `write_pages`.
    """
    if len(sources) > 1:
        raise invalid("sources", "be one study alone, or runs and files", f"{len(sources)} sources")
    for name, value in not_for_studies.items():
        if value is not None:
            raise invalid(name, "be left out for a study: its runs bring their own", str(value))
    study = Study(sources[0])
    if not study.finished():
        raise InvalidInput(f"study {study.path} has no finished run yet. Run it: calibrant compare --out {study.path}")
    return write_pages(study, path=path, **settings)


def write_curves(study: Study, all_results: Sequence[Results]) -> list[Path]:
    """Write the budget curve of each data set and network as `budget.svg` and `budget.png`."""
    paths: list[Path] = []
    for results in all_results:
        figure = budget_figure(results)
        if figure is not None:
            words = () if len(all_results) == 1 else (file_word(results.data), file_word(results.model))
            paths += save_figure(figure, study.path / "-".join(("budget", *words)))
    return paths


def try_pages(study: Study, all_results: Sequence[Results], **settings: Any) -> tuple[list[Path], str]:
    """The pages of `write_pages`; where they cannot be made, none and one line that says why."""
    try:
        return write_pages(study, all_results, **settings), ""
    except InvalidInput as error:  # plotly or jinja2 is not installed
        return [], f"no report page: {error}"
