"""What the formats of prediction files have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrant.predictions.checks import Precision
from calibrant.predictions.columns import Layout
from calibrant.predictions.on_disk import OnDisk

# Scores held at once: 4 MB of float64.
_BLOCK_CELLS = 2**19


@dataclass(frozen=True)
class Wanted:
    """Which columns are read beside the scores.

    Attributes:
        target: Whether the targets are.
        id: Whether the ids are.
        extras: Names of other columns.
        scores: Whether the scores themselves are.
    """

    target: bool = False
    id: bool = False
    extras: Sequence[str] = ()
    scores: bool = True


@dataclass(frozen=True)
class RawBlock:
    """Some rows as a file has them.

    Attributes:
        rows: How many.
        scores: Shape (rows, K), classes in the file's order; None where they are not wanted.
        target: Distinct targets and, for each row, the place of its target among them; None where not wanted.
        ids: One string or integer per row, or None.
        extras: Other columns by name.
    """

    rows: int
    scores: NDArray[Any] | None
    target: tuple[Sequence[Any], NDArray[Any]] | None = None
    ids: NDArray[Any] | None = None
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)


class PredictionSource(Protocol):
    """A file, or several, of one format; opened anew for each pass over the rows.

    Attributes:
        where: The file, for messages.
        layout: Which column is what.
        class_names: One per class, or None.
        dtype: Type of the scores.
        precision: The same, where NumPy has no such type the one that it stands for.
        rows: Number of rows, or None where only reading tells it.
        typed: Whether columns have types of their own, or are all text.
    """

    where: str
    layout: Layout
    class_names: tuple[str, ...] | None
    dtype: np.dtype[Any]
    precision: Precision
    rows: int | None
    typed: bool

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """The rows in order, block by block."""

    def on_disk(self) -> OnDisk | None:
        """The scores where they lie, if they can be read there without unpacking."""


def block_rows(columns: int) -> int:
    """Rows of a block."""
    return max(1, _BLOCK_CELLS // columns)


def encode(values: list[Any]) -> tuple[list[Any], NDArray[Any]]:
    """Distinct values in the order in which they come, and the place of each value among them."""
    places: dict[Any, int] = {}
    codes = np.asarray([places.setdefault(value, len(places)) for value in values], dtype=np.int64)
    return list(places), codes


def texts(values: Sequence[Any]) -> NDArray[Any]:
    """Python strings in an array; no entry takes the room of the longest."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
