"""How results show themselves in a notebook and at the prompt: one small table, every text in it escaped."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from typing import Any

from calibrant.errors import one_line, printable

FEW = 20
"""So many classes are listed one by one; the others are counted."""


@dataclass(frozen=True)
class Overview:
    """What is shown of an object.

    Attributes:
        title: One line above the rows.
        rows: Cells of each row; the first one names the row.
        headings: One for each column; none for rows of a name and a value.

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
        """Aligned lines: names to the left, the columns of a table with headings to the right."""
        table = [[one_line(cell) for cell in row] for row in ([self.headings] if self.headings else []) + [*self.rows]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [one_line(self.title)]
        for name, *values in table:
            cells = [name.ljust(widths[0])]
            for value, width in zip(values, widths[1:], strict=True):
                cells.append(value.rjust(width) if self.headings else value.ljust(width))
            lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """A table in HTML; text that looks like HTML stays text."""
        head = "".join(f"<th>{_escaped(each)}</th>" for each in self.headings)
        body = "".join(
            f"<tr><th>{_escaped(name)}</th>{''.join(f'<td>{_escaped(each)}</td>' for each in values)}</tr>"
            for name, *values in self.rows
        )
        heading = f"<thead><tr>{head}</tr></thead>" if head else ""
        return f"<table><caption>{_escaped(self.title)}</caption>{heading}<tbody>{body}</tbody></table>"


class Displayed:
    """Base of a class that says in `_overview` what a notebook shows of it, and in `_summary` what the prompt shows.

    A dataclass below it needs `repr=False`.
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
    """Base of a small dataclass: a notebook shows a table of its fields. The prompt shows what dataclasses show."""

    def _repr_html_(self) -> str:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]  # every class below is a dataclass
        rows = [(name.replace("_", " "), _short(getattr(self, name))) for name in names]
        return Overview(type(self).__name__, rows).html()


def preformatted(text: str) -> str:
    """HTML for text whose lines are aligned already."""
    return f"<pre>{_escaped(text)}</pre>"


def _short(value: Any) -> str:
    """One cell: numbers and texts as they are, of larger parts what they are and their size."""
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
