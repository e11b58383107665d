"""How results show themselves in a notebook and at the prompt: one small table, every text in it escaped."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from calibrant.tables import Table, escaped

Overview = Table
"""What is shown of an object."""

FEW = 20
"""So many classes are listed one by one; the others are counted."""


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
    return f"<pre>{escaped(text)}</pre>"


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
