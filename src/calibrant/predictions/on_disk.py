"""Scores that stay in a file until they are needed."""

import os
import threading
import weakref
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput
from calibrant.predictions.rows import chunks


class OnDisk:
    """An (n, K) array in a file, which may be closed or removed; a slice or row numbers as index read these rows.

    It is read, not mapped: where somebody else cuts the file short, a read fails with one line, whereas touching a
    mapped file would end the process. Pages of a mapped file would also count as memory of this process.
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
        self.shape, self.dtype, self._offset, self._order, self._where = shape, dtype, offset, order, where

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            return self._read(start, max(start, stop))
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        order = np.argsort(rows, kind="stable")
        for part in chunks(*self.shape):
            first, last = np.searchsorted(rows, [part.start, part.stop], sorter=order)
            if first < last:
                found[order[first:last]] = self._read(part.start, part.stop)[rows[order[first:last]] - part.start]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as a plain array."""
        return np.asarray, (self[:],)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        rows, columns = self.shape
        found = np.empty((stop - start, columns), self.dtype, order=self._order)
        if self._order == "C":
            self._fill(found, start * columns)
        else:
            for column in range(columns):
                self._fill(found[:, column], column * rows + start)
        return found

    def _fill(self, room: NDArray[Any], first: int) -> None:
        """Fill a contiguous array with the entries of the file from number `first` on."""
        content, place = room.reshape(-1).view(np.uint8), self._offset + first * self.dtype.itemsize
        while content.size:
            try:
                with self._lock:
                    self._file.seek(place)
                    count = self._file.readinto(content.data)
            except OSError as error:
                raise InvalidInput(f"{self._where} cannot be read: {error.strerror or error}.") from error
            if not count:
                raise InvalidInput(f"{self._where} was cut off while it was read. Write it again, then start again.")
            content, place = content[count:], place + count


def spool(blocks: Iterable[NDArray[Any]], columns: int, dtype: np.dtype[Any]) -> OnDisk:
    """Write blocks of rows to a temporary file that vanishes with the array, or with the process."""
    rows = 0
    with TemporaryFile(prefix="calibrant-") as handle:
        for block in blocks:
            rows += len(block)
            handle.write(np.ascontiguousarray(block, dtype).data)
        handle.flush()
        return OnDisk(handle, (rows, columns), dtype)
