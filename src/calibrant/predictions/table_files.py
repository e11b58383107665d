"""CSV and Parquet files, read in blocks and written by pyarrow."""

import codecs
import csv
import io
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as arrow_compute
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from calibrant.errors import CalibrantWarning, InvalidInput, invalid, one_line
from calibrant.files import parse_json, reading
from calibrant.predictions.columns import (
    PredictionSource,
    RawBlock,
    block_rows,
    check_columns_there,
    check_unfolded,
)
from calibrant.predictions.readings import Request, TableReading, first_repeated, shortened
from calibrant.predictions.rows import (
    SUM_TOLERANCE,
    both_classes,
    decimals_of,
    refuse_scores,
    sums_beyond,
    tolerance_of_decimals,
)

# Bytes of CSV that are read at once, and therefore the longest row.
_CSV_BYTES = 2**22
# pyarrow takes 4 KB of memory for each column of a CSV file.
_MOST_COLUMNS = 2**16
# Columns of rounded numbers take a byte or less per number: about thirteen times less than in memory.
_MOST_UNFOLDED = 20
# Columns of few different values take far less than a byte per value.
_MOST_UNFOLDED_TABLE = 100
_JSON_ROWS = 2**14
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
# A Python value and the reference to it.
_BYTES_OF_A_VALUE = 64

_UTF8 = "Save the table again as UTF-8; Excel calls that CSV UTF-8."
# Messages of pyarrow. Rows are counted from 1, with the header, without empty lines.
_BAD_CELL = re.compile(
    r"In CSV column #(\d+): Row #(\d+): CSV conversion error to double: invalid value '(.*)'", re.DOTALL
)
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")
_SEPARATORS = (",", "\t", ";", "|")
_SAMPLE = 2**16  # characters that show whether decimals have commas
# A cell with a decimal comma, or with a decimal point, between any two separators.
_DECIMAL = r'(?:^|[\t;|"])\s*[+-]?[0-9]*%s[0-9]+(?:[eE][+-]?[0-9]+)?\s*(?=$|[\t;|"])'
_DECIMAL_COMMA, _DECIMAL_POINT = (re.compile(_DECIMAL % mark, re.MULTILINE) for mark in (",", r"\."))
_CELL_WITH_COMMA = r"^\s*([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)\s*$"


class _TableSource(PredictionSource):
    """Predictions in one file: a row per case, a column per class."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        with reading(path):
            self.stored = path.stat().st_size

    def _set_layout(self, header: Sequence[str], request: Request) -> None:
        again = first_repeated(header)
        if again is not None:
            raise InvalidInput(f"{self.where}: column {again[:40]!r} appears twice.")
        if request.like is None:
            self.layout = TableReading(self.where, header, request, self.labels_in, self._is_number).layout()
        else:
            check_columns_there(self.where, header, request.like)
            self.layout = request.like
        self.class_names = self.layout.class_names

    def labels_in(self, column: str) -> set[str]:
        """Return the distinct values of a column as text."""
        labels: set[str] = set()
        for batch in self._batches([column], ()):
            labels.update(map(str, _encode(self._whole(batch, column, 0))[0]))
        return labels

    @abstractmethod
    def _is_number(self, column: str) -> bool:
        """Whether a column holds numbers."""

    @abstractmethod
    def _batches(self, names: Sequence[str], scores: Sequence[str]) -> Iterator[Any]:
        """Yield the rows as record batches with these columns."""

    def read(self, names: Sequence[str], *, scores: bool = False) -> Iterator[RawBlock]:
        """Yield the rows in order, block by block."""
        start = 0
        headings: Sequence[str] = ()
        if scores:
            headings = self.layout.headings
        for batch in self._batches(names, headings):
            with _parquet_errors(self._path):  # a damaged column of Parquet shows its fault when it is converted
                block = RawBlock(batch.num_rows, {name: self._column(batch, name, start) for name in names})
                if scores:
                    block = replace(block, scores=self._scores(batch, start))
            yield block
            start += batch.num_rows

    def _column(self, batch: Any, name: str, start: int) -> Any:
        if name in self.layout.labels:
            return _encode(self._whole(batch, name, start))
        if name == self.layout.id:
            return _values(self._whole(batch, name, start))
        return _values(batch.column(name))

    def _scores(self, batch: Any, start: int) -> NDArray[Any]:
        """Return the scores of all classes."""
        scores = np.empty((batch.num_rows, len(self.layout.headings)), self.dtype)
        for index, heading in enumerate(self.layout.headings):
            scores[:, index] = self._whole(batch, heading, start).to_numpy(zero_copy_only=False)
        if self.layout.positive is not None:
            scores = both_classes(scores, self.layout.kind, start)
        if self.layout.positive == 0:
            scores = scores[:, ::-1]
        return scores

    def _whole(self, batch: Any, name: str, start: int) -> Any:
        """Return a column, which must not have missing values."""
        column = batch.column(name)
        if column.null_count:
            row = start + int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            where = f"{self.where}: column {name[:40]!r}"
            raise invalid(where, "have a value in every row", f"none in row {row}", "Leave out the rows without one.")
        return column


class CsvSource(_TableSource):
    """One CSV file in UTF-8, also with tabs or semicolons. Scores become float64, everything else stays text.

    Text is often rounded. Rows of probabilities that miss 1 because of that are divided by their sums.
    """

    typed = False
    unfolded = 0  # text takes about as much memory as the file
    dtype = np.dtype(np.float64)
    precision = "float64"
    _sum_tolerance: float | None = None  # known once it was needed

    def __init__(self, path: Path, request: Request) -> None:
        super().__init__(path)
        self.rows = None
        self._set_layout(self._read_names(), request)

    def _read_names(self) -> list[str]:
        self._dialect = csv_dialect(self._path)
        return [name.strip() for name in self._dialect.header]

    def _batches(self, names: Sequence[str], scores: Sequence[str]) -> Iterator[Any]:
        types = {**dict.fromkeys(names, pa.string()), **dict.fromkeys(scores, pa.float64())}
        return _csv_batches(self._path, self._dialect, types)

    def _scores(self, batch: Any, start: int) -> NDArray[Any]:
        scores = super()._scores(batch, start)
        if self.layout.kind != "probabilities" or self.layout.positive is not None:
            return scores
        totals = scores.sum(axis=1)
        off = sums_beyond(totals, SUM_TOLERANCE["float64"])
        if off.any():
            if self._sum_tolerance is None:
                self._sum_tolerance = self._find_sum_tolerance()
            refuse_scores(self._shown_scores(), scores, start, self._sum_tolerance)
            scores[off] /= totals[off, None]
        return scores

    def _shown_scores(self) -> str:
        return f"{self.where}: probabilities in {shortened(self.layout.headings)}"

    def _find_sum_tolerance(self) -> float:
        """Find how the whole file was rounded, and warn. Blocks may differ: all rows together decide."""
        decimals = count = rows = 0
        largest = 0.0
        for batch in self._batches((), self.layout.headings):
            scores = super()._scores(batch, rows)
            refuse_scores(self._shown_scores(), scores, rows, math.inf)
            decimals = decimals_of(scores, decimals)
            totals = scores.sum(axis=1)
            count += int(sums_beyond(totals, SUM_TOLERANCE["float64"]).sum())
            largest = max(largest, float(np.abs(totals - 1.0).max(initial=0.0)))
            rows += batch.num_rows
        tolerance = tolerance_of_decimals(decimals, len(self.layout.headings))
        if not sums_beyond(np.asarray(1.0 + largest), tolerance):
            warnings.warn(
                f"{self.where}: {count} of {rows} rows do not sum to 1, by up to {largest:.2g}. Probabilities that are "
                f"rounded to {decimals} decimals can miss it by that much. These rows were divided by their sums.",
                CalibrantWarning,
                stacklevel=2,
            )
        return tolerance

    def _is_number(self, column: str) -> bool:
        """Whether a column holds numbers, as far as its first rows show."""
        for batch in self._batches([column], ()):
            return all(_NUMBER.fullmatch(cell or "") for cell in batch.column(column).unique().to_pylist())
        return False


class JsonLinesSource(CsvSource):
    """One JSON object per line. The keys of the first object are the columns, and every row must have them."""

    def _read_names(self) -> list[str]:
        return list(next(self._records(), {}))

    def _set_layout(self, header: Sequence[str], request: Request) -> None:
        super()._set_layout(header, request)
        if request.like is None:
            # Other keys of lists or objects, such as the usage that a language model reports, are left out.
            first = next(self._records(), {})
            plain = tuple(name for name in self.layout.extras if not isinstance(first[name], list | dict))
            self.layout = replace(self.layout, extras=plain)

    def _records(self) -> Iterator[dict[str, Any]]:
        with reading(self._path), self._path.open("rb") as handle:
            row = 0
            while line := handle.readline(_CSV_BYTES + 1):
                if len(line) > _CSV_BYTES:
                    raise invalid(self.where, f"have lines of at most {_CSV_BYTES / 2**20:g} MB", "a longer one")
                if not line.strip():
                    continue
                row += 1
                record = parse_json(line, f"{self.where}: line {row}")
                if not isinstance(record, dict):
                    raise invalid(f"{self.where}: line {row}", "be a JSON object", type(record).__name__)
                yield record

    def _batches(self, names: Sequence[str], scores: Sequence[str]) -> Iterator[Any]:
        records = self._records()
        start = 0
        while chunk := list(islice(records, _JSON_ROWS)):
            arrays = {"": pa.nulls(len(chunk))}  # without a column there would be no rows
            for name in names:
                arrays[name] = pa.array([self._text(record, name, start + row) for row, record in enumerate(chunk)])
                arrays[name] = arrays[name].cast(pa.string())
            for name in scores:
                arrays[name] = pa.array([self._score(record, name, start + row) for row, record in enumerate(chunk)])
            yield pa.record_batch(list(arrays.values()), names=list(arrays))
            start += len(chunk)

    def _text(self, record: Mapping[str, Any], name: str, row: int) -> str | None:
        """A value as the text that a CSV file would have; None for a missing one."""
        value = record.get(name)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return str(value)
        where = f"{self.where}: {name} in row {row}"
        raise invalid(where, "be a number or text", type(value).__name__, "Write one value per key.")

    def _score(self, record: Mapping[str, Any], name: str, row: int) -> float:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(f"{self.where}: scores", "be numbers", f"{value!r} in row {row}, column {name[:40]}")
        return float(value)


class ParquetSource(_TableSource):
    """One Parquet file. Scores stay float32 if all of them are, else they become float64."""

    typed = True

    def __init__(self, path: Path, request: Request) -> None:
        super().__init__(path)
        with open_parquet(path) as file:
            schema = file.schema_arrow
            metadata = file.metadata
        self._set_schema(schema, request)
        self.rows = metadata.num_rows
        scores = metadata.num_rows * self.layout.width * self.dtype.itemsize
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.unfolded = max(scores, sum(group.total_byte_size for group in groups))
        check_unfolded(self.where, self.unfolded, self.stored, most=_MOST_UNFOLDED)

    def _set_schema(self, schema: Any, request: Request) -> None:
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._set_layout(schema.names, request)
        # Other columns of lists or bytes are left out.
        plain = tuple(name for name in self.layout.extras if _is_plain(self._types[name]))
        self.layout = replace(self.layout, extras=plain)
        for name in self.layout.beside_scores:
            self._require_plain(name)
        for name in self.layout.headings:
            if not self._is_number(name):
                raise invalid(f"{self.where}: scores", "be numbers", f"a column {name[:40]!r} of {self._types[name]}")
        self.precision = "float64"
        if {self._types[name] for name in self.layout.headings} == {pa.float32()} and self.layout.positive is None:
            self.precision = "float32"
        self.dtype = np.dtype(self.precision)

    def _require_plain(self, column: str) -> None:
        if not _is_plain(self._types[column]):
            rule = "have one number, text or date per row"
            raise invalid(f"{self.where}: column {column[:40]!r}", rule, f"{self._types[column]}")

    def labels_in(self, column: str) -> set[str]:
        """Return the distinct values of a column as text."""
        self._require_plain(column)
        return super().labels_in(column)

    def _is_number(self, column: str) -> bool:
        kind = self._types[column]
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))

    def _batches(self, names: Sequence[str], scores: Sequence[str]) -> Iterator[Any]:
        rows = 0
        with open_parquet(self._path, names) as file:
            declared = file.metadata.num_rows
            step = block_rows(len(scores) or 1)
            for batch in file.iter_batches(batch_size=step, columns=[*names, *scores]):
                rows += batch.num_rows
                if rows > declared:
                    break
                yield batch
            if rows != declared:
                raise invalid(self.where, f"hold the {declared} rows that it declares", rows)


TABLE_FORMATS: dict[str, type[CsvSource | ParquetSource]] = {
    ".csv": CsvSource,
    ".tsv": CsvSource,
    ".jsonl": JsonLinesSource,
    ".parquet": ParquetSource,
}
"""Ending of a file to the class that reads it; a further type of table is one more class and line here."""


class FrameSource(ParquetSource):
    """A data frame of pandas or polars, or an Arrow table."""

    def __init__(self, table: Any, request: Request) -> None:
        self.where = "frame"
        self._path = Path("frame")
        self._table = table
        self.stored = self.unfolded = table.nbytes
        self.rows = table.num_rows
        self._set_schema(table.schema, request)

    def _batches(self, names: Sequence[str], scores: Sequence[str]) -> Iterator[Any]:
        yield from self._table.select([*names, *scores]).to_batches(max_chunksize=block_rows(len(scores) or 1))


def arrow_table(frame: Any) -> Any:
    """A data frame of pandas or polars, or an Arrow table, as an Arrow table without the index."""
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        frame = frame.copy(deep=False)
        frame.columns = [str(column) for column in frame.columns]
        try:
            return pa.Table.from_pandas(frame, preserve_index=False)
        except (ValueError, TypeError) as error:  # Arrow's errors are these, too
            raise InvalidInput(f"frame: {one_line(error, most=150)}. Leave out columns that are not needed.") from error
    raise invalid("frame", "be a data frame of pandas or polars", type(frame).__name__)


@dataclass(frozen=True)
class _Dialect:
    """The column names of a CSV file, and how it was written."""

    header: list[str]
    separator: str
    decimal_mark: str


def csv_dialect(path: Path) -> _Dialect:
    """Read the first line that is not empty. If commas do not separate it, another mark does.

    In many countries Excel writes semicolons, and decimal commas. pyarrow could read the header, but it would allocate
    memory for any number of columns first.
    """
    with _csv_errors(path, []), path.open(encoding="utf-8-sig", newline="") as handle:
        start = handle.read(_CSV_BYTES)
        usual = "\t" if path.suffix.lower() == ".tsv" else ","
        header, separator = _first_row(start, usual), usual
        for mark in _SEPARATORS:
            if len(header) <= 1 < len(_first_row(start, mark)):
                header, separator = _first_row(start, mark), mark
    if len(header) > _MOST_COLUMNS:
        hint = "Save the table as Parquet or .npz."
        raise invalid(str(path), f"have at most {_MOST_COLUMNS:,} columns", f"{len(header):,}", hint)
    decimal_mark = "."
    cells = start[:_SAMPLE]
    commas = len(_DECIMAL_COMMA.findall(cells))
    if separator != "," and commas and commas >= len(_DECIMAL_POINT.findall(cells)):
        decimal_mark = ","
    return _Dialect(header, separator, decimal_mark)


def _first_row(text: str, separator: str) -> list[str]:
    """Return the cells of the first line that is not empty."""
    return next(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator)), [])


def _csv_batches(path: Path, dialect: _Dialect, types: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the rows of a CSV file, with the columns that `types` names. No cell counts as missing."""
    if not dialect.header:
        return
    types = types or {dialect.header[0].strip(): pa.string()}
    in_file = {name.strip(): name for name in dialect.header}  # people write spaces behind commas
    column_types = {in_file[name]: kind for name, kind in types.items()}
    read = arrow_csv.ReadOptions(block_size=_CSV_BYTES, use_threads=False)  # with threads, errors name no row
    parse = arrow_csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(
        column_types=column_types,
        include_columns=list(column_types),
        null_values=[],
        decimal_point=dialect.decimal_mark,
    )
    with _csv_errors(path, dialect.header), _QuoteCheckedFile(path, dialect.separator) as file:
        try:
            reader = arrow_csv.open_csv(file, read, parse, convert)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):  # a header without a line end
                return
            raise
        for batch in reader:
            columns = batch.columns
            if dialect.decimal_mark == ",":  # weights, for one, are read as text
                columns = [_with_points(column) if pa.types.is_string(column.type) else column for column in columns]
            yield pa.record_batch(columns, names=list(types))


def _with_points(cells: Any) -> Any:
    """Write decimal points into cells that are numbers with a decimal comma."""
    return arrow_compute.replace_substring_regex(cells, _CELL_WITH_COMMA, r"\1.\2")


class _QuoteCheckedFile(io.FileIO):
    """A CSV file whose quotation marks are checked while it is read.

    pyarrow accepts a mark that is never closed and text after a closing mark. It would then read several rows as one
    cell and lose them.
    """

    def __init__(self, path: Path, separator: str) -> None:
        super().__init__(path)
        self._where = str(path)
        # A mark that neither begins nor ends a cell nor belongs to a doubled one.
        ends = separator.encode() + rb"\r\n\""
        self._mark_inside = re.compile(rb'"(?=[^%b])(?<=[^%b]")' % (ends, ends))
        self._marks = 0
        self._lines = 1
        self._tail = b""

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes, and raise an error for a mark inside a cell or one without a counterpart."""
        data = super().read(size) or b""
        cells = data
        if self.tell() == len(data):
            cells = data.removeprefix(codecs.BOM_UTF8)
        if b'"' in cells or self._marks:
            self._check(cells)
        self._lines += data.count(b"\n")
        self._tail = data[-1:]
        return data

    def _check(self, data: bytes) -> None:
        rule = "have quotation marks only around whole cells, and double ones inside"
        inside = self._mark_inside.search(self._tail + data)
        if inside:
            line = self._lines + data.count(b"\n", 0, inside.start())
            raise invalid(f"{self._where}: line {line}", rule, "another one")
        self._marks += data.count(b'"')
        if not data and self._marks % 2:
            raise invalid(self._where, rule, "one that is not closed")


@contextmanager
def _csv_errors(path: Path, header: Sequence[str]) -> Iterator[None]:
    """Say in one sentence what is wrong with a CSV file, with row and column if they are known."""
    try:
        with reading(path):
            yield
    except UnicodeDecodeError as error:
        raise invalid(str(path), "be a CSV file in UTF-8", f"something else ({error})", _UTF8) from error
    except (csv.Error, pa.ArrowException) as error:
        raise _csv_error(str(path), str(error), header) from error


def _csv_error(where: str, message: str, header: Sequence[str]) -> InvalidInput:
    if cell := _BAD_CELL.search(message):
        column, row, value = int(cell[1]), int(cell[2]) - 2, cell[3]
        hint = ""
        if not value.strip():
            hint = "Leave out the rows without scores."
        if value.strip().endswith("%"):
            hint = "Write fractions, such as 0.227 for 22.7%."
        shown = f"{value[:40]!r} in row {row}, column {header[column][:40]}"
        return invalid(f"{where}: scores", "be numbers", shown, hint)
    if cells := _BAD_ROW.search(message):
        hint = "Check its commas and quotation marks."
        return invalid(f"{where}: row {int(cells[1]) - 2}", f"have {cells[2]} cells", cells[3], hint)
    if "straddl" in message:
        rule = f"have rows of at most {_CSV_BYTES / 2**20:g} MB"
        return invalid(where, rule, "a longer one", "Check its quotation marks and line ends.")
    hint = ""
    if "UTF8" in message:
        hint = _UTF8
    return invalid(where, "be a CSV file in UTF-8", f"something else ({message[:200]})", hint)


@contextmanager
def open_parquet(path: Path, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open a Parquet file with a small read buffer and checksums of pages.

    Columns in `texts` keep their dictionary, so that a long text which the file holds once is not copied for each row.
    """
    with (
        _parquet_errors(path),
        parquet.ParquetFile(
            path, read_dictionary=list(texts), buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
        ) as file,
    ):
        yield file


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Say in one sentence what is wrong with a Parquet file."""
    try:
        yield
    except InvalidInput:
        raise
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist.") from error
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        fault = str(error)[:200]
        raise invalid(str(path), "be a whole Parquet file of plain columns", f"something else ({fault})") from error


def _is_plain(kind: Any) -> bool:
    """Whether a column has one number, text or date per row, not a list or bytes."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _encode(column: Any) -> tuple[list[Any], NDArray[Any]]:
    """Return the distinct values of a column (None for a missing one), and the index of each row's value among them."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column.validate(full=True)  # in a damaged file, indices point outside the dictionary
    places = column.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    # The dictionary is that of many rows, of which these are some.
    used, places = np.unique(places, return_inverse=True)
    present = used[used >= 0]
    # Not pa.array(), which imports pandas if it is installed.
    indices = pa.Array.from_buffers(pa.int64(), len(present), [None, pa.py_buffer(present)])
    values = column.dictionary.take(indices).to_pylist()
    return [None] * int((used < 0).sum()) + values, places


def _values(column: Any) -> NDArray[Any]:
    """Return numbers, or strings of which equal ones are one object, so that a column of groups takes 8 bytes per row.

    Missing numbers become NaN, missing strings "".
    """
    kind = column.type
    if pa.types.is_dictionary(kind) and not _is_text(kind.value_type):
        return _values(column.dictionary_decode())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if values.dtype == object:
            values = column.cast("float64").to_numpy(zero_copy_only=False)
        return values
    if not pa.types.is_dictionary(kind):
        column = column.cast(pa.string())
    distinct, places = _encode(column)
    shared = np.array([text or "" for text in distinct], dtype=object)
    return shared.take(places)


def table_columns(path: Path) -> list[str]:
    """Return the column names of a `.csv` or `.parquet` file."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return [name.strip() for name in csv_dialect(path).header]
    if path.suffix.lower() != ".parquet":
        raise invalid(str(path), "end in .csv, .tsv or .parquet", path.suffix or "no ending")
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def read_table(path: Path, wanted: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Read a small `.csv` or `.parquet` table that is not predictions, such as decisions, labels, groups or costs.

    Without `wanted`, all columns are read. Columns of CSV are text. Lists and bytes in Parquet are left out. Equal
    values are one object.
    """
    header = table_columns(path)
    again = first_repeated(header)
    if again is not None:
        raise invalid(str(path), "name each column once", f"{again[:40]!r} twice")
    names = [name for name in header if wanted is None or name in wanted]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    if path.suffix.lower() != ".parquet":
        for batch in _csv_batches(path, csv_dialect(path), dict.fromkeys(names, pa.string())):
            for name in names:
                columns[name] += batch.column(name).to_pylist()
        return columns
    with open_parquet(path) as file:
        names = [name for name in names if _is_plain(file.schema_arrow.field(name).type)]
        needed = file.metadata.num_rows * len(names) * _BYTES_OF_A_VALUE
        hint = "Write it again in smaller parts."
        check_unfolded(str(path), needed, path.stat().st_size, hint, most=_MOST_UNFOLDED_TABLE)
    with open_parquet(path, names) as file:
        for batch in file.iter_batches(columns=names):
            for name in names:
                distinct, places = _encode(batch.column(name))
                columns[name] += [distinct[place] for place in places.tolist()]
    return {name: columns[name] for name in names}


@contextmanager
def table_writer(handle: IO[bytes], suffix: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give a function that appends rows, columns by name, to an open `.csv` or `.parquet` file.

    CSV gets the shortest decimals that give the same numbers back.
    """
    has_header = False
    writer: Any = None

    def write_csv(columns: Mapping[str, Any]) -> None:
        nonlocal has_header
        if not has_header:
            has_header = True
            _append_csv(handle, pa.table({str(index): [name] for index, name in enumerate(columns)}))
        _append_csv(handle, _arrow_table(columns))

    def write_parquet(columns: Mapping[str, Any]) -> None:
        nonlocal writer
        table = _arrow_table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(handle, table.schema, write_page_checksum=True)
        writer.write_table(table)

    if suffix == ".csv":
        yield write_csv
        return
    try:
        yield write_parquet
    finally:
        if writer is not None:
            writer.close()


def _append_csv(handle: IO[bytes], table: Any) -> None:
    content = io.BytesIO()
    try:
        arrow_csv.write_csv(table, content, arrow_csv.WriteOptions(include_header=False, quoting_style="none"))
    except pa.ArrowInvalid:  # some text has a comma, a quotation mark or a line end: all text gets marks
        content = io.BytesIO()
        arrow_csv.write_csv(table, content, arrow_csv.WriteOptions(include_header=False, quoting_style="needed"))
    handle.write(content.getvalue())


def _arrow_table(columns: Mapping[str, Any]) -> Any:
    arrays = {}
    for name, column in columns.items():
        kind = None
        if isinstance(column, np.ndarray) and column.dtype.kind in "OU":
            kind = pa.string()
        arrays[name] = pa.array(column, kind)
    return pa.table(arrays)
