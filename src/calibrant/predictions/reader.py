"""The one reader of prediction files: any format, any length, block by block, with or without targets."""

import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path
from calibrant.predictions.columns import (
    DistinctIds,
    Labels,
    PredictionSource,
    RawBlock,
    as_class_names,
    check_id_lengths,
    check_unfolded,
    class_order,
    names_or_numbers,
)
from calibrant.predictions.npz import NpzSource
from calibrant.predictions.readings import KINDS, Layout, Request, check_columns, plain_label, shortened
from calibrant.predictions.rows import PRECISIONS, OnDisk, Precision, check_shape, spool
from calibrant.predictions.table_files import TABLE_FORMATS, CsvSource, ParquetSource

FORMATS: dict[str, type[NpzSource | CsvSource | ParquetSource]] = {".npz": NpzSource, **TABLE_FORMATS}
*_FIRST, _LAST = FORMATS
ENDINGS = f"{', '.join(_FIRST)} or {_LAST}"
# Scores of more than a quarter of a gigabyte stay on disk with mmap="auto".
_LARGE = 2**28

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|nan")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NO_SCORES = np.empty((0, 0))


@dataclass(frozen=True)
class Block:
    """Some rows of a file.

    Attributes:
        start: Number of the first of these rows in the whole file.
        scores: Shape (rows, K), or (rows, 1) for a class and a score; their values are not checked.
        targets: Class numbers, or None if the file has none or they are not wanted.
        predicted: Numbers of the predicted classes, for a class and a score.
        ids: One string or integer per row, or None.
        extras: Other columns by name.
    """

    start: int
    scores: NDArray[Any]
    targets: NDArray[np.int64] | None
    ids: NDArray[Any] | None
    extras: Mapping[str, NDArray[Any]]
    predicted: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Scan:
    """Predictions in a file, or in several with the same columns. Each iteration reads the rows again."""

    where: str  # the file or folder, for messages
    sources: tuple[PredictionSource, ...]
    layout: Layout
    class_names: tuple[str, ...] | None
    n_classes: int
    order: tuple[int, ...] | None = None  # for each class, its place in the file; None if that is the same
    text_labels: bool = False  # whether labels are text, so that a label such as 12 is a name and no class number
    # For a part of a folder, all its files: all rows together decide whether targets are names or numbers.
    whole: tuple[PredictionSource, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the scores are."""
        return self.layout.kind

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the scores."""
        return self.sources[0].dtype

    @property
    def precision(self) -> Precision:
        """Precision of the scores."""
        return self.sources[0].precision

    @property
    def has_all_classes(self) -> bool:
        """Whether there is a score for every class; False for a class and a score."""
        return self.layout.predicted is None

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None for text files, which do not declare it."""
        rows = 0
        for source in self.sources:
            if source.rows is None:
                return None
            rows += source.rows
        return rows

    @property
    def is_large(self) -> bool:
        """Whether the scores should stay on disk."""
        if self.n_rows is None:
            return sum(source.stored for source in self.sources) > _LARGE
        return self.n_rows * self.layout.width * self.dtype.itemsize > _LARGE

    @property
    def has_targets(self) -> bool:
        """Whether there are targets."""
        return self.layout.target is not None

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the other columns."""
        return self.layout.extras

    def with_class_names(self, names: Sequence[str]) -> "Scan":
        """Return the same rows with classes in the order of `names`.

        A file whose classes are called 0..K-1 gets these names. Other names must be the same, in any order.
        """
        if not self.has_all_classes:
            return replace(self, class_names=as_class_names(names, len(names)), n_classes=len(names))
        checked = as_class_names(names, self.n_classes)
        assert checked is not None
        places = class_order(checked, self.class_names, self.n_classes, where=f"{self.where}: class names")
        order = None
        if places is not None:
            order = tuple(places)
        return replace(self, class_names=checked, order=order)

    def parts(self) -> "list[Scan]":
        """Return a scan for each file of a folder, in order; any other file is one part.

        The rows of text files in a folder are counted, so that `n_rows` of each part is known.
        """
        if len(self.sources) == 1:
            return [self]
        for source in self.sources:
            if source.rows is None:
                source.rows = sum(block.rows for block in source.read(()))
        return [replace(self, where=part.where, sources=(part,), whole=self.sources) for part in self.sources]

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def blocks(
        self, *, targets: bool = True, ids: bool = True, extras: Collection[str] | None = None, scores: bool = True
    ) -> Iterator[Block]:
        """Yield the rows in order, block by block.

        Args:
            targets: Whether to read and check targets.
            ids: Whether to read ids.
            extras: Other columns to read; None for all of them.
            scores: Whether to read scores; if not, theirs is the shape (rows, 0).
        """
        layout = self.layout
        others = list(self.extras if extras is None else extras)
        names = list(others)
        for column, is_read in ((layout.target, targets), (layout.id, ids), (layout.predicted, scores)):
            if column is not None and is_read:
                names.append(column)
        labels = self._labels()
        start = 0
        for raw in self._read(names, scores=scores):
            if raw.rows:
                codes = {name: labels[name].codes(raw.columns[name], start) for name in labels if name in raw.columns}
                row_scores = raw.scores
                if row_scores is None:
                    row_scores = np.empty((raw.rows, 0))
                elif self.order is not None:
                    row_scores = row_scores[:, list(self.order)]
                row_ids = raw.columns.get(layout.id or "")
                if row_ids is not None and row_ids.dtype.kind in "OU":
                    check_id_lengths(row_ids)
                columns = {name: raw.columns[name] for name in others}
                true, predicted = codes.get(layout.target or ""), codes.get(layout.predicted or "")
                yield Block(start, row_scores, true, row_ids, columns, predicted)
            start += raw.rows

    def _read(self, names: Sequence[str], *, scores: bool) -> Iterator[RawBlock]:
        for source in self.sources:
            yield from source.read(names, scores=scores)

    def _labels(self) -> dict[str, Labels]:
        """What converts the columns of targets and of predicted classes to class numbers."""
        names = names_or_numbers(self.class_names, self.n_classes)

        def distinct(column: str) -> set[Any]:
            if column != self.layout.target:
                return set(names)
            sources = self.whole or self.sources
            return {value for source in sources for raw in source.read([column]) for value in raw.columns[column][0]}

        return {
            column: Labels(f"{self.where}: {column}", names, partial(distinct, column), only_names=self.text_labels)
            for column in self.layout.labels
        }

    def column(self, name: str | None = None) -> Iterator[NDArray[Any]]:
        """Yield one column in blocks: an extra by its name, or the ids."""
        extras = () if name is None else (name,)
        for block in self.blocks(targets=False, ids=name is None, extras=extras, scores=False):
            values = block.ids if name is None else block.extras[name]
            assert values is not None
            yield values


def scan(
    source: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
    known_classes: Sequence[str] | None = None,
) -> Scan:
    """Open a file of predictions, or a folder or pattern of files, to be read block by block.

    Args:
        source: `.npz` with the array `logits` or `probabilities`, optionally `targets`, `ids` and `class_names`;
            `.csv`, `.tsv`, `.jsonl` or `.parquet` with one of the forms of `calibrant.predictions.readings`; a folder
            with files of one of these formats, or a pattern like `parts/*.parquet`. Other columns of numbers or text
            are extras; an index without a name is ignored. A target is a class number or name.
        kind: What the scores are, for a file that does not say it.
        columns: Other names of columns: `{"target": "label", "id": "case", "scores": "p_*"}`.
        class_names: Names of the classes, in the order wanted: for text labels of nameless classes, or for another
            order than the file's.
        known_classes: Names of the classes of a policy: columns of scores may have these names, and cases without
            labels have these two classes if there is one column of scores.
    """
    if kind not in (None, *KINDS):
        raise invalid("kind", f"be one of {', '.join(KINDS)}", repr(kind))
    path = as_path(source, "source")
    request = Request(kind, check_columns(columns), class_names or known_classes)
    sources: list[PredictionSource] = []
    for file in prediction_files(path):
        sources.append(FORMATS[file.suffix.lower()](file, request))
        request = replace(request, like=sources[0].layout)
    if len(sources) == 1:
        return opened_scan(sources, class_names)
    _join(str(path), sources)
    return opened_scan(sources, class_names, str(path))


def _join(where: str, sources: Sequence[PredictionSource]) -> None:
    """Give the scores of several files the widest type among them, and refuse files that unfold to too much."""
    dtype = np.result_type(*(source.dtype for source in sources))
    precision = PRECISIONS[dtype.itemsize]
    if all(source.precision == "bfloat16" for source in sources):
        precision = "bfloat16"
    for source in sources:
        source.dtype, source.precision = dtype, precision
    stored = sum(source.stored for source in sources)
    check_unfolded(where, sum(source.unfolded for source in sources), stored, most=20)


def opened_scan(
    sources: Sequence[PredictionSource], class_names: Sequence[str] | None, where: str | None = None
) -> Scan:
    """Return the scan of open files; the labels of a class and a score are collected."""
    first = sources[0]
    n_classes = len(first.class_names or first.layout.names)
    opened = Scan(where or first.where, tuple(sources), first.layout, first.class_names, n_classes)
    if not opened.has_all_classes and opened.class_names is None:
        labels = set[str]().union(*(_plain_labels(sources, column) for column in opened.layout.labels))
        if all(label.isdecimal() and len(label) < 6 for label in labels):
            largest = max(map(int, labels), default=0)
            opened = replace(opened, n_classes=max(largest + 1, 2))
        else:
            opened = replace(opened, class_names=tuple(sorted(labels)), n_classes=len(labels), text_labels=True)
    if class_names is not None:
        opened = opened.with_class_names(class_names)
    return opened


def _plain_labels(sources: Sequence[PredictionSource], column: str) -> set[str]:
    """The labels of a column. A number among text stays as it is written: OCR that reads 007 did not read 7."""
    labels = set[str]().union(*(source.labels_in(column) for source in sources))
    plain = {plain_label(label) for label in labels}
    if all(label.isdecimal() for label in plain):
        return plain
    return {label.strip() for label in labels}


def prediction_files(path: Path) -> list[Path]:
    """List the files of a path, a folder or a pattern, in the order of their names."""
    if path.is_dir():
        return _files_of_folder(path)
    if not path.suffix and not path.exists():  # meant as a folder
        raise InvalidInput(f"{path} does not exist.")
    if path.suffix.lower() not in FORMATS:
        raise invalid("source", f"end in {ENDINGS}", str(path))
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    files = [Path(file) for file in sorted(glob.glob(str(path)))]  # noqa: PTH207 (absolute patterns)
    if not files:
        raise InvalidInput(f"{path} does not exist: no file has such a name.")
    return files


def _files_of_folder(folder: Path) -> list[Path]:
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in FORMATS and not file.name.startswith(("_", ".")) and not file.is_dir()
    )
    rule = f"be a file, or a folder of {ENDINGS} files with parts of the same predictions"
    if not files:
        raise invalid("source", rule, f"the folder {folder}")
    of_run = [file for file in files if file.name in ("test.npz", "val.npz")]
    if of_run:
        hint = f"The predictions of a run lie in files of their own, for example {of_run[0]}."
        raise invalid("source", rule, f"the folder {folder}", hint)
    endings = {file.suffix.lower() for file in files}
    if len(endings) > 1:
        raise invalid("source", rule, f"the folder {folder} with {', '.join(sorted(endings))}")
    return files


@dataclass(frozen=True)
class Content:
    """The content of a whole file. What stays on disk is read when it is used, ids by calling `ids`."""

    scores: NDArray[Any] | OnDisk
    targets: NDArray[np.int64]
    ids: NDArray[Any] | Callable[[], NDArray[Any]] | None
    extras: Mapping[str, NDArray[Any]]
    predicted: NDArray[np.int64] | None = None


def load_content(opened: Scan, *, mmap: bool) -> Content:
    """Read all rows. With `mmap`, scores of all classes, ids and extras stay on disk."""
    if not opened.has_targets:
        raise _without_targets(opened)
    mmap = mmap and opened.has_all_classes
    in_place = _in_place(opened, mmap=mmap)
    extras: tuple[str, ...] = ()
    if not mmap:
        extras = opened.extras
    rest: list[Block] = []
    distinct = DistinctIds()

    def score_blocks() -> Iterator[NDArray[Any]]:
        """Yield the scores, and keep the rest of each block."""
        for block in opened.blocks(extras=extras, scores=in_place is None):
            yield block.scores
            ids = block.ids
            if mmap and ids is not None:
                distinct.add(ids)
                ids = None
            rest.append(replace(block, scores=_NO_SCORES, ids=ids))

    scores: NDArray[Any] | OnDisk
    if in_place is not None:
        scores = in_place
        for _ in score_blocks():
            pass
    elif mmap:
        scores = spool(score_blocks(), opened.layout.width, opened.dtype)
    else:
        scores = _in_memory(score_blocks(), opened)
    check_shape(scores.shape, scores.dtype, opened.kind)
    targets = _joined(block.targets for block in rest)
    assert targets is not None
    if mmap:
        distinct.check(opened.column)
        on_disk = _ColumnsOnDisk(opened, len(targets))
        return Content(scores, targets, on_disk.read if opened.layout.id else None, on_disk)
    ids = _joined(block.ids for block in rest)
    columns = {name: _typed(np.concatenate([block.extras[name] for block in rest]), opened) for name in extras}
    return Content(scores, targets, ids, columns, _joined(block.predicted for block in rest))


def _without_targets(opened: Scan) -> InvalidInput:
    column = "COLUMN"
    if len(opened.extras) == 1:
        column = opened.extras[0]
    hint = f"Name their column: --columns target={column} (columns= in Python)."
    there = shortened(opened.extras, 12) or "no other columns"
    return invalid(opened.where, "have targets", f"scores and {there}", hint)


def _in_place(opened: Scan, *, mmap: bool) -> OnDisk | None:
    """The scores in the file itself, if they can be read there."""
    if not mmap or opened.order is not None or len(opened.sources) > 1:
        return None
    return opened.sources[0].on_disk()


def _in_memory(blocks: Iterator[NDArray[Any]], opened: Scan) -> NDArray[Any]:
    scores = np.empty((opened.n_rows or 0, opened.layout.width), opened.dtype)
    if opened.n_rows is None:
        return np.concatenate([scores, *blocks])
    # Memory is taken once. Sources compare the number of rows that they declare with the file.
    start = 0
    for block in blocks:
        scores[start : start + len(block)] = block
        start += len(block)
    return scores


def _joined(columns: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    there = [column for column in columns if column is not None]
    if not there:
        return None
    return np.concatenate(there)


class _ColumnsOnDisk(Mapping[str, NDArray[Any]]):
    """Extras and ids that stay in their file: a column is read each time it is used."""

    def __init__(self, opened: Scan, rows: int) -> None:
        self._scan = opened
        self._rows = rows

    def read(self, name: str | None = None) -> NDArray[Any]:
        """Read an extra by its name, or the ids."""
        values = np.concatenate(list(self._scan.column(name)))
        if len(values) != self._rows:
            rows = f"{len(values)} rows, {self._rows} before"
            raise InvalidInput(f"{self._scan.where} was changed while it was in use: {rows}.")
        return values

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._scan.extras:
            raise KeyError(name)
        return _typed(self.read(name), self._scan)

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan.extras)

    def __len__(self) -> int:
        return len(self._scan.extras)


def _typed(values: NDArray[Any], opened: Scan) -> NDArray[Any]:
    """Convert a column of CSV to numbers if all cells are numbers and none looks like a code (007)."""
    if opened.sources[0].typed:
        return values
    distinct = set(values.tolist())
    if not all(_NUMBER.fullmatch(value) for value in distinct):
        return values
    if all(_WHOLE.fullmatch(value) for value in distinct):
        return values.astype(np.int64)
    return values.astype(np.float64)
