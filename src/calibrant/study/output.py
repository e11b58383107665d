"""What a study leaves for people: tables as Markdown and LaTeX, numbers as JSON, a report page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput
from calibrant.files import write_json, write_text
from calibrant.study.spec import file_word
from calibrant.study.study import Study
from calibrant.study.summary import Comparison
from calibrant.study.tables import Grid, paper_tables, to_latex, to_markdown
from calibrant.training import Run


def study_json(study: Study, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Everything in one object, in fractions."""
    done = {cell.name for cell in study.finished()}
    return {
        "runs": [{"name": cell.name, "label": cell.label, "finished": cell.name in done} for cell in study.cells],
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }


def write_tables(study: Study, comparisons: Sequence[Comparison], *, extra: Sequence[Grid] = ()) -> list[Path]:
    """Write `tables.md`, `tables.tex` and `comparison.json` into the study's folder."""
    grids = [*extra, *(grid for comparison in comparisons for grid in paper_tables(comparison))]
    paths = [study.path / name for name in ("tables.md", "tables.tex", "comparison.json")]
    write_text(paths[0], "\n".join(to_markdown(grid) for grid in grids))
    write_text(paths[1], "\n".join(to_latex(grid) for grid in grids))
    write_json(paths[2], study_json(study, comparisons))
    return paths


def write_pages(study: Study) -> list[Path]:
    """One report page for each data set and network, with the first seed of every row."""
    from calibrant.report import Entry, write_report

    groups: dict[tuple[str, str], dict[str, Entry]] = {}
    for cell in study.finished():
        run = Run.open(study.folder(cell))
        place = (cell.recipe.data.name, cell.recipe.model.name)
        entry = Entry(cell.label, run.predictions("test"), run)
        groups.setdefault(place, {}).setdefault(cell.label, entry)
    pages = []
    for (data, model), entries in groups.items():
        name = "report.html" if len(groups) == 1 else f"report-{file_word(data)}-{file_word(model)}.html"
        title = f"{data}, {model}: what may each model decide alone?"
        pages.append(write_report(list(entries.values()), study.path / name, title=title))
    if len(groups) > 1:
        # Of the days when the study had one data set: what it shows is no longer all, and a page of its own shows it.
        (study.path / "report.html").unlink(missing_ok=True)
    return pages


def try_pages(study: Study) -> tuple[list[Path], str]:
    """The pages, or in their place one line on why there are none."""
    try:
        return write_pages(study), ""
    except InvalidInput as error:  # plotly or jinja2 is not installed
        return [], f"no report page: {error}"
