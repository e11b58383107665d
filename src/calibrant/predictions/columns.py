"""What the columns of a table, or the arrays of a file, mean: targets, ids, scores, and everything else."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions.checks import PREFIXES
from calibrant.predictions.class_order import shortened

ROLES = ("target", "id")
# An index without a name: as pandas writes it, as it reads it back, and as it puts it into Parquet.
_INDEX = ("", "Unnamed: 0", "__index_level_0__")
# A class number; tables that were handled as floats (a missing value is enough) write 1.0 for 1.
_WHOLE = re.compile(r"([0-9]{1,9})(?:\.0*)?")


@dataclass(frozen=True)
class Layout:
    """Which column is what.

    Attributes:
        kind: What the scores are.
        headings: The columns of the scores, one per class.
        names: What these columns call their classes.
        target: The column of the targets, or None.
        id: The column of the ids, or None.
        extras: All other columns, except an index without a name.
    """

    kind: Kind
    headings: tuple[str, ...]
    names: tuple[str, ...]
    target: str | None
    id: str | None
    extras: tuple[str, ...]


def parse_columns(text: str) -> dict[str, str]:
    """A mapping of columns as a command takes it.

    >>> parse_columns("target=label,id=case")
    {'target': 'label', 'id': 'case'}
    """
    found: dict[str, str] = {}
    for pair in text.split(","):
        role, equals, column = pair.partition("=")
        if not equals or role in found:
            raise invalid("columns", "be written as target=COLUMN,id=COLUMN, each once", repr(text[:80]))
        found[role] = column
    return check_columns(found)


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Refuse a mapping of anything else than the target and the id."""
    for role in columns or {}:
        if role not in ROLES:
            raise invalid("columns", "map target or id", repr(role), did_you_mean(role, ROLES))
    return dict(columns or {})


def find_roles(where: str, there: Sequence[str], columns: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The column of each role: as mapped, else by its own name, where that is there."""
    mapped = list(columns.values())
    for role, column in columns.items():
        if mapped.count(column) > 1 or column not in there:
            fault = "is mapped twice" if mapped.count(column) > 1 else f"is not there ({role}={column})"
            raise InvalidInput(f"{where}: column {column!r} {fault}. There are: {shortened(there, 12)}.")
    return {role: columns.get(role, name) for role, name in own.items() if role in columns or name in there}


def layout(where: str, header: Sequence[str], kind: Kind | None, columns: Mapping[str, str]) -> Layout:
    """Understand the header of a table, or say what is not understood."""
    _refuse_separator(where, header)
    if len(set(header)) < len(header):
        seen: set[str] = set()
        again = next(name for name in header if name in seen or seen.add(name))  # type: ignore[func-returns-value] # None
        raise InvalidInput(f"{where}: column {again[:40]!r} appears twice.")
    roles = find_roles(where, header, columns, {role: role for role in ROLES})
    found: dict[str, dict[str, str]] = {}
    extras = []
    for heading in header:
        prefix = next((prefix for prefix in PREFIXES if heading.startswith(prefix) and heading != prefix), None)
        if heading in roles.values():
            continue
        if prefix is not None:
            found.setdefault(PREFIXES[prefix], {})[heading] = heading.removeprefix(prefix)
        elif heading not in (*_INDEX, *ROLES):
            extras.append(heading)
    if len(found) > 1:
        # Beside logits or probabilities, "score_" is how any other column may begin.
        extras += found.pop("scores", {})
    if len(found) != 1:
        raise _no_scores(where, header, extras)
    ((own_word, scores),) = found.items()
    if len(scores) == 1:
        rule = f"have a column of {own_word} for each of at least two classes"
        way_out = "Of two classes, the other one has the probability 1 - p; a logit z of one class stands beside 0."
        raise invalid(where, rule, f"only {next(iter(scores))}", way_out)
    if set(scores.values()) == set(map(str, range(len(scores)))):
        # Classes that are called by their number stand where that number says: tools like to sort 10 before 2.
        scores = dict(sorted(scores.items(), key=lambda item: int(item[1])))
    resolved = resolve_kind(where, own_word, kind)
    return Layout(resolved, tuple(scores), tuple(scores.values()), roles.get("target"), roles.get("id"), tuple(extras))


def _no_scores(where: str, header: Sequence[str], extras: Sequence[str]) -> InvalidInput:
    rule = "have columns logit_<class>, probability_<class> or score_<class>, of one kind"
    way_out = "Write it before the class in the name of each column with scores: probability_cat." if header else ""
    if len(extras) == 1:
        way_out = "One probability p of two classes is two columns: probability_0 with 1 - p, probability_1 with p."
    return invalid(where, rule, shortened(header, 12) or "no columns", way_out)


def _refuse_separator(where: str, header: Sequence[str]) -> None:
    """Refuse a header that is one cell because something else than commas separates its columns."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and separator in header[0]:
            way_out = "Save the table again with commas between columns and points in decimals."
            raise invalid(f"{where}: columns", "be separated by commas", name, way_out)


def resolve_kind(where: str, found: str, kind: Kind | None) -> Kind:
    """What the scores are, from the file's own word ("scores" if it says nothing) and from the user's."""
    if found == "scores":
        if kind is None:
            way_out = "Say it: --kind logits or --kind probabilities (kind= in Python)."
            raise InvalidInput(f"{where} does not say whether its scores are logits or probabilities. {way_out}")
        return kind
    if kind not in (None, found):
        raise invalid(f"{where}: scores", f"be {kind} as you said", f"{found} by their name")
    return "logits" if found == "logits" else "probabilities"


class Labels:
    """Targets of a whole file as class numbers: all of them are class names, or all are class numbers.

    Args:
        where: What the error calls the targets.
        names: The names of the classes, in order.
        distinct: All distinct targets of the file, for the case that some class is called by another one's number.
    """

    def __init__(self, where: str, names: Sequence[str], distinct: Callable[[], Iterable[Any]]) -> None:
        self._where, self._distinct = where, distinct
        self._by_name = {name: index for index, name in enumerate(names)}
        self._readings: list[Callable[[str], int | None]] = [self._by_name.get, self._number]
        self._settled = all(self._number(name) in (None, index) for index, name in enumerate(names))

    def codes(self, values: Sequence[Any], places: NDArray[Any], first_row: int) -> NDArray[np.int64]:
        """Class numbers of some rows.

        Args:
            values: Distinct targets.
            places: For each row, the place of its target among `values`.
            first_row: Number of the first of these rows in the file.
        """
        texts = [self._text(value) for value in values]
        if not self._settled:
            self._settle()
        possible = [read for read in self._readings if all(read(text) is not None for text in texts)]
        if not possible:
            self._refuse(values, texts, places, first_row)
        self._readings = possible
        codes: NDArray[np.int64] = np.asarray([possible[0](text) for text in texts], dtype=np.int64)[places]
        return codes

    def _settle(self) -> None:
        """Where names are numbers of other classes, look at all targets first: nothing is guessed."""
        texts = {self._text(value) for value in self._distinct()}
        possible = [read for read in self._readings if all(read(text) is not None for text in texts)]
        for text in sorted(texts) if len(possible) > 1 else ():
            if self._by_name[text] != self._number(text):
                way_out = "Call the classes 0..K-1, or by names that are not numbers."
                found = f"values that can be read as both ({text!r})"
                raise invalid(self._where, "be class names or class numbers", found, way_out)
        self._readings, self._settled = possible or self._readings, True

    def _number(self, text: str) -> int | None:
        whole = _WHOLE.fullmatch(text)
        return int(whole[1]) if whole and int(whole[1]) < len(self._by_name) else None

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value.strip()
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
            raise invalid(self._where, "be integers or class names", repr(value)[:60])
        return str(int(value))

    def _refuse(self, values: Sequence[Any], texts: list[str], places: NDArray[Any], first_row: int) -> None:
        unread = [p for p, text in enumerate(texts) if text not in self._by_name and self._number(text) is None]
        if unread:
            rule = f"be a class name of the columns, or its number in 0..{len(self._by_name) - 1}"
        else:
            rule = "be class names in all rows, or class numbers in all rows"
            read = next((read for read in self._readings if read(texts[places[0]]) is not None), self._readings[0])
            unread = [p for p, text in enumerate(texts) if read(text) is None]
        row = int(np.flatnonzero(np.isin(places, unread))[0])
        found = f"{values[places[row]]!r}"[:60]
        way_out = "Class numbers are counted from 0." if texts[places[row]] == str(len(self._by_name)) else ""
        raise invalid(self._where, rule, f"{found} in row {first_row + row}", way_out)
