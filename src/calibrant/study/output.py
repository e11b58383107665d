"""Tables of a study as Markdown and LaTeX, its numbers as JSON, and its report page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import InvalidInput
from calibrant.files import write_json, write_text
from calibrant.report import Grid, to_latex, to_markdown
from calibrant.study.curve import budget_figure
from calibrant.study.spec import file_word
from calibrant.study.study import Study
from calibrant.study.summary import Results
from calibrant.study.tables import control_table, paper_tables
from calibrant.training import Run

if TYPE_CHECKING:
    from calibrant.report import Section


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
    """Write `tables.md`, `tables.tex` and `comparison.json` into the study's folder."""
    grids = [*extra, *(grid for results in all_results for grid in paper_tables(results))]
    paths = [study.path / name for name in ("tables.md", "tables.tex", "comparison.json")]
    write_text(paths[0], "\n".join(to_markdown(grid) for grid in grids))
    write_text(paths[1], "\n".join(to_latex(grid) for grid in grids))
    write_json(paths[2], study_json(study, all_results))
    return paths


def write_pages(study: Study, all_results: Sequence[Results] = (), *, data_dir: str | Path | None = None) -> list[Path]:
    """One report page for each data set and network, with the first seed of every row.

    Args:
        study: The study.
        all_results: What `study.results()` gives, for plans beside their controls.
        data_dir: Where image sets lie, for the pictures of single cases.
    """
    from calibrant.report import ReportEntry, write_report

    groups: dict[tuple[str, str], dict[str, ReportEntry]] = {}
    for planned in study.finished():
        run = Run.open(study.folder(planned))
        place = (planned.recipe.data.name, planned.recipe.model.name)
        entry = ReportEntry(planned.label, run.predictions("test"), run)
        groups.setdefault(place, {}).setdefault(planned.label, entry)
    pages = []
    # Both are in the order of the finished runs.
    for number, ((data, model), entries) in enumerate(groups.items()):
        sections = _sections(all_results[number]) if all_results else []
        name = "report.html" if len(groups) == 1 else f"report-{file_word(data)}-{file_word(model)}.html"
        title = f"{data}, {model}: what may each model decide alone?"
        shown = list(entries.values())
        pages.append(write_report(shown, study.path / name, title=title, data_dir=data_dir, sections=sections))
    if len(groups) > 1:
        # A page from when the study had one data set would look like the whole study; that set has its own page now.
        (study.path / "report.html").unlink(missing_ok=True)
    return pages


def _sections(results: Results) -> "list[Section]":
    """Plans beside their controls, with the budget curve where there is one."""
    from calibrant.report import Section

    if not results.controls:
        return []
    described = "Error, NLL and what may be automated over the share of updates; a line for each plan and its control."
    return [Section("Is the plan worth it?", control_table(results), budget_figure(results), described)]


def write_curves(study: Study, all_results: Sequence[Results]) -> list[Path]:
    """Write the budget curve of each data set and network as `budget.svg` and `budget.png`."""
    from calibrant.report import save_figure

    paths: list[Path] = []
    for results in all_results:
        figure = budget_figure(results)
        if figure is not None:
            words = () if len(all_results) == 1 else (file_word(results.data), file_word(results.model))
            paths += save_figure(figure, study.path / "-".join(("budget", *words)))
    return paths


def try_pages(
    study: Study, all_results: Sequence[Results] = (), *, data_dir: str | Path | None = None
) -> tuple[list[Path], str]:
    """The pages; where they cannot be made, none and one line that says why."""
    try:
        return write_pages(study, all_results, data_dir=data_dir), ""
    except InvalidInput as error:  # plotly or jinja2 is not installed
        return [], f"no report page: {error}"
