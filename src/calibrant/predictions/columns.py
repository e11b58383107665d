"""What belongs to scores: targets, ids, class names and other columns; and the files that hold them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, labels
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions.readings import RESERVED_PREFIXES, WHOLE, Layout, first_repeated, plain_label, shortened
from calibrant.predictions.rows import OnDisk, Precision

_SAME_ID = "If rows belong together, give their column another name than id, and pass that name as clusters."
# Names that other columns cannot have, because files use them for targets, ids and scores.
_RESERVED = ("target", "id", "targets", "ids", "logits", "probabilities", "scores", "class_names", "precision", "")
_LONGEST_ID = 1000
# Scores of one block: 4 MB of float64.
_BLOCK_CELLS = 2**19
# Real data unfolds to a few times its size; a file that unfolds to more than this was made to fill memory.
_MOST_UNFOLDED = 10
# A small file may hold zeros only. This many bytes do no harm, although metrics may need five times as many.
_HARMLESS = 2**26
_STORE_AGAIN = "If the data is really so, write it again without compression."


def as_labels(name: str, values: Any) -> NDArray[Any]:
    """Return labels as an array in which None and NaN stay what they are: among text NumPy would write "nan"."""
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        values = np.asarray(values, dtype=object)
    return as_array(name, values)


def as_targets(
    targets: Any, rows: int, classes: int, class_names: Sequence[str] | None = None, *, name: str = "targets"
) -> NDArray[np.int64]:
    """Check one label per row: an integer in 0..K-1, or one of the class names."""
    values = as_labels(name, targets)
    if values.dtype.kind in "USTO" and values.shape == (rows,):
        if class_names is None:
            raise invalid(name, "be integers", f"dtype {values.dtype}", "For names of classes, pass class_names.")
        values = _named_codes(values, class_names, name)
    values = labels(name, values, rows=rows, n_classes=classes)
    return np.ascontiguousarray(values, dtype=np.int64)


def _named_codes(values: NDArray[Any], class_names: Sequence[str], name: str) -> NDArray[Any]:
    """Numbers of class names; numbers are returned as they are."""
    numbers = {label: number for number, label in enumerate(class_names)}
    codes = []
    for row, label in enumerate(values.tolist()):
        if str(label) in ("None", "nan", "NaT", "<NA>") and not isinstance(label, str):
            raise invalid(name, "have a label in every row", f"{label} in row {row}", "Leave out the rows without one.")
        if not isinstance(label, str):
            return values
        if label not in numbers:
            rule = f"be one of the classes {shortened(class_names)}"
            raise invalid(name, rule, f"{label[:40]!r} in row {row}", did_you_mean(label[:40], class_names))
        codes.append(numbers[label])
    return np.asarray(codes, dtype=np.int64)


def as_ids(ids: Any, rows: int) -> NDArray[Any] | None:
    """Check one distinct string or integer per row."""
    if ids is None:
        return None
    values = as_array("ids", ids)
    if values.dtype == object and all(isinstance(value, str) for value in values.ravel()):
        check_id_lengths(values.ravel())
        values = values.astype(np.str_)
    if values.dtype.kind not in "iuU":
        raise invalid("ids", "be strings or integers", f"dtype {values.dtype}")
    if values.shape != (rows,):
        raise invalid("ids", f"have shape ({rows},), one per row", f"shape {values.shape}")
    check_distinct(values)
    return values


def check_id_lengths(ids: NDArray[Any]) -> None:
    """Refuse long ids: in an array of text every id takes as much memory as the longest, and results repeat ids."""
    longest = max(map(len, ids), default=0)
    if longest > _LONGEST_ID:
        raise invalid("ids", f"have at most {_LONGEST_ID} characters", f"one of {longest}")


class DistinctIds:
    """Refuses an id that occurs twice. It remembers eight bytes per row instead of the ids."""

    def __init__(self) -> None:
        self._keys: list[NDArray[np.int64]] = []

    def add(self, ids: NDArray[Any]) -> None:
        """Remember the ids of some more rows."""
        self._keys.append(_keys_of(ids))

    def check(self, again: Callable[[], Iterable[NDArray[Any]]]) -> None:
        """Raise an error if an id occurs twice. `again` reads all ids once more if two seem to be the same."""
        if not self._keys:
            return
        keys = np.sort(np.concatenate(self._keys))
        self._keys.clear()
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if not len(repeated):
            return
        seen: set[Any] = set()
        start = 0
        for ids in again():
            for row in np.flatnonzero(np.isin(_keys_of(ids), repeated)).tolist():
                (name,) = ids[[row]].tolist()
                if name in seen:
                    raise invalid("ids", "be distinct", f"{name!r}"[:60] + f" again in row {start + row}", _SAME_ID)
                seen.add(name)
            start += len(ids)


def check_distinct(ids: NDArray[Any]) -> None:
    """Refuse an id that occurs twice."""
    distinct = DistinctIds()
    distinct.add(ids)
    distinct.check(lambda: [ids])


def _keys_of(ids: NDArray[Any]) -> NDArray[np.int64]:
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    # Python's hash has a secret seed, so nobody can make many ids that share one.
    return np.fromiter(map(hash, ids.tolist()), dtype=np.int64, count=len(ids))


def as_class_names(
    names: Sequence[str] | Mapping[Any, str] | NDArray[Any] | None, classes: int
) -> tuple[str, ...] | None:
    """Check one distinct, non-empty string per class. Hugging Face's `id2label` is a mapping of numbers to names."""
    if names is None:
        return None
    if isinstance(names, Mapping):
        by_number = {str(number): name for number, name in names.items()}
        numbers = names_or_numbers(None, len(names))
        if set(by_number) != set(numbers):
            raise invalid("class_names", f"map the numbers 0..{len(names) - 1} to names", shortened(list(by_number)))
        names = [by_number[number] for number in numbers]
    if isinstance(names, np.ndarray):
        names = names.tolist()
    if isinstance(names, set | frozenset):
        raise invalid("class_names", "be in the order of the classes", "a set, which has no order", "Pass a list.")
    result = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in result):
        raise invalid("class_names", "be non-empty strings", repr(names))
    if len(result) != classes:
        raise invalid("class_names", f"name all {classes} classes", f"{len(result)} names")
    again = first_repeated(result)
    if again is not None:
        raise invalid("class_names", "be distinct", f"{again!r} twice")
    return result


def as_extras(extras: Mapping[str, Any] | None, rows: int) -> dict[str, NDArray[Any]]:
    """Check one number or string per row in each of the other columns, and return read-only arrays."""
    checked = {}
    for name, column in (extras or {}).items():
        if not isinstance(name, str) or name in _RESERVED or name.startswith(RESERVED_PREFIXES):
            raise invalid("extras", "have names that are not those of targets, ids or scores", repr(name))
        values = as_array(f"extras[{name!r}]", column)
        plain = values.dtype.kind in "biufU" or all(isinstance(value, str) for value in values.ravel())
        if not plain or values.shape != (rows,):
            rule = f"hold {rows} numbers or strings, one per row"
            raise invalid(f"extras[{name!r}]", rule, f"dtype {values.dtype} of shape {values.shape}")
        checked[name] = values.view()
        checked[name].flags.writeable = False
    return checked


def as_rows(mask: Any, rows: int) -> NDArray[Any]:
    """Check a boolean mask or integer row numbers for `subset`, and return row numbers."""
    values = as_array("mask", mask)
    if values.dtype == bool and values.shape == (rows,):
        values = np.flatnonzero(values)
    if values.dtype.kind not in "iu" or values.ndim != 1:
        got = f"{values.dtype} of shape {values.shape}"
        raise invalid("mask", f"be {rows} booleans, one per row, or row numbers", got)
    if values.size == 0:
        raise InvalidInput("mask must keep at least one row, got none.")
    if values.min() < 0 or values.max() >= rows:
        raise invalid("mask", f"hold row numbers in 0..{rows - 1}", f"{values.min()}..{values.max()}")
    return values


def class_order(
    wanted: Sequence[str] | None, names: Sequence[str] | None, classes: int, *, where: str
) -> list[int] | None:
    """Find the place of each wanted class among `names`; None if the order is as wanted. Names decide, not positions.

    Classes without names are called 0..K-1, as in the columns of a table. If `names` are these numbers, classes are put
    in the order of their numbers. Any other difference in names is an error; it calls `names` what `where` says.
    """
    numbers = names_or_numbers(None, classes)
    wanted = tuple(wanted or numbers)
    names = tuple(names or numbers)
    if set(wanted) != set(names):
        if set(names) != set(numbers):
            raise _other_names(wanted, names, where=where)
        wanted = numbers
    if wanted == names:
        return None
    place = {name: k for k, name in enumerate(names)}
    return [place[name] for name in wanted]


def _other_names(wanted: tuple[str, ...], names: tuple[str, ...], *, where: str) -> InvalidInput:
    known = set(wanted)
    unknown = shortened([name for name in names if name not in known])
    if wanted == names_or_numbers(None, len(wanted)):
        hint = "To use these names, fit on predictions that have them."
        return invalid(where, f"name the classes 0..{len(wanted) - 1}", unknown, hint)
    return invalid(where, f"name the classes {shortened(wanted)}", unknown)


def group_name(value: object) -> str:
    """Return the name of a group. A column of integers with an empty cell becomes one of floats, so 1.0 is called 1."""
    name = str(value)
    if name.endswith(".0") and name[:-2].removeprefix("-").isdecimal():
        return name[:-2]
    return name


def columns_in_order(values: NDArray[Any], frame: Any, class_names: Sequence[str] | None) -> NDArray[Any]:
    """Put the columns of `values` in the order of the classes if `frame`, a data frame, names them. Names decide."""
    headings = [str(heading) for heading in getattr(frame, "columns", ())]
    names = names_or_numbers(class_names, len(headings))
    if tuple(headings) == names or set(headings) != set(names):
        return values
    return values[:, [headings.index(name) for name in names]]


def names_or_numbers(class_names: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    """Return the class names, or 0..K-1 as text if there are none."""
    return tuple(class_names or map(str, range(n_classes)))


Coded = tuple[Sequence[Any], NDArray[Any]]
"""Distinct values, and for each row the index of its value among them."""


class Labels:
    """Converts the targets of a file to class numbers. Either all of them are class names, or all are class numbers.

    `distinct` reads all distinct targets of the file. It is called if the name of a class is another one's number.
    """

    def __init__(
        self, where: str, names: Sequence[str], distinct: Callable[[], Iterable[Any]], *, only_names: bool = False
    ) -> None:
        self._where = where
        self._distinct = distinct
        self._names = {name: number for number, name in enumerate(names)}
        self._readings: list[Callable[[str], int | None]] = [self._name]
        if not only_names:
            self._readings.append(self._number)
        self._settled = only_names or all(self._number(name) in (None, k) for name, k in self._names.items())

    def codes(self, labels: Coded, first_row: int) -> NDArray[np.int64]:
        """Return the class numbers of some rows."""
        values, places = labels
        texts = [self._text(value) for value in values]
        if not self._settled:
            self._settle()
        possible = self._possible(texts)
        if not possible:
            self._refuse(values, texts, places, first_row)
        self._readings = possible
        codes: NDArray[np.int64] = np.asarray([possible[0](text) for text in texts], dtype=np.int64)[places]
        return codes

    def _settle(self) -> None:
        """Look at all targets before deciding whether they are names or numbers: nothing is guessed."""
        texts = {self._text(value) for value in self._distinct()}
        self._readings = self._possible(texts) or self._readings
        differing = sorted(text for text in texts if self._name(text) != self._number(text))
        if differing and len(self._possible(texts)) > 1:
            hint = "Call the classes 0..K-1, or by names that are not numbers."
            both = f"values that can be read as both ({differing[0]!r})"
            raise invalid(self._where, "be class names or class numbers", both, hint)
        self._settled = True

    def _possible(self, texts: Iterable[str]) -> list[Callable[[str], int | None]]:
        """The readings by which each of these texts is a class."""
        return [read for read in self._readings if all(read(text) is not None for text in texts)]

    def _name(self, text: str) -> int | None:
        """The class of this name; numbers may be written as 1.0 for 1."""
        return self._names.get(text, self._names.get(plain_label(text)))

    def _number(self, text: str) -> int | None:
        """The class of this number."""
        whole = WHOLE.fullmatch(text)
        if whole is None or int(whole[1]) >= len(self._names):
            return None
        return int(whole[1])

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value.strip()
        if isinstance(value, bool):
            return str(value)
        if not isinstance(value, int | float) or value % 1:
            raise invalid(self._where, "be integers or class names", repr(value)[:60])
        return str(int(value))

    def _refuse(self, values: Sequence[Any], texts: list[str], places: NDArray[Any], first_row: int) -> None:
        unread = [p for p, text in enumerate(texts) if self._name(text) is None and self._number(text) is None]
        if unread:
            rule = f"be a class name of the columns, or its number in 0..{len(self._names) - 1}"
        else:
            rule = "be class names in all rows, or class numbers in all rows"
            read = next((read for read in self._readings if read(texts[places[0]]) is not None), self._readings[0])
            unread = [p for p, text in enumerate(texts) if read(text) is None]
        row = int(np.flatnonzero(np.isin(places, unread))[0])
        value = f"{values[places[row]]!r}"[:60]
        hint = ""
        if texts[places[row]] == str(len(self._names)):
            hint = "Class numbers are counted from 0."
        elif texts[places[row]] and tuple(self._names) == names_or_numbers(None, len(self._names)):
            hint = "Name the classes: p_cat and so on for the columns of scores, in .npz the array class_names."
        elif texts[places[row]]:
            hint = f"Classes: {shortened(list(self._names), 12)}."
        elif not texts[places[row]]:
            hint = "Leave out the rows without a label."
        raise invalid(self._where, rule, f"{value} in row {first_row + row}", hint)


@dataclass(frozen=True)
class RawBlock:
    """Some rows as a file has them, with classes in the file's order. Columns of labels are `Coded`, others arrays."""

    rows: int
    columns: dict[str, Any]
    scores: NDArray[Any] | None = None


class PredictionSource(ABC):
    """A file of one format. Each call of `read` opens it again."""

    where: str  # the file, for messages
    layout: Layout
    class_names: tuple[str, ...] | None
    dtype: np.dtype[Any]  # of the scores
    precision: Precision  # of the scores; differs from `dtype` for bfloat16, which NumPy lacks
    rows: int | None  # None if only reading the file shows it
    typed: bool  # False if all columns are text
    stored: int  # bytes of the file
    unfolded: int  # bytes that the content takes in memory, as far as the file declares it

    @abstractmethod
    def read(self, names: Sequence[str], *, scores: bool = False) -> Iterator[RawBlock]:
        """Yield the rows in order, block by block, with the columns of these names."""

    @abstractmethod
    def labels_in(self, column: str) -> set[str]:
        """Return the distinct values of a column as text."""

    def on_disk(self) -> OnDisk | None:
        """Return the scores in the file itself, if they can be read there without unpacking."""
        return None


def check_columns_there(where: str, there: Sequence[str], layout: Layout) -> None:
    """Refuse a later file of a folder that lacks a column of the first one."""
    for name in (*layout.beside_scores, *layout.headings, *layout.extras):
        if name not in there:
            raise InvalidInput(f"{where}: column {name[:40]!r} is not there. There are: {shortened(there, 12)}.")


def check_unfolded(
    where: str, unfolded: int, stored: int, hint: str = _STORE_AGAIN, *, most: int = _MOST_UNFOLDED
) -> None:
    """Refuse a file whose content would take far more memory than it has bytes, before anything is allocated."""
    if unfolded > max(_HARMLESS, most * stored):
        rule = f"unfold to at most {most} times its size"
        raise invalid(where, rule, f"{unfolded / 2**20:,.0f} MB in a file of {stored / 2**20:,.2f} MB", hint)


def block_rows(columns: int) -> int:
    """Return the number of rows of a block."""
    return max(1, _BLOCK_CELLS // columns)
