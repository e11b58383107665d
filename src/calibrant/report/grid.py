"""Tables of text: for a terminal, as Markdown, as LaTeX."""

import io
import shutil
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.display import Displayed, Overview

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "|": r"$|$",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
}
# pdfLaTeX knows Greek letters, such as a setting's name in a row's, only in formulas. Unicode spells this one `lamda`.
_LATEX |= {
    unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"$\{name.lower().replace('lamda', 'lambda')}$"
    for name in ("ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON", "KAPPA", "LAMDA", "MU", "SIGMA", "TAU")
}

_NUMBER = tuple("0123456789+-")


@dataclass(frozen=True, repr=False)
class Grid(Displayed):
    """A table of text: the first column names the row; `best` are the rows to set in bold, by column."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[frozenset[int], ...] = ()

    def _overview(self) -> Overview:
        return Overview(self.title, self.rows, self.columns)

    def is_text(self, column: int) -> bool:
        """Whether a column holds words, which are set to the left; numbers, and gaps among them, to the right."""
        return not all(row[column].startswith(_NUMBER) for row in self.rows)

    def is_best(self, row: int, column: int) -> bool:
        """Whether the cell holds the best value of its column."""
        return bool(self.best) and row in self.best[column]


def to_terminal(grid: Grid, *, width: int | None = None) -> str:
    """Text with aligned columns; the best of a column carries a star.

    A number is never cut: words are broken instead, and columns that do not fit follow below, under the same names.

    Args:
        grid: The table.
        width: Columns of the terminal; by default its own, 160 for a pipe or a file.
    """
    room = max(width or shutil.get_terminal_size((160, 24)).columns, _NARROWEST)
    out = io.StringIO()
    console = Console(file=out, width=room, color_system=None, highlight=False, markup=False)
    for part in _fitting(grid, room):
        console.print(_rich_table(grid, part, room))
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    if not lines[0]:  # the box begins with a blank line
        del lines[0]
    caption = textwrap.fill(grid.caption, max(_NARROWEST, *(cell_len(line) for line in lines)))
    return "\n".join([*([grid.title, ""] if grid.title else []), *lines, *(["", caption] if caption else [])])


_NARROWEST = 60


def _fitting(grid: Grid, room: int) -> list[list[int]]:
    """The columns after the first in groups, each of which fits beside the first."""
    parts: list[list[int]] = [[]]
    used = first = min(_width(grid, 0), room // 3) + 4
    for index in range(1, len(grid.columns)):
        # Two blanks around a cell and one between cells. Words can be broken, so they need not have all they ask for.
        needs = min(_width(grid, index), room // 3 if grid.is_text(index) else room) + 3
        if parts[-1] and used + needs > room:
            parts.append([])
            used = first
        parts[-1].append(index)
        used += needs
    return parts


def _width(grid: Grid, column: int) -> int:
    cells = [row[column] + ("*" if grid.is_best(number, column) else "") for number, row in enumerate(grid.rows)]
    return max(cell_len(text) for text in (grid.columns[column], *cells))


def _rich_table(grid: Grid, columns: Sequence[int], room: int) -> Table:
    table = Table(box=box.SIMPLE)
    for index in (0, *columns):
        if index and not grid.is_text(index):
            table.add_column(Text(grid.columns[index]), justify="right", no_wrap=True, min_width=_width(grid, index))
        else:
            table.add_column(Text(grid.columns[index]), overflow="fold", max_width=None if index else max(room // 3, 1))
    for number, row in enumerate(grid.rows):
        table.add_row(*(Text(row[index] + ("*" if grid.is_best(number, index) else "")) for index in (0, *columns)))
    return table


def to_markdown(grid: Grid, *, level: int = 3) -> str:
    """A Markdown table under its title, the best of a column in bold."""
    lines = [f"{'#' * level} {grid.title}", ""] if grid.title else []
    lines.append("| " + " | ".join(_markdown(column) for column in grid.columns) + " |")
    lines.append("|" + "|".join("---" if grid.is_text(index) else "---:" for index in range(len(grid.columns))) + "|")
    for number, row in enumerate(grid.rows):
        cells = [_markdown(cell) for cell in row]
        cells = [f"**{cell}**" if grid.is_best(number, column) else cell for column, cell in enumerate(cells)]
        lines.append("| " + " | ".join(cells) + " |")
    if grid.caption:
        lines += ["", grid.caption]
    return "\n".join(lines) + "\n"


def to_latex(grid: Grid) -> str:
    """Tables for a paper, one or, where the rows do not fit on a page, several; needs the package booktabs."""
    starts = range(0, max(len(grid.rows), 1), _ROWS_ON_A_PAGE)
    return "\n".join(_latex_table(grid, range(start, min(start + _ROWS_ON_A_PAGE, len(grid.rows)))) for start in starts)


_ROWS_ON_A_PAGE = 45  # five methods in the table of differences


def _latex_table(grid: Grid, numbers: range) -> str:
    caption = f"{_latex(grid.title)}. {_latex(grid.caption)}" if numbers.start == 0 else rf"{_latex(grid.title)}, cont."
    lines = [
        r"\begin{table}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('l' if grid.is_text(index) else 'r' for index in range(len(grid.columns)))}}}",
        r"\toprule",
        " & ".join(_latex(column) for column in grid.columns) + r" \\",
        r"\midrule",
    ]
    for number in numbers:
        cells = [_latex(cell) for cell in grid.rows[number]]
        cells = [rf"\textbf{{{cell}}}" if grid.is_best(number, column) else cell for column, cell in enumerate(cells)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _markdown(text: str) -> str:
    # Names come from the user's file: nothing in them may end a cell or begin a tag.
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    for size in ("95", "99"):
        escaped = escaped.replace(f"$|$S{size}$|$", f"$|S_{{{size}}}|$").replace(f"(S{size})", f"($S_{{{size}}}$)")
    return escaped.replace("±", r"$\pm$")
