"""Tables of a study as Markdown and LaTeX, its numbers as JSON, and its report page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput
from calibrant.files import write_json, write_text
from calibrant.report import Grid, to_latex, to_markdown
from calibrant.study.spec import file_word
from calibrant.study.study import Study
from calibrant.study.summary import Results
from calibrant.study.tables import paper_tables
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
    """Write `tables.md`, `tables.tex` and `comparison.json` into the study's folder."""
    grids = [*extra, *(grid for results in all_results for grid in paper_tables(results))]
    paths = [study.path / name for name in ("tables.md", "tables.tex", "comparison.json")]
    write_text(paths[0], "\n".join(to_markdown(grid) for grid in grids))
    write_text(paths[1], "\n".join(to_latex(grid) for grid in grids))
    write_json(paths[2], study_json(study, all_results))
    return paths


def write_pages(study: Study, *, data_dir: str | Path | None = None) -> list[Path]:
    """One report page for each data set and network, with the first seed of every row.

    Args:
        study: The study.
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
    for (data, model), entries in groups.items():
        name = "report.html" if len(groups) == 1 else f"report-{file_word(data)}-{file_word(model)}.html"
        title = f"{data}, {model}: what may each model decide alone?"
        pages.append(write_report(list(entries.values()), study.path / name, title=title, data_dir=data_dir))
    if len(groups) > 1:
        # A page from when the study had one data set would look like the whole study; that set has its own page now.
        (study.path / "report.html").unlink(missing_ok=True)
    return pages


def try_pages(study: Study, *, data_dir: str | Path | None = None) -> tuple[list[Path], str]:
    """The pages; where they cannot be made, none and one line that says why."""
    try:
        return write_pages(study, data_dir=data_dir), ""
    except InvalidInput as error:  # plotly or jinja2 is not installed
        return [], f"no report page: {error}"
