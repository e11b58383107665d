"""Predictions as Parquet: one file, or the parts of a folder or of a pattern, through pyarrow."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, importing, invalid
from calibrant.files import atomic_write
from calibrant.npz import check_unfolded
from calibrant.predictions.checks import Precision
from calibrant.predictions.class_order import names_or_numbers, shortened
from calibrant.predictions.columns import Layout, layout
from calibrant.predictions.csv_file import header_of
from calibrant.predictions.on_disk import OnDisk
from calibrant.predictions.source import RawBlock, Wanted, block_rows, texts

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

# Columns of rounded numbers take a byte or less for each: about thirteen times as small as in memory.
_MOST_UNFOLDED = 20


def parquet_module() -> Any:
    """`pyarrow`, with `pyarrow.parquet`, or one line on how to get it."""
    with importing("a Parquet file", "pyarrow", "tables"):
        import pyarrow as pa
        import pyarrow.parquet
    return pa


class ParquetSource:
    """Parquet files with the same columns; scores keep float32 where all of them have it, else they become float64."""

    typed = True

    def __init__(self, where: str, parts: Sequence[Path], kind: Kind | None, columns: Mapping[str, str]) -> None:
        self.where, self._parts = where, parts
        first: Layout | None = None
        narrow, stored, unfolded = True, 0, 0
        self._rows_of: list[int] = []
        for part in parts:
            with self._open(part) as file:
                schema = file.schema_arrow
                first = first or self._layout(schema, kind, columns)
                self._check(part, schema, first)
                types = {schema.field(heading).type for heading in first.headings}
                narrow = narrow and types == {self._arrow.float32()}
                self._rows_of.append(file.metadata.num_rows)
                groups = range(file.metadata.num_row_groups)
                unfolded += sum(file.metadata.row_group(group).total_byte_size for group in groups)
                stored += part.stat().st_size
        assert first is not None
        self.layout = first
        rows = sum(self._rows_of)
        self.rows: int | None = rows
        self.dtype = np.dtype(np.float32 if narrow else np.float64)
        self.precision: Precision = "float32" if narrow else "float64"
        needed = max(unfolded, rows * len(first.headings) * self.dtype.itemsize)
        check_unfolded(where, needed, stored, most=_MOST_UNFOLDED)
        self.class_names = None if first.names == tuple(map(str, range(len(first.names)))) else first.names

    def split(self) -> "list[ParquetSource]":
        """A source for each file. Columns, kind and type of the scores are those that all files have together."""
        found = []
        for part, rows in zip(self._parts, self._rows_of, strict=True):
            one = copy.copy(self)
            one.where, one._parts, one._rows_of, one.rows = str(part), [part], [rows], rows  # noqa: SLF001 (ourselves)
            found.append(one)
        return found

    @property
    def _arrow(self) -> Any:
        return parquet_module()

    def _layout(self, schema: Any, kind: Kind | None, columns: Mapping[str, str]) -> Layout:
        found = layout(self.where, schema.names, kind, columns)
        kept = tuple(name for name in found.extras if self._is_plain(schema.field(name).type))
        return replace(found, extras=kept)

    def _is_plain(self, kind: Any) -> bool:
        """Whether a column has one number, text or date per row, not a list or bytes."""
        types = self._arrow.types
        return not (types.is_nested(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind))

    def _check(self, part: Path, schema: Any, first: Layout) -> None:
        own = [name for name in (first.target, first.id) if name is not None]
        for name in (*own, *first.headings, *first.extras):
            if name not in schema.names:
                raise InvalidInput(
                    f"{part}: column {name[:40]!r} is not there. There are: {shortened(schema.names, 12)}."
                )
            if schema.names.count(name) > 1:
                raise invalid(str(part), "name each column once", f"{name[:40]!r} twice")
        for name in (*own, *first.extras):
            if not self._is_plain(schema.field(name).type):
                rule = "have one number, text or date per row"
                raise invalid(f"{part}: column {name[:40]!r}", rule, f"{schema.field(name).type}")
        for name in first.headings:
            kind = schema.field(name).type
            if not (self._arrow.types.is_floating(kind) or self._arrow.types.is_integer(kind)):
                raise invalid(f"{part}: scores", "be numbers", f"a column {name[:40]!r} of {kind}")
        if first.id is not None and not self._is_id(schema.field(first.id).type):
            raise invalid(f"{part}: ids", "be strings or integers", f"{schema.field(first.id).type}")

    def _is_id(self, kind: Any) -> bool:
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_integer(kind) or _is_text(types, kind))

    def on_disk(self) -> OnDisk | None:
        """Nothing: columns are unpacked first."""
        return None

    @contextmanager
    def _open(self, part: Path, texts: Sequence[str] = ()) -> Iterator[Any]:
        """Read with a small buffer, not the whole column of a row group at once, and compare checksums of pages.

        Columns of text keep their dictionary: a long text that a file holds once is not made again for every row.
        """
        try:
            with self._arrow.parquet.ParquetFile(
                part, read_dictionary=texts, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
            ) as file:
                yield file
        except InvalidInput:
            raise
        except (self._arrow.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise InvalidInput(f"{part} does not exist.") from error
            fault = str(error)[:200]
            raise invalid(str(part), "be a whole Parquet file of plain columns", f"something else ({fault})") from error

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """The rows of all parts in order."""
        found = self.layout
        own = [found.target if wanted.target else None, found.id if wanted.id else None, *wanted.extras]
        names = [name for name in (*own, *(found.headings if wanted.scores else ())) if name is not None]
        step, start = block_rows(len(found.headings)), 0
        for part in self._parts:
            rows = 0
            with self._open(part, [name for name in own if name is not None]) as file:
                for batch in file.iter_batches(batch_size=step, columns=names):
                    yield self._block(batch, start + rows, wanted)
                    rows += batch.num_rows
                if rows != file.metadata.num_rows:
                    raise invalid(str(part), f"hold the {file.metadata.num_rows} rows that it declares", rows)
            start += rows

    def _block(self, batch: Any, start: int, wanted: Wanted) -> RawBlock:
        found, scores = self.layout, None
        if wanted.scores:
            scores = np.empty((batch.num_rows, len(found.headings)), self.dtype)
            for index, heading in enumerate(found.headings):
                scores[:, index] = self._whole(batch, heading, start).to_numpy(zero_copy_only=False)
        target = ids = None
        if wanted.target and found.target is not None:
            target = _encode(self._whole(batch, found.target, start))
        if wanted.id and found.id is not None:
            ids = self._column(self._whole(batch, found.id, start))
        extras = {name: self._column(batch.column(name)) for name in wanted.extras}
        return RawBlock(batch.num_rows, scores, target, ids, extras)

    def _whole(self, batch: Any, name: str, start: int) -> Any:
        """A column without missing values."""
        column = batch.column(name)
        if column.null_count:
            row = start + int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise invalid(f"{self.where}: column {name[:40]!r}", "have a value in every row", f"none in row {row}")
        return column

    def _column(self, column: Any) -> NDArray[Any]:
        """Numbers, or Python strings of which equal ones are one object; missing numbers are NaN, missing texts ""."""
        types, kind = self._arrow.types, column.type
        if types.is_dictionary(kind) and not _is_text(types, kind.value_type):
            return self._column(column.dictionary_decode())
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return values if values.dtype != object else column.cast("float64").to_numpy(zero_copy_only=False)
        distinct, places = _encode(column if types.is_dictionary(kind) else column.cast(self._arrow.string()))
        shared: NDArray[Any] = texts(["" if text is None else text for text in distinct])[places]
        return shared


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _encode(column: Any) -> tuple[list[Any], NDArray[Any]]:
    """The distinct values of a column (None where one is missing), and the place of each row's among them."""
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    encoded.validate(full=True)  # damaged indices point beside the dictionary
    # A dictionary is that of many rows, of which these are some.
    used, places = np.unique(
        encoded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False), return_inverse=True
    )
    found = encoded.dictionary.take(used[used >= 0]).to_pylist()
    return [None] * int((used < 0).sum()) + found, places


def write_parquet(predictions: "Predictions", path: str | Path) -> None:
    """Write one column per class; the target is the class's name, or its number where classes have none."""
    arrow = parquet_module()
    names = names_or_numbers(predictions.class_names, predictions.n_classes)
    targets: Any = predictions.targets
    if predictions.class_names is not None:
        targets = np.asarray(predictions.class_names)[targets]
    own = [] if predictions.ids is None else [predictions.ids]
    columns = [*own, targets, *predictions.scores.T, *predictions.extras.values()]
    table = arrow.table([arrow.array(column) for column in columns], names=header_of(predictions, names))
    with atomic_write(path) as temporary:
        arrow.parquet.write_table(table, temporary, write_page_checksum=True)
