"""Tables for people: one `Table` for the prompt, a notebook, a terminal, Markdown and LaTeX."""

import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from itertools import chain, zip_longest
from typing import Any

from calibrant.errors import one_line, printable

FEW = 20
"""Up to this many classes are listed one by one; further ones are counted."""
_NARROWEST_TERMINAL = 60
_WIDTH_OF_A_FILE = 160
UNLIMITED = 10_000
"""Width for names and paths that are not folded: people want to copy them."""
_WIDEST_HEADING = 30
_NUMBER_STARTS = tuple("0123456789+-")
_LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "|": "$|$",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
}
# pdfLaTeX accepts Greek letters only in formulas. Unicode spells one of them "lamda".
for _name in ("ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON", "KAPPA", "LAMDA", "MU", "SIGMA", "TAU"):
    _LATEX[unicodedata.lookup(f"GREEK SMALL LETTER {_name}")] = rf"$\{_name.lower().replace('lamda', 'lambda')}$"


@dataclass(frozen=True, repr=False)
class Table:
    """A table of text. The first cell of a row names the row.

    The same table renders as `text` (at the prompt), `html` (in a notebook), `terminal`, `markdown` and `latex`.

    Attributes:
        title: One line above the table.
        rows: The cells of each row.
        columns: One heading per column. Leave it out for rows of a name and a value.
        caption: Text below the table.
        best: For each column, the numbers of the rows that hold its best value. Empty: nothing is marked.

    >>> print(Table("two cases", (("right", 1), ("<wrong>", 1))).text())
    two cases
      right    1
      <wrong>  1
    >>> Table("a & b", (("<i>", 1),)).html()
    '<table><caption>a &amp; b</caption><tbody><tr><th>&lt;i&gt;</th><td>1</td></tr></tbody></table>'
    >>> print(Table("", (("nll", "1.20"), ("flsd", "0.90")), ("method", "ECE"), best=((), (1,))).markdown())
    | method | ECE |
    |---|---:|
    | nll | 1.20 |
    | flsd | **0.90** |
    <BLANKLINE>
    """

    title: str
    rows: Sequence[Sequence[object]] = ()
    columns: Sequence[str] = ()
    caption: str = ""
    best: Sequence[Sequence[int] | frozenset[int]] = ()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def is_text(self, column: int) -> bool:
        """Whether a column holds words. Words are aligned to the left, numbers to the right."""
        return not all(str(row[column]).startswith(_NUMBER_STARTS) for row in self.rows)

    def is_best(self, row: int, column: int) -> bool:
        """Whether a cell holds the best value of its column."""
        return bool(self.best) and row in self.best[column]

    def text(self) -> str:
        """Aligned lines for the prompt, without the caption."""
        lines = [[one_line(cell) for cell in row] for row in self.rows]
        if self.columns:
            lines.insert(0, [one_line(column) for column in self.columns])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        made = [one_line(self.title)]
        for name, *values in lines:
            cells = [name.ljust(widths[0])]
            for value, width in zip(values, widths[1:], strict=True):
                if self.columns:
                    value = value.rjust(width)  # noqa: PLW2901
                cells.append(value.ljust(width))
            made.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(made)

    def html(self) -> str:
        """An HTML table for a notebook, without the caption. Every text is escaped."""
        head = ""
        if self.columns:
            cells = "".join(f"<th>{escaped(column)}</th>" for column in self.columns)
            head = f"<thead><tr>{cells}</tr></thead>"
        body = ""
        for name, *values in self.rows:
            cells = "".join(f"<td>{escaped(value)}</td>" for value in values)
            body += f"<tr><th>{escaped(name)}</th>{cells}</tr>"
        return f"<table><caption>{escaped(self.title)}</caption>{head}<tbody>{body}</tbody></table>"

    def terminal(self, *, width: int | None = None) -> str:
        """Text with aligned columns for a terminal. The best value of a column has a star.

        Numbers are never cut. Long words are broken. Columns that do not fit follow below, with the names repeated.

        Args:
            width: Columns of the terminal. None: those of the current terminal, or 160 for a pipe or a file.
        """
        from rich.cells import cell_len

        available = max(width or shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns, _NARROWEST_TERMINAL)
        for name, text in ((available, available), (available // 3, available // 2)):  # long texts may not fit
            columns = [self._folded(0, name), *(self._folded(i, text) for i in range(1, len(self.columns)))]
            widths = [max(cell_len(line) for cell in column for line in cell) for column in columns]
            if sum(widths) + 3 * len(widths) < available:
                break
        groups: list[list[int]] = []
        for index in range(1, len(columns)):
            if not groups or sum(widths[i] + 3 for i in groups[-1]) + widths[index] + 4 > available:
                groups.append([0])
            groups[-1].append(index)
        lines = []
        for group in groups:
            heading, *body = [self._aligned(columns, widths, group, row) for row in range(len(self.rows) + 1)]
            lines += ["", *heading, " " + "─" * (sum(widths[i] + 3 for i in group) - 1), *chain.from_iterable(body)]
        del lines[0]
        if self.title:
            lines = [self.title, "", *lines]
        if self.caption:
            longest = max(map(cell_len, lines[1:]))
            lines += ["", textwrap.fill(self.caption, max(_NARROWEST_TERMINAL, longest))]
        return "\n".join(lines)

    def _folded(self, column: int, most: int) -> list[list[str]]:
        """The lines of the heading of a column and of each of its cells. Numbers are never folded."""
        if column and not self.is_text(column):
            most = UNLIMITED
        cells = [textwrap.wrap(printable(self.columns[column]), min(most, _WIDEST_HEADING)) or [""]]
        for number, row in enumerate(self.rows):
            cells.append(textwrap.wrap(printable(str(row[column])) + "*" * self.is_best(number, column), most) or [""])
        return cells

    def _aligned(self, columns: list[list[list[str]]], widths: list[int], group: list[int], row: int) -> Iterator[str]:
        """Yield the lines of one row in some columns. Row 0 has the headings."""
        from rich.cells import cell_len

        cells = [columns[index][row] for index in group]
        if row == 0:  # short headings stand just above the line
            most = max(map(len, cells))
            cells = [[""] * (most - len(cell)) + cell for cell in cells]
        for parts in zip_longest(*cells, fillvalue=""):
            line = " "
            for index, part in zip(group, parts, strict=True):
                padding = " " * (widths[index] - cell_len(part))
                if index == 0 or self.is_text(index):
                    line += f" {part}{padding}  "
                else:
                    line += f" {padding}{part}  "
            yield line.rstrip()

    def markdown(self, *, level: int = 3) -> str:
        """A Markdown table under a heading of this level. The best values are bold."""
        lines = []
        if self.title:
            lines = [f"{'#' * level} {self.title}", ""]
        rules = ["---" if self.is_text(index) else "---:" for index in range(len(self.columns))]
        lines.append("| " + " | ".join(map(_markdown, self.columns)) + " |")
        lines.append("|" + "|".join(rules) + "|")
        lines += ["| " + " | ".join(cells) + " |" for cells in self._marked(_markdown, "**{}**")]
        if self.caption:
            lines += ["", self.caption]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """LaTeX for a paper. It needs the packages booktabs and longtable, which breaks a long table over pages."""
        alignment = "".join("l" if self.is_text(index) else "r" for index in range(len(self.columns)))
        lines = [
            r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{alignment}}}",
            rf"\caption{{{_latex(self.title)}. {_latex(self.caption)}}} \\",
            r"\toprule",
            " & ".join(map(_latex, self.columns)) + r" \\",
            r"\midrule",
            r"\endhead",
        ]
        lines += [" & ".join(cells) + r" \\" for cells in self._marked(_latex, r"\textbf{{{}}}")]
        return "\n".join([*lines, r"\bottomrule", r"\end{longtable}", r"\endgroup"]) + "\n"

    def _marked(self, escape: Callable[[str], str], best: str) -> Iterator[list[str]]:
        for number, row in enumerate(self.rows):
            cells = [escape(str(cell)) for cell in row]
            yield [best.format(cell) if self.is_best(number, column) else cell for column, cell in enumerate(cells)]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def escaped(cell: object) -> str:
    """A cell as HTML text: no tags, no control characters."""
    return escape(printable(str(cell)))


def _markdown(text: str) -> str:
    # Names come from the user's file: nothing in them may end a cell or begin a tag.
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _latex(text: str) -> str:
    made = "".join(_LATEX.get(character, character) for character in text)
    for size in ("95", "99"):
        made = made.replace(f"$|$S{size}$|$", f"$|S_{{{size}}}|$").replace(f"(S{size})", f"($S_{{{size}}}$)")
    return made.replace("±", r"$\pm$")


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """Any table as plain text."""
    return Table(title, rows, headings).terminal(width=UNLIMITED)


class Displayed:
    """Base of a class that defines in `_overview` what a notebook shows, and in `_summary` what the prompt shows.

    A dataclass that inherits from it needs `repr=False`.
    """

    def _overview(self) -> Table:
        raise NotImplementedError

    def _summary(self) -> Table:
        return self._overview()

    def __repr__(self) -> str:
        return self._named(self._summary()).text()

    def _repr_html_(self) -> str:
        return self._named(self._overview()).html()

    def _named(self, overview: Table) -> Table:
        return replace(overview, title=f"{type(self).__name__}: {overview.title}")


class ShownFields:
    """Base of a small dataclass: a notebook shows a table of its fields, the prompt the usual text of a dataclass."""

    def _repr_html_(self) -> str:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]  # subclasses are dataclasses
        rows = [(name.replace("_", " "), short(getattr(self, name))) for name in names]
        return Table(type(self).__name__, rows).html()


def short(value: Any) -> str:
    """Return the text of a cell: numbers and texts as they are, the type and size of larger values."""
    if hasattr(value, "shape"):
        return f"array of shape {tuple(value.shape)}"
    if is_dataclass(value):
        return type(value).__name__
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple | dict) and len(value) > FEW:
        return f"{len(value):,} values"
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value)) or "-"
    return "-" if value is None else str(value)
