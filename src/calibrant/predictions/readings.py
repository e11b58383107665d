"""Which column of a table means what: targets, ids, and scores in one of several forms. Nothing is guessed.

A table has one row per case. Its scores are in one of these forms:

- one column per class, with a prefix (`probability_cat`, `p_cat`, `logit_cat`) or named like the labels (`cat`, `dog`);
- one column for one of two classes (`probability`, `p_yes`);
- a class and a score: `predicted`, `confidence`.

If a table fits several forms, the error lists them with the flag that chooses each.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, did_you_mean, invalid

KINDS = ("logits", "probabilities", "confidence", "score")
# What `columns` can map. `scores` takes patterns, and `positive` the class whose score a single column holds.
ROLES = ("target", "id", "predicted", "confidence", "scores", "positive")
# Prefixes of the columns that hold scores, and what these scores are ("scores": the file does not say).
PREFIXES = {
    "logit_": "logits",
    "probability_": "probabilities",
    "proba_": "probabilities",
    "prob_": "probabilities",
    "p_": "probabilities",
    "score_": "scores",
}
RESERVED_PREFIXES = ("logit_", "probability_", "proba_", "prob_")
# Beside columns with another prefix, these may mean anything: p_value, score_of_reviewer.
_WEAK_PREFIXES = ("p_", "score_")
_TARGETS = ("target", "label", "y", "y_true")
_PREDICTED = ("predicted", "prediction", "y_pred")
# Names of one column with a score, and what it is.
_ONE_SCORE = {
    "confidence": "probabilities",
    "probability": "probabilities",
    "prob": "probabilities",
    "proba": "probabilities",
    "p": "probabilities",
    "logit": "logits",
    "score": "scores",
}
# Names of an index without a name: as pandas writes it, as it reads it back, and as it puts it into Parquet.
_INDEX = ("", "Unnamed: 0", "__index_level_0__")
# A class number. Tools that convert numbers to floats (one missing value is enough) write 1.0 for 1.
WHOLE = re.compile(r"([0-9]{1,9})(?:\.0*)?")


@dataclass(frozen=True)
class Layout:
    """The meaning of each column."""

    kind: Kind
    headings: tuple[str, ...]  # the columns of the scores: one per class, or a single one
    names: tuple[str, ...]  # of the classes; two for a single column of two classes, none for a class and a score
    target: str | None
    id: str | None
    extras: tuple[str, ...]  # all other columns, except an index without a name
    predicted: str | None = None  # the column of the predicted class, for a class and a score
    positive: int | None = None  # the number of the class whose score the single heading is

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes; None if they are called 0..K-1."""
        if self.names == tuple(map(str, range(len(self.names)))):
            return None
        return self.names

    @property
    def width(self) -> int:
        """Number of scores per row."""
        return max(len(self.names), 1)

    @property
    def labels(self) -> list[str]:
        """Columns of targets and predicted classes."""
        return [name for name in (self.target, self.predicted) if name is not None]

    @property
    def beside_scores(self) -> list[str]:
        """Columns of targets, predicted classes and ids."""
        if self.id is None:
            return self.labels
        return [*self.labels, self.id]


@dataclass(frozen=True)
class Request:
    """What is known before a file is read; `like` is the layout of the first file of a folder, for the others."""

    kind: Kind | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    class_names: Sequence[str] | None = None
    like: Layout | None = None


class Look(Protocol):
    """A table whose cells can be looked at, if names of columns do not suffice."""

    def labels_in(self, column: str) -> set[str]:
        """Return the distinct values of a column as text."""

    def is_number(self, column: str) -> bool:
        """Whether a column holds numbers."""


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
    """Refuse a mapping of unknown roles."""
    for role in columns or {}:
        if role not in ROLES:
            raise invalid(
                "columns", f"map {', '.join(ROLES[:-1])} or {ROLES[-1]}", repr(role), did_you_mean(role, ROLES)
            )
    return dict(columns or {})


def find_roles(
    where: str, there: Sequence[str], columns: Mapping[str, str], default: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Find the column of each role: the mapped one, else one with a default name, if it is there."""
    mapped = [column for role, column in columns.items() if role not in ("scores", "positive")]
    roles: dict[str, str] = {}
    for role, names in default.items():
        if role in columns:
            column = columns[role]
            if role == "target" and not column:  # says that no column has the targets
                continue
            fault = ""
            if mapped.count(column) > 1:
                fault = "is mapped twice"
            elif column not in there:
                fault = f"is not there ({role}={column})"
            if fault:
                raise InvalidInput(f"{where}: column {column!r} {fault}. There are: {shortened(there, 12)}.")
            roles[role] = column
            continue
        free = [column for column in there if column not in mapped]
        present = [name for name in names if name in free]
        if not present:  # Label for label; Y and P may be anything
            present = [column for name in names for column in free if column.lower() == name and len(name) > 1]
        # The first name is ours, and decides alone. Two of the others need a decision.
        if len(present) > 1 and present[0] != names[0]:
            readings = {f"the {role} is {name!r}": f"--columns {role}={name}" for name in present}
            raise _several(where, there, readings)
        if present:
            roles[role] = present[0]
    return roles


def _several(where: str, header: Sequence[str], readings: Mapping[str, str]) -> InvalidInput:
    """The error for a table that can be read in several ways, with the flag for each."""
    ways = "; ".join(f"{text}: {flag}" for text, flag in readings.items())
    return InvalidInput(
        f"{where} can be read in {len(readings)} ways. Its columns: {shortened(header, 12)}. Choose one. {ways}."
    )


@dataclass
class _Table:
    """A table on the way to its layout; `kind` and `columns` come from the user, `others` have no role.

    `class_names` are those of the user or of a policy. New cases have no labels that would name the classes.
    """

    where: str
    header: Sequence[str]
    kind: Kind | None
    columns: Mapping[str, str]
    roles: dict[str, str]
    others: list[str]
    look: Look
    class_names: Sequence[str] | None = None

    def layout(self, word: str, names: Mapping[str, str]) -> Layout:
        """One column per class: the class name of each heading."""
        if len(names) == 1:
            ((heading, name),) = names.items()
            return self.single(word, heading, name)
        if set(names.values()) == set(map(str, range(len(names)))):
            # Classes with numbers for names are sorted by number: tools like to sort 10 before 2.
            names = dict(sorted(names.items(), key=lambda item: int(item[1])))
        kind = resolve_kind(self.where, word, self.kind)
        return self._make(kind, tuple(names), tuple(names.values()))

    def single(self, word: str, heading: str, positive: str | None) -> Layout:
        """One column: the score of one of two classes."""
        named = self.columns.get("positive", positive)
        labels = self.labels()
        if self.class_names is not None and len(self.class_names) == 2 and labels <= set(self.class_names):
            labels = set(self.class_names)
        if named is None or ("positive" not in self.columns and (named not in labels or len(labels) != 2)):
            raise self._which_is_positive(heading)
        if len(labels) > 2:
            hint = "One column of scores is enough for two classes only. Write a column for each class."
            raise invalid(f"{self.where}: targets", "have two classes", shortened(sorted(labels)), hint)
        if len(labels | {named}) > 2:
            hint = f"Labels of {self.where}: {shortened(sorted(labels))}."
            raise invalid("positive", "be one of the labels", repr(named), hint)
        kind = resolve_kind(self.where, word, self.kind)
        other = {"1": "0", "0": "1"}.get(named, f"not {named}")
        for label in labels - {named}:
            other = label
        names = (other, named)
        if set(names) == {"0", "1"}:
            names = ("0", "1")
        return self._make(kind, (heading,), names, positive=names.index(named))

    def labels(self) -> set[str]:
        """The distinct targets as text."""
        if "target" not in self.roles:
            return set()
        return {plain_label(label) for label in self.look.labels_in(self.roles["target"])}

    def _which_is_positive(self, heading: str) -> InvalidInput:
        labels = sorted(self.labels())
        if len(labels) == 2:
            readings = {f"{heading!r} is the score of {label!r}": f"--positive {label}" for label in labels}
            return _several(self.where, self.header, readings)
        hint = (
            f"If {heading!r} is the score of one of two classes, name that class: --positive CLASS. If it is that of a "
            "predicted class, name the column of that class: --columns predicted=COLUMN."
        )
        return invalid(self.where, "have scores for at least two classes", shortened(self.header, 12), hint)

    def class_and_score(self) -> Layout:
        """A predicted class and its score."""
        heading = self.roles["confidence"]
        word = _ONE_SCORE.get(heading.lower(), "scores")
        kind = self.kind
        if kind == "logits":
            raise invalid("kind", "be confidence or score for one score of the predicted class", "logits")
        if kind is None and word == "scores":
            readings = {
                f"{heading!r} is a probability in 0..1": "--kind confidence",
                f"{heading!r} is any number that is only ranked": "--kind score",
            }
            raise _several(self.where, self.header, readings)
        if kind in (None, "probabilities"):
            kind = "confidence"
        return self._make(kind, (heading,), (), predicted=self.roles["predicted"])

    def _make(
        self,
        kind: Kind | None,
        headings: tuple[str, ...],
        names: tuple[str, ...],
        *,
        predicted: str | None = None,
        positive: int | None = None,
    ) -> Layout:
        assert kind is not None
        target, row_id = self.roles.get("target"), self.roles.get("id")
        used = {*headings, target, row_id, predicted}
        # Not an extra: a column with our own name for a role that another column was mapped to.
        # Nor other scores.
        extras = [name for name in self.header if name not in (*used, *_INDEX, "target", "id")]
        extras = [name for name in extras if not name.startswith(RESERVED_PREFIXES)]
        return Layout(kind, headings, names, target, row_id, tuple(extras), predicted, positive)


def layout(where: str, header: Sequence[str], request: Request, look: Look) -> Layout:
    """Find the meaning of each column of a table, from their names and, if these do not suffice, from cells."""
    kind, columns = request.kind, request.columns
    _refuse_separator(where, header)
    default = {"target": _TARGETS, "id": ("id",), "predicted": _PREDICTED, "confidence": tuple(_ONE_SCORE)}
    roles = find_roles(where, header, columns, {role: default[role] for role in ("target", "id", "predicted")})
    taken = {*roles.values(), *_INDEX}
    others = [name for name in header if name not in taken]
    table = _Table(where, header, kind, columns, roles, others, look, request.class_names)
    if "scores" in columns:
        return _mapped_scores(table)
    if found := _by_prefix(table):
        return table.layout(*found)
    named = _named_like_classes(table, request.class_names)
    if not named or "predicted" in roles:
        roles |= find_roles(where, others, columns, {"confidence": default["confidence"]})
    pair = "predicted" in roles and "confidence" in roles
    if pair and named and kind is None:
        readings = {"one column per class": "--kind probabilities", "a class and its confidence": "--kind confidence"}
        raise _several(where, header, readings)
    if pair and not (named and kind in ("logits", "probabilities")):
        return table.class_and_score()
    if named:
        return table.layout("scores", named)
    if "confidence" in roles:
        return table.single(_ONE_SCORE.get(roles["confidence"].lower(), "scores"), roles["confidence"], None)
    numbers = [name for name in others if look.is_number(name)]
    if "positive" in columns and len(numbers) == 1:
        return table.single("scores", numbers[0], None)
    rule = "have scores: columns like probability_cat, columns named like the labels, or predicted and confidence"
    hint = ""
    if header:
        hint = "Name them: --columns 'scores=PATTERN', or predicted=COLUMN,confidence=COLUMN."
    raise invalid(where, rule, shortened(header, 12) or "no columns", hint)


def _by_prefix(table: _Table) -> tuple[str, dict[str, str]] | None:
    """Columns with a prefix: what it says, and the class of each column."""
    by_word: dict[str, dict[str, str]] = {}
    weak: dict[str, dict[str, str]] = {}
    for heading in table.others:
        prefix = next((prefix for prefix in PREFIXES if heading.startswith(prefix) and heading != prefix), None)
        if prefix is not None:
            words = by_word
            if prefix in _WEAK_PREFIXES:
                words = weak
            words.setdefault(PREFIXES[prefix], {})[heading] = heading.removeprefix(prefix)
    if not by_word:
        by_word = {word: columns for word, columns in weak.items() if len(columns) > 1} or weak
    if len(by_word) > 1:
        readings = {}
        for word, columns in by_word.items():
            prefix = next(iter(columns)).removesuffix(next(iter(columns.values())))
            readings[f"{word} in {shortened(list(columns), 2)}"] = f"--columns 'scores={prefix}*'"
        raise _several(table.where, table.header, readings)
    for word, columns in by_word.items():
        return word, columns
    return None


def _mapped_scores(table: _Table) -> Layout:
    """The columns that the user says are scores: patterns, separated by |."""
    patterns = table.columns["scores"].split("|")
    chosen = [name for name in table.others if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        there = shortened(table.others, 12)
        raise InvalidInput(f"{table.where}: no column is called {table.columns['scores']!r}. There are: {there}.")
    prefixes = [prefix for prefix in PREFIXES if all(name.startswith(prefix) and name != prefix for name in chosen)]
    if prefixes:
        return table.layout(PREFIXES[prefixes[0]], {name: name.removeprefix(prefixes[0]) for name in chosen})
    word = _ONE_SCORE.get(chosen[0].lower(), "scores")
    if len(chosen) == 1:
        return table.single(word, chosen[0], None)
    head, star, tail = table.columns["scores"].partition("*")
    if not star or any(sign in tail for sign in "*|?["):
        head = tail = ""
    return table.layout("scores", {name: name.removeprefix(head).removesuffix(tail) for name in chosen})


def _named_like_classes(table: _Table, class_names: Sequence[str] | None) -> dict[str, str]:
    """Columns of numbers that are named like the classes, if all of them are there."""
    if class_names is not None and set(class_names) <= set(table.others):
        return {name: name for name in class_names}
    labels = table.labels()
    if len(labels) < 2 or not labels <= set(table.others):
        return {}
    numbers = [name for name in table.others if table.look.is_number(name)]
    classes = [name for name in numbers if name in labels]
    if len(classes) < len(labels):
        return {}
    rest = [name for name in numbers if name not in labels and name.lower() not in _ONE_SCORE]
    if rest:
        without_a_case = "is a class without a case, too"
        if len(rest) > 1:
            without_a_case = "are classes without a case, too"
        readings = {
            f"only {shortened(classes)} are classes": f"--columns 'scores={'|'.join(classes)}'",
            f"{shortened(rest)} {without_a_case}": f"--columns 'scores={'|'.join([*classes, *rest])}'",
        }
        raise _several(table.where, table.header, readings)
    return {name: name for name in classes}


def plain_label(label: str) -> str:
    """Text of a label; tools that convert numbers to floats write 1.0 for 1."""
    whole = WHOLE.fullmatch(label.strip())
    if whole:
        return str(int(whole[1]))
    return label.strip()


def _refuse_separator(where: str, header: Sequence[str]) -> None:
    """Refuse a header that is one cell because its columns are not separated by commas."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and separator in header[0]:
            hint = "Save the table again with commas between columns and points in decimals."
            raise invalid(f"{where}: columns", "be separated by commas", name, hint)


def resolve_kind(where: str, word: str, kind: Kind | None) -> Kind:
    """Decide what the scores are, from the file's word ("scores" if it does not say) and from the user's."""
    if kind in ("confidence", "score"):
        hint = "Name the column of the predicted class: --columns predicted=COLUMN."
        raise invalid("kind", "be logits or probabilities for scores of all classes", kind, hint)
    if word == "scores":
        if kind is None:
            hint = "Say it: --kind logits or --kind probabilities (kind= in Python)."
            raise InvalidInput(f"{where} does not say whether its scores are logits or probabilities. {hint}")
        return kind
    if kind not in (None, word):
        hint = f"Rename the columns, or leave --kind {kind} out."
        raise invalid(f"{where}: scores", f"be {kind} as you said", f"{word} by their name", hint)
    if word == "logits":
        return "logits"
    return "probabilities"


def shortened(names: Sequence[str], most: int = 5) -> str:
    """Join the first `most` names for a message."""
    shown = [name[:40] for name in names[:most]]
    if len(names) > most:
        shown.append("...")
    return ", ".join(shown)


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
