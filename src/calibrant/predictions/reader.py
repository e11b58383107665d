"""The one reader of prediction files: any format, any length, block by block, with or without targets."""

import glob
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path, reading
from calibrant.predictions.checks import Precision, as_class_names, check_id_lengths
from calibrant.predictions.class_order import class_order, names_or_numbers
from calibrant.predictions.columns import Labels, check_columns
from calibrant.predictions.source import PredictionSource, RawBlock, Wanted

SUFFIXES = (".npz", ".csv", ".parquet")
# Scores of a quarter of a gigabyte stay on disk where nobody says otherwise.
_LARGE = 2**28
KINDS: tuple[Kind, ...] = ("logits", "probabilities")


@dataclass(frozen=True)
class Block:
    """Some rows of a file.

    Attributes:
        start: Number of the first of them in the whole file.
        scores: Shape (rows, K); their values are not checked.
        targets: Class numbers, or None where the file has none or they are not wanted.
        ids: One string or integer per row, or None.
        extras: Other columns by name.
    """

    start: int
    scores: NDArray[Any]
    targets: NDArray[np.int64] | None
    ids: NDArray[Any] | None
    extras: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Scan:
    """What a file of predictions is, before its rows are read; each iteration reads them anew.

    Attributes:
        source: The file or files.
        class_names: One per class, or None where classes have no names.
        order: For each class, its place among the file's; None where that is the same.
        whole: For a part of a folder, all its files: whether targets are names or numbers is a question about all rows.
    """

    source: PredictionSource
    class_names: tuple[str, ...] | None
    order: tuple[int, ...] | None = None
    whole: PredictionSource | None = None

    @property
    def where(self) -> str:
        """The file, for messages."""
        return self.source.where

    @property
    def kind(self) -> Kind:
        """What the scores are."""
        return self.source.layout.kind

    @property
    def precision(self) -> Precision:
        """The type that the scores came in."""
        return self.source.precision

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.source.layout.names)

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None for CSV, which has to be read to know it."""
        return self.source.rows

    @property
    def is_large(self) -> bool:
        """Whether the scores are better left on disk."""
        if self.n_rows is None:
            return Path(self.where).stat().st_size > _LARGE
        return self.n_rows * self.n_classes * self.source.dtype.itemsize > _LARGE

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
        """The same rows with classes in the order of `names`.

        A file whose classes are called 0..K-1 gets these names; other names must be the same in any order.
        """
        checked = as_class_names(names, self.n_classes)
        assert checked is not None
        order = class_order(checked, self.class_names, self.n_classes, where=f"{self.where}: class names")
        return replace(self, class_names=checked, order=None if order is None else tuple(order))

    def parts(self) -> "list[Scan]":
        """A scan for each file of a folder of Parquet files, in their order; any other file is one part."""
        from calibrant.predictions.parquet_file import ParquetSource

        if not isinstance(self.source, ParquetSource):
            return [self]
        return [replace(self, source=each, whole=self.source) for each in self.source.split()]

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def blocks(
        self, *, targets: bool = True, ids: bool = True, extras: Collection[str] | None = None
    ) -> Iterator[Block]:
        """The rows in order, block by block.

        Args:
            targets: Whether targets are read and checked.
            ids: Whether ids are read.
            extras: Other columns that are read; None for all of them.
        """
        wanted, start = Wanted(targets, ids, self.extras if extras is None else tuple(extras)), 0
        order = None if self.order is None else list(self.order)
        for raw, found in self.read(wanted):
            assert raw.scores is not None
            yield Block(start, raw.scores if order is None else raw.scores[:, order], found, raw.ids, raw.extras)
            start += raw.rows

    def read(self, wanted: Wanted) -> Iterator[tuple[RawBlock, NDArray[np.int64] | None]]:
        """Rows as the file has them, with class numbers for their targets."""
        labels = Labels(f"{self.where}: {self.source.layout.target}", self._names, self._distinct_targets)
        start = 0
        for raw in self.source.read(wanted):
            if raw.ids is not None and raw.ids.dtype.kind in "OU":
                check_id_lengths(raw.ids)
            if raw.rows:
                yield raw, None if raw.target is None else labels.codes(*raw.target, start)
            start += raw.rows

    @property
    def _names(self) -> Sequence[str]:
        return names_or_numbers(self.class_names, self.n_classes)

    def _distinct_targets(self) -> set[Any]:
        wanted = Wanted(target=True, scores=False)
        read = (self.whole or self.source).read(wanted)
        return {value for raw in read if raw.target is not None for value in raw.target[0]}

    def column(self, name: str | None = None) -> Iterator[NDArray[Any]]:
        """One column in blocks: an extra by its name, or the ids."""
        wanted = Wanted(id=name is None, extras=() if name is None else (name,), scores=False)
        for raw in self.source.read(wanted):
            part = raw.ids if name is None else raw.extras[name]
            if part is not None:
                yield part


def scan(
    source: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Scan:
    """Open a file of predictions, or a folder or pattern of Parquet files, to be read block by block.

    Args:
        source: `.npz` with the array `logits` or `probabilities`, optionally `targets`, `ids` and `class_names`;
            `.csv` or `.parquet` with columns `logit_<class>` or `probability_<class>` (or `prob_<class>`), optionally
            `target` and `id`; a folder with `.parquet` files, or a pattern like `parts/*.parquet`. Other columns of
            numbers or text are extras; an index without a name is passed over. A target is a class number or name.
        kind: What the scores are, for a file that does not say: array `scores`, columns `score_<class>`.
        columns: Where the target and the id have other names: `{"target": "label", "id": "case"}`.
        class_names: Names of the classes, in the order wanted: for text labels of nameless classes, or for another
            order than the file's.
    """
    if kind not in (None, *KINDS):
        raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
    found = _open(source, kind, check_columns(columns))
    opened = Scan(found, found.class_names)
    return opened if class_names is None else opened.with_class_names(class_names)


def _open(source: str | Path, kind: Kind | None, columns: dict[str, str]) -> PredictionSource:
    path = as_path(source, "source")
    if path.suffix.lower() in (".npz", ".csv") and not path.is_dir():
        with reading(path), path.open("rb"):
            pass
        if path.suffix.lower() == ".npz":
            from calibrant.predictions.npz import NpzSource

            return NpzSource(path, kind, columns)
        from calibrant.predictions.csv_file import CsvSource

        return CsvSource(path, kind, columns)
    from calibrant.predictions.parquet_file import ParquetSource

    return ParquetSource(str(path), parquet_parts(path), kind, columns)


def parquet_parts(path: Path) -> list[Path]:
    """The Parquet files of a path, a folder or a pattern, in the order of their names."""
    if path.is_dir():
        parts = sorted(part for part in path.rglob("*.parquet") if not part.name.startswith(("_", ".")))
        if not parts:
            way_out = f"The test predictions of a run lie in {path}/predictions/test.npz."
            raise invalid("source", "be a file, or a folder with .parquet files", f"the folder {path}", way_out)
        return parts
    if not path.suffix and not path.exists():  # meant as a folder
        raise InvalidInput(f"{path} does not exist.")
    if path.suffix.lower() != ".parquet":
        raise invalid("source", f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", str(path))
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    parts = [Path(part) for part in sorted(glob.glob(str(path)))]  # noqa: PTH207 (absolute patterns)
    if not parts:
        raise InvalidInput(f"{path} does not exist: no file has such a name.")
    return parts


class DistinctIds:
    """Refuses an id that comes twice, and remembers eight bytes per row instead of the ids.

    Args:
        secret: Random bytes for parts that several processes read, the same for all: they must hash alike.
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
        """Note the ids of some more rows."""
        if ids.dtype.kind in "iu":
            self._keys.append(ids.astype(np.int64))
        else:
            self._keys.append(np.fromiter(map(self._hash, ids.tolist()), dtype=np.int64, count=len(ids)))

    def merge(self, other: "DistinctIds") -> None:
        """Note the ids of another part."""
        self._keys += other._keys  # noqa: SLF001 (ourselves)

    def check(self, again: Callable[[], Iterable[NDArray[Any]]]) -> None:
        """Look for repeats; `again` reads all ids a second time where two seem to be the same."""
        if not self._keys:
            return
        keys = np.concatenate(self._keys)
        self._keys.clear()
        keys.sort()
        twice = set(keys[1:][keys[1:] == keys[:-1]].tolist())
        seen: set[Any] = set()
        row = 0
        for ids in again() if twice else ():
            for name in ids.tolist():
                if self._hash(name) in twice or name in twice:
                    if name in seen:
                        raise invalid("ids", "be distinct", f"{name!r}"[:60] + f" again in row {row}")
                    seen.add(name)
                row += 1
