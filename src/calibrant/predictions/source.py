"""What all file formats have in common: blocks of rows, several files as one, and scores that stay on disk."""

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.predictions.checks import PRECISIONS, Precision, shortened
from calibrant.predictions.columns import Layout
from calibrant.predictions.rows import chunks

# Scores of one block: 4 MB of float64.
_BLOCK_CELLS = 2**19
# Real data unfolds to a few times its size; a file that unfolds to more than this was made to fill memory.
_MOST_UNFOLDED = 10
# A small file may hold zeros only. This many bytes do no harm, although metrics may need five times as many.
_HARMLESS = 2**26
_STORE_AGAIN = "If the data is really so, write it again without compression."


@dataclass(frozen=True)
class Wanted:
    """The columns to read.

    Attributes:
        target: Whether to read the targets.
        id: Whether to read the ids.
        extras: Names of other columns to read.
        scores: Whether to read the scores.
    """

    target: bool = False
    id: bool = False
    extras: Sequence[str] = ()
    scores: bool = True


@dataclass(frozen=True)
class RawBlock:
    """Some rows as a file has them.

    Attributes:
        rows: Number of rows.
        scores: Shape (rows, K), classes in the file's order; None if they were not wanted.
        target: Distinct targets and, for each row, the index of its target among them; None if not wanted.
        ids: One string or integer per row, or None.
        extras: Other columns by name.
    """

    rows: int
    scores: NDArray[Any] | None
    target: tuple[Sequence[Any], NDArray[Any]] | None = None
    ids: NDArray[Any] | None = None
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)


class PredictionSource:
    """A file of one format, or several. Each call of `read` opens it again.

    Attributes:
        where: The file, for messages.
        layout: The meaning of each column.
        class_names: One per class, or None.
        dtype: Type of the scores.
        precision: Precision of the scores; differs from `dtype` for bfloat16, which NumPy lacks.
        rows: Number of rows, or None if only reading the file shows it.
        typed: Whether columns have types; False if all of them are text.
        stored: Bytes of the file.
        unfolded: Bytes that the content takes in memory, as far as the file declares it.
    """

    where: str
    layout: Layout
    class_names: tuple[str, ...] | None
    dtype: np.dtype[Any]
    precision: Precision
    rows: int | None
    typed: bool
    stored: int
    unfolded: int

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """Yield the rows in order, block by block."""
        raise NotImplementedError

    def columns_beside_scores(self, wanted: Wanted) -> list[str]:
        """Return the names of the wanted columns that are not scores."""
        names = list(wanted.extras)
        if wanted.target and self.layout.target is not None:
            names.append(self.layout.target)
        if wanted.id and self.layout.id is not None:
            names.append(self.layout.id)
        return names

    def on_disk(self) -> "OnDisk | None":
        """Return the scores in the file itself, if they can be read there without unpacking."""
        return None

    def count(self) -> int:
        """Return the number of rows, and remember it in `rows`."""
        if self.rows is None:
            self.rows = sum(block.rows for block in self.read(Wanted(scores=False)))
        return self.rows


class Parts(PredictionSource):
    """Several files of one format, read one after the other. They have the same columns, in any order.

    Args:
        where: The folder or pattern, for messages.
        sources: The files. Scores get the widest type among them.
    """

    def __init__(self, where: str, sources: Sequence[PredictionSource]) -> None:
        first = sources[0]
        self.where = where
        self.sources = sources
        self.layout = first.layout
        self.class_names = first.class_names
        self.typed = first.typed
        self.rows = None
        if all(source.rows is not None for source in sources):
            self.count()
        self.dtype = np.result_type(*(source.dtype for source in sources))
        self.precision = PRECISIONS[self.dtype.itemsize]
        if all(source.precision == "bfloat16" for source in sources):
            self.precision = "bfloat16"
        for source in sources:
            source.dtype = self.dtype
            source.precision = self.precision
        self.stored = sum(source.stored for source in sources)
        self.unfolded = sum(source.unfolded for source in sources)
        check_unfolded(where, self.unfolded, self.stored, most=20)

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """Yield the rows of all files in order."""
        for source in self.sources:
            yield from source.read(wanted)

    def count(self) -> int:
        """Return the number of rows of all files, and remember it in `rows`."""
        self.rows = sum(source.count() for source in self.sources)
        return self.rows


def check_columns_there(where: str, there: Sequence[str], layout: Layout) -> None:
    """Refuse a later file of a folder that lacks a column of the first one."""
    own = [name for name in (layout.target, layout.id) if name is not None]
    for name in (*own, *layout.headings, *layout.extras):
        if name not in there:
            raise InvalidInput(f"{where}: column {name[:40]!r} is not there. There are: {shortened(there, 12)}.")


def check_unfolded(
    where: str, unfolded: int, stored: int, way_out: str = _STORE_AGAIN, *, most: int = _MOST_UNFOLDED
) -> None:
    """Refuse a file that would take far more memory than it has bytes, before anything is allocated.

    Args:
        where: The file, for the message.
        unfolded: Bytes that its content would take.
        stored: Bytes of the file.
        way_out: What the user can do.
        most: The largest allowed ratio of the two.
    """
    if unfolded > max(_HARMLESS, most * stored):
        rule = f"unfold to at most {most} times its size"
        raise invalid(where, rule, f"{unfolded / 2**20:,.0f} MB in a file of {stored / 2**20:,.2f} MB", way_out)


def block_rows(columns: int) -> int:
    """Return the number of rows of a block."""
    return max(1, _BLOCK_CELLS // columns)


def texts(values: Sequence[Any]) -> NDArray[Any]:
    """Put Python strings into an array of objects, in which no entry takes as much memory as the longest."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


class OnDisk:
    """An (n, K) array in a file. Indexing with a slice or with row numbers reads these rows.

    The file is read, not mapped: if another program cuts it off, a read fails with a message, whereas a mapped file
    would end the process. Pages of a mapped file would also count as memory of this process. The file may be closed or
    removed after the array was made.
    """

    def __init__(
        self,
        handle: IO[bytes],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        *,
        offset: int = 0,
        order: Literal["F", "C"] = "C",
        where: str = "a temporary file",
    ) -> None:
        self._file = os.fdopen(os.dup(handle.fileno()), "rb", buffering=0)
        self._lock = threading.Lock()  # several threads read, and the file has one position
        weakref.finalize(self, self._file.close)
        self.shape = shape
        self.dtype = dtype
        self._offset = offset
        self._order = order
        self._where = where

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            return self._read(start, max(start, stop))
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        order = np.argsort(rows, kind="stable")
        for part in chunks(*self.shape):
            first, last = np.searchsorted(rows, [part.start, part.stop], sorter=order)
            if first < last:
                chosen = order[first:last]
                result[chosen] = self._read(part.start, part.stop)[rows[chosen] - part.start]
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """Reach another process as a plain array."""
        return np.asarray, (self[:],)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        rows, columns = self.shape
        result = np.empty((stop - start, columns), self.dtype, order=self._order)
        if self._order == "C":
            self._fill(result, start * columns)
        else:
            for column in range(columns):
                self._fill(result[:, column], column * rows + start)
        return result

    def _fill(self, array: NDArray[Any], first: int) -> None:
        """Fill a contiguous array with the entries of the file from number `first` on."""
        content = array.reshape(-1).view(np.uint8)
        place = self._offset + first * self.dtype.itemsize
        while content.size:
            try:
                with self._lock:
                    self._file.seek(place)
                    count = self._file.readinto(content.data)
            except OSError as error:
                raise InvalidInput(f"{self._where} cannot be read: {error.strerror or error}.") from error
            if not count:
                raise InvalidInput(f"{self._where} was cut off while it was read. Write it again, then start again.")
            content = content[count:]
            place += count


def spool(blocks: Iterable[NDArray[Any]], columns: int, dtype: np.dtype[Any]) -> OnDisk:
    """Write blocks of rows to a temporary file, which is removed with the array or when the process ends."""
    rows = 0
    with TemporaryFile(prefix="calibrant-") as handle:
        for block in blocks:
            rows += len(block)
            handle.write(np.ascontiguousarray(block, dtype).data)
        handle.flush()
        return OnDisk(handle, (rows, columns), dtype)
