"""Show results in a notebook and at the prompt as one small table. All text in HTML is escaped."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from calibrant.tables import Table, escaped

Overview = Table
"""What is shown of an object."""

FEW = 20
"""Up to this many classes are listed one by one; further ones are counted."""


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
    return f"<pre>{escaped(text)}</pre>"


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
