"""The one reader of prediction files: any format, any length, block by block, with or without targets."""

import glob
import hashlib
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
    SAME_ID,
    Labels,
    Parts,
    PredictionSource,
    as_class_names,
    check_id_lengths,
    class_order,
    names_or_numbers,
)
from calibrant.predictions.npz import NpzSource
from calibrant.predictions.readings import KINDS, Request, check_columns, plain_label, shortened
from calibrant.predictions.rows import OnDisk, Precision, check_shape, spool
from calibrant.predictions.table_files import TABLE_FORMATS, CsvSource, ParquetSource

FORMATS: dict[str, type[NpzSource | CsvSource | ParquetSource]] = {".npz": NpzSource, **TABLE_FORMATS}
*_FIRST, _LAST = FORMATS
ENDINGS = f"{', '.join(_FIRST)} or {_LAST}"
# Scores of more than a quarter of a gigabyte stay on disk with mmap="auto".
_LARGE = 2**28

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|nan")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


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
    """A file of predictions whose rows are not read yet. Each iteration reads them again."""

    source: PredictionSource
    class_names: tuple[str, ...] | None
    order: tuple[int, ...] | None = None  # for each class, its place in the file; None if that is the same
    answers: tuple[str, ...] | None = None  # all labels of a class and a score, in order
    text_labels: bool = False  # whether these are text, so that a label such as 12 is a name and no class number
    # For a part of a folder, all its files: all rows together decide whether targets are names or numbers.
    whole: PredictionSource | None = None

    @property
    def where(self) -> str:
        """The file, for messages."""
        return self.source.where

    @property
    def kind(self) -> Kind:
        """Whether the scores are logits or probabilities."""
        return self.source.layout.kind

    @property
    def precision(self) -> Precision:
        """Precision of the scores."""
        return self.source.precision

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.answers or self.source.layout.names)

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None for CSV, which does not declare it."""
        return self.source.rows

    @property
    def is_large(self) -> bool:
        """Whether the scores should stay on disk."""
        if self.n_rows is None:
            return self.source.stored > _LARGE
        return self.n_rows * self.source.layout.width * self.source.dtype.itemsize > _LARGE

    @property
    def has_targets(self) -> bool:
        """Whether there are targets."""
        return self.source.layout.target is not None

    @property
    def has_ids(self) -> bool:
        """Whether there are ids."""
        return self.source.layout.id is not None

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the other columns."""
        return self.source.layout.extras

    def with_class_names(self, names: Sequence[str]) -> "Scan":
        """Return the same rows with classes in the order of `names`.

        A file whose classes are called 0..K-1 gets these names. Other names must be the same, in any order.
        """
        if self.answers is not None:
            checked = as_class_names(names, len(names))
            return replace(self, class_names=checked, answers=checked)
        checked = as_class_names(names, self.n_classes)
        assert checked is not None
        places = class_order(checked, self.class_names, self.n_classes, where=f"{self.where}: class names")
        order = None
        if places is not None:
            order = tuple(places)
        return replace(self, class_names=checked, order=order)

    def parts(self) -> "list[Scan]":
        """Return a scan for each file of a folder, in order; any other file is one part.

        The rows of CSV files are counted, so that `n_rows` of each part is known.
        """
        if not isinstance(self.source, Parts):
            return [self]
        self.source.count()
        return [replace(self, source=source, whole=self.source) for source in self.source.sources]

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
        layout = self.source.layout
        others = list(self.extras if extras is None else extras)
        names = list(others)
        for column, is_read in ((layout.target, targets), (layout.id, ids), (layout.predicted, scores)):
            if column is not None and is_read:
                names.append(column)
        labels = self._labels()
        start = 0
        for raw in self.source.read(names, scores=scores):
            if raw.rows:
                codes = {column: labels[column].codes(*values, start) for column, values in raw.labels.items()}
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

    def _labels(self) -> dict[str, Labels]:
        """What converts the columns of targets and of predicted classes to class numbers."""
        target, names = self.source.layout.target, names_or_numbers(self.class_names, self.n_classes)

        def distinct(column: str) -> set[Any]:
            if column != target:
                return set(names)
            blocks = (self.whole or self.source).read([column])
            return {value for raw in blocks for value in raw.labels[column][0]}

        return {
            column: Labels(f"{self.where}: {column}", names, partial(distinct, column), only_names=self.text_labels)
            for column in self.source.layout.labels
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
            `.csv`, `.jsonl` or `.parquet` with one of the forms of `calibrant.predictions.readings`; a folder with
            files of one of these formats, or a pattern like `parts/*.parquet`. Other columns of numbers or text are
            extras; an index without a name is ignored. A target is a class number or name.
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
    opened = sources[0]
    if len(sources) > 1:
        opened = Parts(str(path), sources)
    return opened_scan(opened, class_names)


def opened_scan(source: PredictionSource, class_names: Sequence[str] | None = None) -> Scan:
    """Return the scan of an open file; the labels of a class and a score are collected."""
    found = Scan(source, source.class_names)
    layout = source.layout
    if layout.predicted is not None and source.class_names is not None:
        found = replace(found, answers=source.class_names)
    elif layout.predicted is not None:
        labels = _labels_of(source, layout.predicted)
        if layout.target is not None:
            labels |= _labels_of(source, layout.target)
        if all(label.isdecimal() and len(label) < 6 for label in labels):
            largest = max(map(int, labels), default=0)
            found = replace(found, answers=names_or_numbers(None, max(largest + 1, 2)))
        else:
            names = tuple(sorted(labels))
            found = replace(found, class_names=names, answers=names, text_labels=True)
    if class_names is not None:
        found = found.with_class_names(class_names)
    return found


def _labels_of(source: PredictionSource, column: str) -> set[str]:
    """The labels of a column. A number among text stays as it is written: OCR that reads 007 did not read 7."""
    labels = source.labels_in(column)
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


class DistinctIds:
    """Refuses an id that occurs twice. It remembers eight bytes per row instead of the ids.

    Processes that read parts of the same rows must hash alike: `secret` are random bytes, the same for all of them.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._keys: list[NDArray[np.int64]] = []
        self._secret = secret

    def _hash(self, name: Any) -> int:
        # Python's hash has a secret seed, so nobody can make many ids that share one.
        if self._secret is None:
            return hash(name)
        digest = hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest, "little", signed=True)

    def add(self, ids: NDArray[Any]) -> None:
        """Remember the ids of some more rows."""
        if ids.dtype.kind in "iu":
            self._keys.append(ids.astype(np.int64))
        else:
            self._keys.append(np.fromiter(map(self._hash, ids.tolist()), dtype=np.int64, count=len(ids)))

    def merge(self, other: "DistinctIds") -> None:
        """Remember the ids of another part."""
        self._keys += other._keys  # noqa: SLF001 (the same class)

    def check(self, again: Callable[[], Iterable[NDArray[Any]]]) -> None:
        """Raise an error if an id occurs twice. `again` reads all ids once more if two seem to be the same."""
        if not self._keys:
            return
        keys = np.concatenate(self._keys)
        self._keys.clear()
        keys.sort()
        twice = set(keys[1:][keys[1:] == keys[:-1]].tolist())
        if not twice:
            return
        seen: set[Any] = set()
        row = 0
        for ids in again():
            for name in ids.tolist():
                if self._hash(name) in twice or name in twice:
                    if name in seen:
                        raise invalid("ids", "be distinct", f"{name!r}"[:60] + f" again in row {row}", SAME_ID)
                    seen.add(name)
                row += 1


@dataclass(frozen=True)
class Content:
    """The content of a whole file; scores, ids and extras in memory or on disk, where a function reads the ids."""

    scores: NDArray[Any] | OnDisk
    targets: NDArray[np.int64]
    ids: NDArray[Any] | Callable[[], NDArray[Any]] | None
    extras: Mapping[str, NDArray[Any]]
    predicted: NDArray[np.int64] | None = None


def load_content(opened: Scan, *, mmap: bool) -> Content:
    """Read all rows. With `mmap`, scores, ids and extras stay on disk."""
    if not opened.has_targets:
        column = "COLUMN"
        if len(opened.extras) == 1:
            column = opened.extras[0]
        hint = f"Name their column: --columns target={column} (columns= in Python)."
        there = shortened(opened.extras, 12) or "no other columns"
        raise invalid(opened.where, "have targets", f"scores and {there}", hint)
    if mmap and opened.answers is None:
        content = _on_disk(opened)
    else:
        content = _in_memory(opened)
    scores = content.scores
    check_shape(opened.kind, scores.shape, scores.dtype, opened.kind)
    if opened.n_rows not in (None, scores.shape[0]):
        raise invalid(opened.where, f"hold the {opened.n_rows} rows that it declares", scores.shape[0])
    return content


def _in_memory(opened: Scan) -> Content:
    # If the number of rows is declared, memory is taken once. Sources have compared it with the file.
    scores = np.empty((opened.n_rows or 0, opened.source.layout.width), opened.source.dtype)
    score_blocks, targets, predicted, ids = [scores], [np.empty(0, np.int64)], [], []
    extras: dict[str, list[NDArray[Any]]] = {name: [] for name in opened.extras}
    for block in opened:
        if opened.n_rows is None:
            score_blocks.append(block.scores)
        else:
            scores[block.start : block.start + len(block)] = block.scores
        assert block.targets is not None
        targets.append(block.targets)
        if block.predicted is not None:
            predicted.append(block.predicted)
        if block.ids is not None:
            ids.append(block.ids)
        for name, values in block.extras.items():
            extras[name].append(values)
    if opened.n_rows is None:
        scores = np.concatenate(score_blocks)
    columns = {name: _typed(np.concatenate(values), opened) for name, values in extras.items() if values}
    return Content(
        scores=scores,
        targets=np.concatenate(targets),
        ids=np.concatenate(ids) if ids else None,
        extras=columns,
        predicted=np.concatenate(predicted) if predicted else None,
    )


def _on_disk(opened: Scan) -> Content:
    in_place = None
    if opened.order is None:
        in_place = opened.source.on_disk()
    targets = [np.empty(0, np.int64)]
    distinct = DistinctIds()

    def read() -> Iterator[NDArray[Any]]:
        for block in opened.blocks(extras=(), scores=in_place is None):
            assert block.targets is not None
            targets.append(block.targets)
            if block.ids is not None:
                distinct.add(block.ids)
            yield block.scores

    if in_place is None:
        scores = spool(read(), opened.source.layout.width, opened.source.dtype)
    else:
        scores = in_place
        for _ in read():  # targets and ids
            pass
    distinct.check(opened.column)
    rows = sum(map(len, targets))
    ids = None
    if opened.has_ids:
        ids = partial(_column, opened, rows)
    return Content(scores, np.concatenate(targets), ids, _ExtrasOnDisk(opened, rows))


class _ExtrasOnDisk(Mapping[str, NDArray[Any]]):
    """Extras that stay in their file: a column is read each time it is used."""

    def __init__(self, opened: Scan, rows: int) -> None:
        self._scan = opened
        self._rows = rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._scan.extras:
            raise KeyError(name)
        return _typed(_column(self._scan, self._rows, name), self._scan)

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan.extras)

    def __len__(self) -> int:
        return len(self._scan.extras)


def _column(opened: Scan, rows: int, name: str | None = None) -> NDArray[Any]:
    """Read a column of a file that was read before."""
    values = np.concatenate(list(opened.column(name)))
    if len(values) != rows:
        raise InvalidInput(f"{opened.where} was changed while it was in use: {len(values)} rows, {rows} before.")
    return values


def _typed(values: NDArray[Any], opened: Scan) -> NDArray[Any]:
    """Convert a column of CSV to numbers if all cells are numbers and none looks like a code (007)."""
    if opened.source.typed:
        return values
    distinct = set(values.tolist())
    if not all(_NUMBER.fullmatch(value) for value in distinct):
        return values
    if all(_WHOLE.fullmatch(value) for value in distinct):
        return values.astype(np.int64)
    return values.astype(np.float64)
