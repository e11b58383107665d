"""The meaning of the columns of a table, or of the arrays of a file: targets, ids, scores, and everything else."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions.checks import PREFIXES, first_repeated, shortened

ROLES = ("target", "id")
# Names of an index without a name: as pandas writes it, as it reads it back, and as it puts it into Parquet.
_INDEX = ("", "Unnamed: 0", "__index_level_0__")
# A class number. Tools that convert numbers to floats (one missing value is enough) write 1.0 for 1.
_WHOLE = re.compile(r"([0-9]{1,9})(?:\.0*)?")


@dataclass(frozen=True)
class Layout:
    """The meaning of each column.

    Attributes:
        kind: Whether the scores are logits or probabilities.
        headings: The columns of the scores, one per class.
        names: The class names in these headings.
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

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes; None if they are called 0..K-1."""
        if self.names == tuple(map(str, range(len(self.names)))):
            return None
        return self.names


def parse_columns(text: str) -> dict[str, str]:
    """Parse a mapping of columns as a command takes it.

    >>> parse_columns("target=label,id=case")
    {'target': 'label', 'id': 'case'}
    """
    columns: dict[str, str] = {}
    for pair in text.split(","):
        role, equals, column = pair.partition("=")
        if not equals or role in columns:
            raise invalid("columns", "be written as target=COLUMN,id=COLUMN, each once", repr(text[:80]))
        columns[role] = column
    return check_columns(columns)


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Refuse a mapping of anything but the target and the id."""
    for role in columns or {}:
        if role not in ROLES:
            raise invalid("columns", "map target or id", repr(role), did_you_mean(role, ROLES))
    return dict(columns or {})


def find_roles(
    where: str, there: Sequence[str], columns: Mapping[str, str], default: Mapping[str, str]
) -> dict[str, str]:
    """Find the column of each role: the mapped one, else the one with the default name, if it is there."""
    mapped = list(columns.values())
    for role, column in columns.items():
        fault = ""
        if mapped.count(column) > 1:
            fault = "is mapped twice"
        elif column not in there:
            fault = f"is not there ({role}={column})"
        if fault:
            raise InvalidInput(f"{where}: column {column!r} {fault}. There are: {shortened(there, 12)}.")
    return {role: columns.get(role, name) for role, name in default.items() if role in columns or name in there}


def layout(where: str, header: Sequence[str], kind: Kind | None, columns: Mapping[str, str]) -> Layout:
    """Find the meaning of each column of a table from its header."""
    _refuse_separator(where, header)
    again = first_repeated(header)
    if again is not None:
        raise InvalidInput(f"{where}: column {again[:40]!r} appears twice.")
    roles = find_roles(where, header, columns, {role: role for role in ROLES})
    classes: dict[str, dict[str, str]] = {}  # by what the prefix says, then by heading
    extras = []
    for heading in header:
        if heading in roles.values():
            continue
        prefix = next((prefix for prefix in PREFIXES if heading.startswith(prefix) and heading != prefix), None)
        if prefix is not None:
            classes.setdefault(PREFIXES[prefix], {})[heading] = heading.removeprefix(prefix)
        elif heading not in (*_INDEX, *ROLES):
            extras.append(heading)
    if len(classes) > 1:
        # Beside logits or probabilities, a column that begins with "score_" may mean anything.
        extras += classes.pop("scores", {})
    if len(classes) != 1:
        raise _no_scores(where, header, extras)
    ((word, scores),) = classes.items()
    if len(scores) == 1:
        rule = f"have a column of {word} for each of at least two classes"
        way_out = "With two classes, the other one has the probability 1 - p; beside a logit z it has the logit 0."
        raise invalid(where, rule, f"only {next(iter(scores))}", way_out)
    if set(scores.values()) == set(map(str, range(len(scores)))):
        # Classes with numbers for names are sorted by number: tools like to sort 10 before 2.
        scores = dict(sorted(scores.items(), key=lambda item: int(item[1])))
    resolved = resolve_kind(where, word, kind)
    return Layout(resolved, tuple(scores), tuple(scores.values()), roles.get("target"), roles.get("id"), tuple(extras))


def _no_scores(where: str, header: Sequence[str], extras: Sequence[str]) -> InvalidInput:
    rule = "have columns logit_<class>, probability_<class> or score_<class>, of one kind"
    way_out = ""
    if len(extras) == 1:
        way_out = "One probability p of two classes is two columns: probability_0 with 1 - p, probability_1 with p."
    elif header:
        way_out = "Write it before the class in the name of each column with scores: probability_cat."
    return invalid(where, rule, shortened(header, 12) or "no columns", way_out)


def _refuse_separator(where: str, header: Sequence[str]) -> None:
    """Refuse a header that is one cell because its columns are not separated by commas."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and separator in header[0]:
            way_out = "Save the table again with commas between columns and points in decimals."
            raise invalid(f"{where}: columns", "be separated by commas", name, way_out)


def resolve_kind(where: str, word: str, kind: Kind | None) -> Kind:
    """Decide what the scores are, from the file's word ("scores" if it does not say) and from the user's."""
    if word == "scores":
        if kind is None:
            way_out = "Say it: --kind logits or --kind probabilities (kind= in Python)."
            raise InvalidInput(f"{where} does not say whether its scores are logits or probabilities. {way_out}")
        return kind
    if kind not in (None, word):
        raise invalid(f"{where}: scores", f"be {kind} as you said", f"{word} by their name")
    return "logits" if word == "logits" else "probabilities"


class Labels:
    """Converts the targets of a file to class numbers. Either all of them are class names, or all are class numbers.

    Args:
        where: What the error calls the targets.
        names: The names of the classes, in order.
        distinct: Reads all distinct targets of the file. It is called if the name of a class is another one's number.
    """

    def __init__(self, where: str, names: Sequence[str], distinct: Callable[[], Iterable[Any]]) -> None:
        self._where = where
        self._distinct = distinct
        self._by_name = {name: index for index, name in enumerate(names)}
        self._readings: list[Callable[[str], int | None]] = [self._by_name.get, self._number]
        self._settled = all(self._number(name) in (None, index) for index, name in enumerate(names))

    def codes(self, values: Sequence[Any], places: NDArray[Any], first_row: int) -> NDArray[np.int64]:
        """Return the class numbers of some rows.

        Args:
            values: Distinct targets.
            places: For each row, the index of its target among `values`.
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
        """Look at all targets before deciding whether they are names or numbers: nothing is guessed."""
        texts = {self._text(value) for value in self._distinct()}
        possible = [read for read in self._readings if all(read(text) is not None for text in texts)]
        if len(possible) > 1:
            for text in sorted(texts):
                if self._by_name[text] != self._number(text):
                    way_out = "Call the classes 0..K-1, or by names that are not numbers."
                    both = f"values that can be read as both ({text!r})"
                    raise invalid(self._where, "be class names or class numbers", both, way_out)
        self._readings = possible or self._readings
        self._settled = True

    def _number(self, text: str) -> int | None:
        whole = _WHOLE.fullmatch(text)
        if whole is None or int(whole[1]) >= len(self._by_name):
            return None
        return int(whole[1])

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
        value = f"{values[places[row]]!r}"[:60]
        way_out = ""
        if texts[places[row]] == str(len(self._by_name)):
            way_out = "Class numbers are counted from 0."
        raise invalid(self._where, rule, f"{value} in row {first_row + row}", way_out)
