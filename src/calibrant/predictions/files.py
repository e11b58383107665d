"""Whole predictions from files, and back."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path
from calibrant.predictions.checks import check_shape
from calibrant.predictions.class_order import shortened
from calibrant.predictions.on_disk import OnDisk, spool
from calibrant.predictions.reader import SUFFIXES, DistinctIds, Scan
from calibrant.predictions.source import Wanted

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|nan")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes:
        scores: In memory, or on disk.
        targets: Class numbers.
        ids: One per row, None, or a function that reads them.
        extras: Other columns by name, read or to be read.
    """

    scores: NDArray[Any] | OnDisk
    targets: NDArray[np.int64]
    ids: NDArray[Any] | Callable[[], NDArray[Any]] | None
    extras: Mapping[str, NDArray[Any]]


class Columns(Mapping[str, NDArray[Any]]):
    """Extras that stay in their file: a column is read each time it is asked for."""

    def __init__(self, scan: Scan, rows: int) -> None:
        self._scan, self._rows = scan, rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._scan.extras:
            raise KeyError(name)
        return _typed(_column(self._scan, self._rows, name), self._scan)

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan.extras)

    def __len__(self) -> int:
        return len(self._scan.extras)


def load(scan: Scan, *, mmap: bool) -> Content:
    """Read all rows; with `mmap` scores, ids and extras stay on disk."""
    if not scan.has_targets:
        way_out = "Name their column: --columns target=COLUMN (columns= in Python)."
        there = shortened(scan.extras, 12) or "no other columns"
        raise invalid(scan.where, "have targets", f"scores and {there}", way_out)
    content = _load_on_disk(scan) if mmap else _load_in_memory(scan)
    check_shape(scan.kind, content.scores.shape, content.scores.dtype, scan.kind)
    if scan.n_rows not in (None, content.scores.shape[0]):
        raise invalid(scan.where, f"hold the {scan.n_rows} rows that it declares", content.scores.shape[0])
    return content


def load_part(part: Scan) -> "Predictions":
    """The rows of one part of a folder, in memory."""
    from calibrant.predictions.core import Predictions

    content = load(part, mmap=False)
    make = Predictions.from_logits if part.kind == "logits" else Predictions.from_probabilities
    return make(
        content.scores[:], content.targets, ids=content.ids, class_names=part.class_names, extras=content.extras
    )


def _load_in_memory(scan: Scan) -> Content:
    targets, ids = [np.empty(0, np.int64)], []
    extras: dict[str, list[NDArray[Any]]] = {name: [] for name in scan.extras}
    # Where the number of rows is declared, the room for them is made once. Sources have compared it with the file.
    scores = [np.empty((scan.n_rows or 0, scan.n_classes), scan.source.dtype)]
    filled = 0
    for block in scan:
        if scan.n_rows is None:
            scores.append(block.scores)
        else:
            scores[0][filled : filled + len(block)] = block.scores
        filled += len(block)
        assert block.targets is not None
        targets.append(block.targets)
        if block.ids is not None:
            ids.append(block.ids)
        for name, column in block.extras.items():
            extras[name].append(column)
    return Content(
        (scores[0] if scan.n_rows is not None else np.concatenate(scores))[:filled],
        np.concatenate(targets),
        np.concatenate(ids) if ids else None,
        {name: _typed(np.concatenate(column), scan) for name, column in extras.items() if column},
    )


def _load_on_disk(scan: Scan) -> Content:
    targets = [np.empty(0, np.int64)]
    distinct = DistinctIds()
    in_place = scan.source.on_disk() if scan.order is None else None

    def scores() -> Iterator[NDArray[Any]]:
        for raw, found in scan.read(Wanted(target=True, id=True, scores=in_place is None)):
            assert found is not None
            targets.append(found)
            if raw.ids is not None:
                distinct.add(raw.ids)
            if raw.scores is not None:
                yield raw.scores if scan.order is None else raw.scores[:, list(scan.order)]

    found = in_place
    if found is None:
        found = spool(scores(), scan.n_classes, scan.source.dtype)
    else:
        list(scores())  # there are none, but targets and ids
    distinct.check(scan.column)
    rows = found.shape[0]
    ids = partial(_column, scan, rows) if scan.has_ids else None
    return Content(found, np.concatenate(targets), ids, Columns(scan, rows))


def _column(scan: Scan, rows: int, name: str | None = None) -> NDArray[Any]:
    """A column of a file that was read before."""
    found = np.concatenate(list(scan.column(name)))
    if len(found) != rows:
        raise InvalidInput(f"{scan.where} was changed while it was in use: {len(found)} rows, {rows} before.")
    return found


def _typed(values: NDArray[Any], scan: Scan) -> NDArray[Any]:
    """A column of a file without types: numbers, where all cells are numbers and none looks like a code (007)."""
    if scan.source.typed:
        return values
    distinct = set(values.tolist())
    if not all(_NUMBER.fullmatch(value) for value in distinct):
        return values
    whole = all(_WHOLE.fullmatch(value) for value in distinct)
    return values.astype(np.int64 if whole else np.float64)


def save(predictions: "Predictions", path: str | Path) -> None:
    """Write all or nothing, in the format that the ending names."""
    suffix = as_path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise invalid("path", f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", str(path))
    if suffix == ".npz":
        from calibrant.predictions.npz import write_npz

        write_npz(predictions, path)
        return
    if predictions.kind == "probabilities" and predictions.precision in ("float16", "bfloat16"):
        # Read back as float64 they would have to meet its tolerance, which rounding to half precision breaks.
        raise invalid("path", "end in .npz for half-precision probabilities", str(path))
    if suffix == ".csv":
        from calibrant.predictions.csv_file import write_csv

        write_csv(predictions, path)
        return
    from calibrant.predictions.parquet_file import write_parquet

    write_parquet(predictions, path)
