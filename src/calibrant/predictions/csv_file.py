"""Predictions as CSV. The csv module decides what is right; pyarrow, where it is installed, reads most files faster."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, invalid
from calibrant.files import atomic_write
from calibrant.predictions.checks import Precision
from calibrant.predictions.class_order import names_or_numbers
from calibrant.predictions.columns import layout
from calibrant.predictions.on_disk import OnDisk
from calibrant.predictions.rows import chunks
from calibrant.predictions.source import RawBlock, Wanted, block_rows, encode, texts

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

# Characters of a line: room for a hundred thousand classes. A line of commas takes fifty times as much memory.
_LONGEST_LINE = 2**22
_CHUNK_BYTES = 2**23
# A quote in the middle of a cell, which the two parsers read differently.
_ODD_QUOTE = re.compile(rb'[^,\n"]"[^,\r\n"]')


class CsvSource:
    """One CSV file in UTF-8; scores become float64, everything else stays text."""

    dtype = np.dtype(np.float64)
    precision: Precision = "float64"
    rows: int | None = None
    typed = False

    def __init__(self, path: Path, kind: Kind | None, columns: Mapping[str, str]) -> None:
        self.where, self._path = str(path), path
        self._header = next(csv_records(self._path, self.where), [])
        self.layout = layout(self.where, self._header, kind, columns)
        names = self.layout.names
        self.class_names = None if names == tuple(map(str, range(len(names)))) else names

    def on_disk(self) -> OnDisk | None:
        """Nothing: text is unpacked first."""
        return None

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """The rows in order: as pyarrow reads them, and from the first block that it cannot read, as csv does."""
        done = 0
        try:
            for block in self._read_fast(wanted):
                yield block
                done += block.rows
        except _Unreadable:
            yield from self._read_slowly(wanted, skip=done)

    def _read_slowly(self, wanted: Wanted, skip: int) -> Iterator[RawBlock]:
        records = csv_records(self._path, self.where)
        for _ in range(1 + skip):
            next(records)
        start = skip
        for block in _groups(records, block_rows(len(self._header))):
            yield self._slow_block(block, start, wanted)
            start += len(block)

    def _slow_block(self, records: list[list[str]], start: int, wanted: Wanted) -> RawBlock:
        place = {name: index for index, name in enumerate(self._header)}

        def column(name: str) -> list[str]:
            return [record[place[name]] for record in records]

        at = [place[heading] for heading in self.layout.headings]
        found = self.layout
        return RawBlock(
            len(records),
            self._floats([[record[index] for index in at] for record in records], start) if wanted.scores else None,
            encode(column(found.target)) if wanted.target and found.target is not None else None,
            texts(column(found.id)) if wanted.id and found.id is not None else None,
            {name: texts(column(name)) for name in wanted.extras},
        )

    def _floats(self, cells: list[list[str]], start: int) -> NDArray[np.float64]:
        """Cells as numbers; the first that is none is named by its row in the file and its column."""
        try:
            return np.asarray(cells, dtype=np.float64)
        except ValueError:
            for row, values in enumerate(cells, start=start):
                for heading, cell in zip(self.layout.headings, values, strict=True):
                    try:
                        float(cell)
                    except ValueError as error:
                        found = f"{cell[:40]!r} in row {row}, column {heading[:40]}"
                        raise invalid(f"{self.where}: scores", "be numbers", found) from error
            raise

    def _read_fast(self, wanted: Wanted) -> Iterator[RawBlock]:
        try:
            import pyarrow as pa
            from pyarrow import csv as arrow_csv
        except ImportError as error:
            raise _Unreadable from error
        found = self.layout
        target = found.target if wanted.target else None
        own = [name for name in (target, found.id if wanted.id else None, *wanted.extras) if name is not None]
        scores = found.headings if wanted.scores else ()
        types = {**dict.fromkeys(scores, pa.float64()), **dict.fromkeys(own, pa.string())}
        # No cell is "missing": csv has no such thing, and refuses an empty cell as a number.
        convert = arrow_csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[])
        read = arrow_csv.ReadOptions(column_names=self._header)
        parse = {quoted: arrow_csv.ParseOptions(newlines_in_values=quoted) for quoted in (False, True)}
        for chunk in self._chunks():
            try:
                table = arrow_csv.read_csv(pa.py_buffer(chunk), read, parse[b'"' in chunk], convert)
            except pa.ArrowException as error:
                raise _Unreadable from error
            yield _arrow_block(table, scores, target, found.id if wanted.id else None, wanted.extras)

    def _chunks(self) -> Iterator[bytes]:
        """The file after its header in pieces of whole lines."""
        with self._path.open("rb") as handle:
            _skip_header(handle)
            rest = b""
            while data := handle.read(_CHUNK_BYTES):
                data = rest + data
                cut = _whole_lines(data)
                if cut:
                    yield data[:cut]
                rest = data[cut:]
            if rest.strip(b"\r\n"):
                _whole_lines(rest + b"\n")
                yield rest


class _Unreadable(Exception):
    """Something that pyarrow cannot read, or reads in another way than the csv module."""


def csv_records(path: Path, where: str) -> Iterator[list[str]]:
    """The cells of each line that has some; the first are the header, and all have as many."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(_lines(handle), strict=True)
            width = None
            for record in reader:
                width = width or len(record)
                if record and len(record) != width:
                    raise invalid(f"{where}: line {reader.line_num}", f"have {width} cells", f"{len(record)}")
                if record:
                    yield record
    except FileNotFoundError as error:
        raise InvalidInput(f"{where} does not exist.") from error
    except UnicodeDecodeError as error:
        way_out = "Save the table again as UTF-8; Excel calls that CSV UTF-8."
        raise invalid(where, "be a CSV file in UTF-8", f"something else ({error})", way_out) from error
    except csv.Error as error:
        raise invalid(where, "be a CSV file in UTF-8", f"something else ({error})") from error


def _lines(handle: IO[str]) -> Iterator[str]:
    while line := handle.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error(f"a line of more than {_LONGEST_LINE} characters")
        yield line


def _groups(records: Iterator[list[str]], most: int) -> Iterator[list[list[str]]]:
    """Some records at a time: at most so many, and fewer where their text is long."""
    group: list[list[str]] = []
    size = 0
    for record in records:
        group.append(record)
        size += sum(map(len, record))
        if len(group) == most or size > _CHUNK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _skip_header(handle: IO[bytes]) -> None:
    """Go to where the second record begins; in a file with old line ends that is not to be seen."""
    lines = iter(lambda: handle.readline(_LONGEST_LINE), b"")
    try:
        next(record for record in csv.reader((line.decode("utf-8-sig") for line in lines), strict=True) if record)
    except csv.Error as error:
        raise _Unreadable from error


def _whole_lines(data: bytes) -> int:
    """How many bytes are whole records: up to the last line end that is not inside quotes."""
    cut = data.rfind(b"\n") + 1
    if b'"' in data:
        if _ODD_QUOTE.search(data):
            raise _Unreadable
        signs = np.frombuffer(data, np.uint8)
        ends, quotes = np.flatnonzero(signs == ord("\n")), np.flatnonzero(signs == ord('"'))
        outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
        cut = int(outside[-1]) + 1 if outside.size else 0
    if len(data) - cut > _LONGEST_LINE:
        raise _Unreadable
    return cut


def _arrow_block(
    table: Any, scores: Sequence[str], target: str | None, own_id: str | None, extras: Sequence[str]
) -> RawBlock:
    numbers = None
    if scores:
        numbers = np.empty((table.num_rows, len(scores)))
        for index, heading in enumerate(scores):
            numbers[:, index] = table.column(heading).to_numpy()
    return RawBlock(
        table.num_rows,
        numbers,
        None if target is None else _encoded(table.column(target)),
        None if own_id is None else table.column(own_id).to_numpy(),
        {name: _shared(table.column(name)) for name in extras},
    )


def _encoded(column: Any) -> tuple[list[Any], NDArray[Any]]:
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _shared(column: Any) -> NDArray[Any]:
    """Python strings; equal ones are one object, so that a column of groups takes eight bytes per row."""
    values, places = _encoded(column)
    shared: NDArray[Any] = texts(values)[places]
    return shared


def write_csv(predictions: "Predictions", path: str | Path) -> None:
    """Write the shortest decimals that give the same numbers back."""
    names = names_or_numbers(predictions.class_names, predictions.n_classes)
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(header_of(predictions, names))
        for part in chunks(len(predictions), predictions.n_classes):
            columns: list[Any] = [] if predictions.ids is None else [predictions.ids[part].tolist()]
            columns.append([names[target] for target in predictions.targets[part].tolist()])
            columns += predictions.read_scores(part).astype(np.str_).T.tolist()
            columns += [column[part].tolist() for column in predictions.extras.values()]
            writer.writerows(zip(*columns, strict=True))


def header_of(predictions: "Predictions", names: tuple[str, ...]) -> list[str]:
    """The columns of a table of predictions."""
    prefix = "logit_" if predictions.kind == "logits" else "probability_"
    own = [] if predictions.ids is None else ["id"]
    return [*own, "target", *(f"{prefix}{name}" for name in names), *predictions.extras]
