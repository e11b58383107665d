"""Predictions as tables: CSV, and Parquet through pyarrow.

Columns: `target`, optionally `id`, and one of `logit_<class>`, `probability_<class>`, `score_<class>` for each class.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import atomic_write
from calibrant.predictions.checks import PREFIXES, Kind
from calibrant.predictions.files import Content, refuse_unknown, settle_kind, spool
from calibrant.predictions.rows import chunks

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_BLOCK_CELLS = 2**18
# A class number; tables that were handled as floats (a missing value is enough) write 1.0 for 1.
_WHOLE = re.compile(r"([0-9]+)(?:\.0*)?")


@dataclass(frozen=True)
class _Columns:
    """Where things stand in a row: the target, the id (or None), the classes in order, their names and headings."""

    kind: Kind
    target: int
    id: int | None
    classes: list[int]
    names: tuple[str, ...]
    headings: list[str]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """None where the names are only the numbers 0..K-1."""
        return None if self.names == tuple(map(str, range(len(self.names)))) else self.names


def _columns(path: Path, header: Sequence[str], kind: Kind | None) -> _Columns:
    """Understand the header, or say which column is not understood."""
    refuse_separator(path, header)
    places: dict[str, int] = {}
    found: dict[str, list[tuple[str, int]]] = {}
    for place, name in enumerate(header):
        if name in places:
            raise InvalidInput(f"{path}: column {name!r} appears twice.")
        places[name] = place
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix) and name != prefix), None)
        if prefix is not None:
            found.setdefault(PREFIXES[prefix], []).append((name.removeprefix(prefix), place))
        elif name not in ("target", "id"):
            raise refuse_unknown(path, "column", name, ("target", "id", *(f"{prefix}0" for prefix in PREFIXES)))
    if "target" not in places or len(found) != 1:
        rule = "have a column target and columns logit_<class> or probability_<class>, not both"
        raise invalid(str(path), rule, ", ".join(list(header)[:8]) or "no columns")
    ((own_word, classes),) = found.items()
    if {name for name, _ in classes} == set(map(str, range(len(classes)))):
        # Classes that are called by their number stand where that number says: tools like to sort 10 before 2.
        classes = sorted(classes, key=lambda item: int(item[0]))
    settled = settle_kind(path, own_word, kind)
    names = tuple(name for name, _ in classes)
    classes_at = [place for _, place in classes]
    headings = [header[place] for place in classes_at]
    return _Columns(settled, places["target"], places.get("id"), classes_at, names, headings)


def refuse_separator(path: Path, header: Sequence[str]) -> None:
    """Refuse a header that is one cell because something else than commas separates its columns."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and separator in header[0]:
            way_out = "Save the table again with commas between columns and points in decimals."
            raise invalid(f"{path}: columns", "be separated by commas", name, way_out)


def _targets(path: Path, values: Sequence[str], names: tuple[str, ...]) -> NDArray[np.int64]:
    """Class names or class numbers; where both readings are possible and differ, nothing is guessed."""
    by_name = {name: index for index, name in enumerate(names)}
    distinct = set(values)
    numbers = {value: int(whole[1]) for value in distinct if (whole := _WHOLE.fullmatch(value))}
    named = distinct <= by_name.keys()
    numbered = len(numbers) == len(distinct) and all(number < len(names) for number in numbers.values())
    if named and numbered and any(by_name[value] != numbers[value] for value in distinct):
        row = next(row for row, value in enumerate(values) if by_name[value] != numbers[value])
        found = f"values that can be read as both ({values[row]!r} in row {row})"
        way_out = "Call the classes 0..K-1, or by names that are not numbers."
        raise invalid(f"{path}: target", "be class names or class numbers", found, way_out)
    if not named and not numbered:
        lost = next(value for value in values if value not in by_name and numbers.get(value, len(names)) >= len(names))
        row = list(values).index(lost)
        rule = f"be a class name of the columns, or its number in 0..{len(names) - 1}"
        raise invalid(f"{path}: target", rule, f"{lost!r} in row {row}")
    return np.asarray([by_name[value] if named else numbers[value] for value in values], dtype=np.int64)


def read_csv(path: Path, kind: Kind | None, *, mmap: bool) -> Content:
    """Read CSV block by block; scores become float64."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            columns = _columns(path, next(reader, []), kind)
            targets: list[str] = []
            ids: list[str] = []
            scores = spool(_csv_blocks(path, reader, columns, targets, ids), mmap=mmap)
    except (csv.Error, UnicodeDecodeError) as error:
        raise invalid(str(path), "be a CSV file in UTF-8", f"something else ({error})") from error
    named = np.asarray(ids, dtype=np.str_) if columns.id is not None else None
    return Content(columns.kind, scores, _targets(path, targets, columns.names), named, columns.class_names)


def _csv_blocks(
    path: Path, reader: Any, columns: _Columns, targets: list[str], ids: list[str]
) -> Iterator[NDArray[np.float64]]:
    width = len(columns.classes) + 1 + (columns.id is not None)
    step = max(1, _BLOCK_CELLS // width)
    block: list[list[str]] = []
    for row in reader:
        if not row:
            continue
        if len(row) != width:
            raise invalid(f"{path}: line {reader.line_num}", f"have {width} cells", f"{len(row)}")
        targets.append(row[columns.target].strip())
        if columns.id is not None:
            ids.append(row[columns.id])
        block.append([row[place] for place in columns.classes])
        if len(block) == step:
            yield to_floats(path, block, len(targets) - len(block), columns.headings)
            block = []
    if block:
        yield to_floats(path, block, len(targets) - len(block), columns.headings)
    elif not targets:
        yield np.empty((0, len(columns.classes)))


def to_floats(path: Path, block: list[list[str]], first_row: int, headings: Sequence[str]) -> NDArray[np.float64]:
    """Cells as numbers; the first that is none is named by its row in the file and its column."""
    try:
        return np.asarray(block, dtype=np.float64)
    except ValueError:
        for row, cells in enumerate(block, start=first_row):
            for heading, cell in zip(headings, cells, strict=True):
                try:
                    float(cell)
                except ValueError as error:
                    found = f"{cell!r} in row {row}, column {heading}"
                    raise invalid(f"{path}: scores", "be numbers", found) from error
        raise


def write_csv(predictions: "Predictions", path: str | Path) -> None:
    """Write the shortest decimals that give the same numbers back."""
    names = predictions.class_names or tuple(map(str, range(predictions.n_classes)))
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(_header(predictions, names))
        for part in chunks(len(predictions), predictions.n_classes):
            scores = predictions.scores[part].astype(np.str_)
            targets = [names[target] for target in predictions.targets[part].tolist()]
            ids = predictions.ids
            for index, row in enumerate(scores.tolist()):
                own = [] if ids is None else [ids[part.start + index].item()]
                writer.writerow([*own, targets[index], *row])


def _header(predictions: "Predictions", names: tuple[str, ...]) -> list[str]:
    prefix = "logit_" if predictions.kind == "logits" else "probability_"
    own = [] if predictions.ids is None else ["id"]
    return [*own, "target", *(f"{prefix}{name}" for name in names)]


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidInput("Parquet files need pyarrow. Install it with: pip install 'calibrant[tables]'.") from error
    return pa


def read_parquet(path: Path, kind: Kind | None, *, mmap: bool) -> Content:
    """Read Parquet batch by batch; scores keep float32 where all columns have it, else they become float64."""
    pyarrow = _pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = _columns(path, table.schema_arrow.names, kind)
            types = {table.schema_arrow.types[place] for place in columns.classes}
            dtype = np.float32 if types == {pyarrow.float32()} else np.float64
            targets: list[Any] = []
            ids: list[Any] = []
            scores = spool(_parquet_blocks(path, table, columns, dtype, targets, ids), mmap=mmap)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise invalid(str(path), "be a Parquet file of plain columns", f"something else ({error})") from error
    named = None if columns.id is None else np.asarray(ids)
    texts = [value if isinstance(value, str) else _whole(path, value) for value in targets]
    return Content(columns.kind, scores, _targets(path, texts, columns.names), named, columns.class_names)


def _whole(path: Path, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise invalid(f"{path}: target", "be integers or class names", repr(value))
    return str(int(value))


def _parquet_blocks(
    path: Path, table: Any, columns: _Columns, dtype: type, targets: list[Any], ids: list[Any]
) -> Iterator[NDArray[Any]]:
    step = max(1, _BLOCK_CELLS // len(columns.classes))
    some = False
    for batch in table.iter_batches(batch_size=step):
        for place, name in enumerate(batch.schema.names):
            if batch.column(place).null_count:
                raise invalid(f"{path}: column {name!r}", "have a value in every row", "a missing value")
        targets.extend(batch.column(columns.target).to_pylist())
        if columns.id is not None:
            ids.extend(batch.column(columns.id).to_pylist())
        cells = [batch.column(place).to_numpy(zero_copy_only=False) for place in columns.classes]
        if any(cell.dtype.kind not in "fiu" for cell in cells):
            raise invalid(f"{path}: scores", "be numbers", f"a column of {batch.schema.types}")
        some = True
        yield np.stack(cells, axis=1).astype(dtype)
    if not some:
        yield np.empty((0, len(columns.classes)), dtype)


def write_parquet(predictions: "Predictions", path: str | Path) -> None:
    """Write one column a class; the target is the class's name, or its number where classes have none."""
    pyarrow = _pyarrow()
    names = predictions.class_names or tuple(map(str, range(predictions.n_classes)))
    targets: Any = predictions.targets
    if predictions.class_names is not None:
        targets = np.asarray(predictions.class_names)[targets]
    own = [] if predictions.ids is None else [predictions.ids]
    columns = [*own, targets, *predictions.scores.T]
    table = pyarrow.table([pyarrow.array(column) for column in columns], names=_header(predictions, names))
    with atomic_write(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
