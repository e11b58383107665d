"""Predictions of any length, with or without targets, as blocks of rows in the order of a rule's classes."""

import csv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import DAMAGED_NPZ
from calibrant.predictions import class_order
from calibrant.predictions.checks import PREFIXES, Kind, Precision
from calibrant.predictions.files import settle_kind
from calibrant.predictions.tables import refuse_separator, to_floats
from calibrant.routing.rule import RoutingRule

_Layout = tuple[Kind, list[int], int | None]
# Numbers held at once: 2 MB of float64.
_BLOCK = 2**18


@dataclass(frozen=True)
class Block:
    """Some rows of a file.

    Attributes:
        ids: One for each row.
        scores: Shape (rows, K), columns in the order of the rule's classes.
        kind: What the scores are.
        precision: The type that they came in, where the array does not say it (bfloat16).
    """

    ids: Sequence[Any]
    scores: NDArray[Any]
    kind: Kind
    precision: Precision | None = None


def parquet_module() -> Any:
    """`pyarrow.parquet`, or one line on how to get it."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidInput("Parquet files need pyarrow. Install it with: pip install 'calibrant[tables]'") from error
    return parquet


def read_blocks(path: Path, rule: RoutingRule, kind: Kind | None = None) -> Iterator[Block]:
    """Rows of a predictions file, with or without targets, in blocks; `kind` is for a file that does not say."""
    if path.is_dir():
        way_out = f"The test predictions of a run lie in {path}/predictions/test.npz."
        raise invalid(str(path), "be a file", "a folder", way_out)
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist.")
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise invalid(str(path), f"end in one of {', '.join(readers)}", repr(path.suffix))
    return readers[path.suffix.lower()](path, rule, kind)


def _layout(path: Path, header: Sequence[str], rule: RoutingRule, kind: Kind | None) -> _Layout:
    """What the scores are, the column of each of the rule's classes, and the column of the ids."""
    refuse_separator(path, header)
    found: dict[str, dict[str, int]] = {}
    for place, name in enumerate(header):
        for prefix, own_word in PREFIXES.items():
            if name.startswith(prefix):
                found.setdefault(own_word, {})[name.removeprefix(prefix)] = place
    if len(found) != 1 or len(set(header)) < len(header):
        rule_text = "have columns logit_<class>, probability_<class> or score_<class>, not both and none twice"
        raise invalid(str(path), rule_text, ", ".join(list(header)[:8]) or "no columns")
    ((own_word, places),) = found.items()
    settled = settle_kind(path, own_word, kind)
    rule.check_classes(len(places))
    # Columns may stand in any order; names decide.
    order = class_order(rule.class_names, list(places), rule.n_classes, where=f"{path}: columns")
    columns = list(places.values())
    ordered = columns if order is None else [columns[place] for place in order]
    return settled, ordered, header.index("id") if "id" in header else None


def _read_csv(path: Path, rule: RoutingRule, own_kind: Kind | None) -> Iterator[Block]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = next(reader, [])
            layout = _layout(path, header, rule, own_kind)
            rows: list[list[str]] = []
            size, start = max(1, _BLOCK // len(header)), 0
            for row in reader:
                if len(row) != len(header):
                    if not row:
                        continue
                    raise invalid(f"{path}: line {reader.line_num}", f"have {len(header)} cells", len(row))
                rows.append(row)
                if len(rows) == size:
                    yield _csv_block(path, header, rows, layout, start)
                    start, rows = start + size, []
            if rows:
                yield _csv_block(path, header, rows, layout, start)
    except (csv.Error, UnicodeDecodeError) as error:
        raise invalid(str(path), "be a CSV file in UTF-8", f"something else ({error})") from error


def _csv_block(path: Path, header: list[str], rows: list[list[str]], layout: _Layout, start: int) -> Block:
    kind, places, id_place = layout
    cells = [[row[place] for place in places] for row in rows]
    scores = to_floats(path, cells, start, [header[place] for place in places])
    ids: Sequence[Any] = range(start, start + len(rows)) if id_place is None else [row[id_place] for row in rows]
    return Block(ids, scores, kind)


def _read_parquet(path: Path, rule: RoutingRule, own_kind: Kind | None) -> Iterator[Block]:
    parquet = parquet_module()
    try:
        with parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            kind, places, id_place = _layout(path, header, rule, own_kind)
            wanted = [header[place] for place in places] + ([] if id_place is None else ["id"])
            start = 0
            for batch in file.iter_batches(batch_size=max(1, _BLOCK // len(header)), columns=wanted):
                columns = [batch.column(header[place]).to_numpy(zero_copy_only=False) for place in places]
                scores = np.stack(columns, axis=1).astype(np.float64)
                rows: Sequence[Any] = range(start, start + len(scores))
                yield Block(rows if id_place is None else batch.column("id").to_pylist(), scores, kind)
                start += len(scores)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise invalid(str(path), "be a Parquet file with numeric scores", f"something else ({error})") from error


def _read_npz(path: Path, rule: RoutingRule, own_kind: Kind | None) -> Iterator[Block]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist()}
            found = [name for name in dict.fromkeys(PREFIXES.values()) if name in members]
            if len(found) != 1:
                rule_text = "hold one of logits, probabilities, scores"
                raise invalid(f"{path}: arrays", rule_text, ", ".join(sorted(members)))
            kind = settle_kind(path, found[0], own_kind)
            names = _rows_of(archive, "class_names") if "class_names" in members else None
            ids = np.concatenate(list(_rows_of(archive, "ids"))) if "ids" in members else None
            if ids is not None and ids.ndim != 1:
                raise invalid(f"{path}: ids", "have one entry a row", f"shape {ids.shape}")
            order = _named_order(path, rule, None if names is None else np.concatenate(list(names)).tolist())
            precision = _precision(path, archive) if "precision" in members else None
            start = 0
            for scores in _rows_of(archive, found[0]):
                if scores.ndim != 2 or scores.dtype.kind != "f":
                    raise invalid(f"{path}: {found[0]}", "be floats of shape (n, K)", f"{scores.dtype} {scores.shape}")
                rule.check_classes(scores.shape[1])
                rows = slice(start, start + len(scores))
                if ids is not None and len(ids) < rows.stop:
                    raise invalid(f"{path}: ids", "have one entry a row", f"{len(ids)} entries")
                numbered: Sequence[Any] = range(rows.start, rows.stop) if ids is None else ids[rows].tolist()
                yield Block(numbered, scores if order is None else scores[:, order], kind, precision)
                start = rows.stop
            if ids is not None and len(ids) > start:
                raise invalid(f"{path}: ids", "have one entry a row", f"{len(ids)} entries for {start} rows")
    except (*DAMAGED_NPZ, OSError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise invalid(str(path), "be a whole .npz file of plain arrays", f"something else ({error})") from error


def _precision(path: Path, archive: zipfile.ZipFile) -> Precision:
    with archive.open("precision.npy") as handle:
        said = np.lib.format.read_array(handle, allow_pickle=False).tolist()
    if said != "bfloat16":
        raise invalid(f"{path}: precision", "be 'bfloat16' where it is given", repr(said))
    return "bfloat16"


def _named_order(path: Path, rule: RoutingRule, names: list[str] | None) -> list[int] | None:
    rule.check_classes(rule.n_classes if names is None else len(names))
    return class_order(rule.class_names, names, rule.n_classes, where=f"{path}: class_names")


def _rows_of(archive: zipfile.ZipFile, name: str) -> Iterator[NDArray[Any]]:
    """An array of an .npz, some rows at a time, straight from the archive; objects (pickle) are refused."""
    with archive.open(f"{name}.npy") as handle:
        version = np.lib.format.read_magic(handle)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(handle)
        if dtype.hasobject or not shape:
            raise ValueError(f"array {name} is not a plain array")
        if fortran:
            yield np.frombuffer(handle.read(), dtype=dtype).reshape(shape, order="F")
            return
        width = int(np.prod(shape[1:], dtype=np.int64))
        size = max(1, _BLOCK // max(1, width))
        for start in range(0, shape[0], size):
            rows = min(size, shape[0] - start)
            content = handle.read(rows * width * dtype.itemsize)
            yield np.frombuffer(content, dtype=dtype).reshape(rows, *shape[1:])
