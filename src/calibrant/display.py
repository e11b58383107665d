"""Show results in a notebook and at the prompt as one small table. All text in HTML is escaped."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from typing import Any

from calibrant.errors import one_line, printable

FEW = 20
"""Up to this many classes are listed one by one; further ones are counted."""


@dataclass(frozen=True)
class Overview:
    """A small table.

    Attributes:
        title: One line above the rows.
        rows: Cells of each row; the first one is the name of the row.
        headings: One per column; empty for rows of a name and a value.

    >>> print(Overview("two cases", (("right", 1), ("<wrong>", 1))).text())
    two cases
      right    1
      <wrong>  1
    >>> Overview("a & b", (("<i>", 1),)).html()
    '<table><caption>a &amp; b</caption><tbody><tr><th>&lt;i&gt;</th><td>1</td></tr></tbody></table>'
    """

    title: str
    rows: Sequence[Sequence[object]] = ()
    headings: Sequence[str] = ()

    def text(self) -> str:
        """Return aligned lines: names to the left; values to the right if there are headings."""
        lines_of_cells = [self.headings, *self.rows] if self.headings else self.rows
        table = [[one_line(cell) for cell in cells] for cells in lines_of_cells]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [one_line(self.title)]
        for name, *values in table:
            cells = [name.ljust(widths[0])]
            for value, width in zip(values, widths[1:], strict=True):
                cells.append(value.rjust(width) if self.headings else value.ljust(width))
            lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """Return a table in HTML; text that looks like HTML stays text."""
        head = "".join(f"<th>{_escaped(heading)}</th>" for heading in self.headings)
        if head:
            head = f"<thead><tr>{head}</tr></thead>"
        body = ""
        for name, *values in self.rows:
            cells = "".join(f"<td>{_escaped(value)}</td>" for value in values)
            body += f"<tr><th>{_escaped(name)}</th>{cells}</tr>"
        return f"<table><caption>{_escaped(self.title)}</caption>{head}<tbody>{body}</tbody></table>"


class Displayed:
    """Base of a class that defines in `_overview` what a notebook shows, and in `_summary` what the prompt shows.

    A dataclass that inherits from it needs `repr=False`.
    """

    def _overview(self) -> Overview:
        raise NotImplementedError

    def _summary(self) -> Overview:
        return self._overview()

    def __repr__(self) -> str:
        return self._named(self._summary()).text()

    def _repr_html_(self) -> str:
        return self._named(self._overview()).html()

    def _named(self, overview: Overview) -> Overview:
        return replace(overview, title=f"{type(self).__name__}: {overview.title}")


class ShownFields:
    """Base of a small dataclass: a notebook shows a table of its fields, the prompt the usual text of a dataclass."""

    def _repr_html_(self) -> str:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]  # subclasses are dataclasses
        rows = [(name.replace("_", " "), _short(getattr(self, name))) for name in names]
        return Overview(type(self).__name__, rows).html()


def preformatted(text: str) -> str:
    """Return HTML for text whose lines are aligned already."""
    return f"<pre>{_escaped(text)}</pre>"


def _short(value: Any) -> str:
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
        return ", ".join(map(_short, value)) or "-"
    return "-" if value is None else str(value)


def _escaped(cell: object) -> str:
    return escape(printable(str(cell)))
