"""Which column of a table means what: targets, ids, and scores in one of several forms. Nothing is guessed.

A table has one row per case. Its scores are in one of these forms:

- one column per class, with a prefix (`probability_cat`, `p_cat`, `logit_cat`) or named like the labels (`cat`, `dog`);
- one column for one of two classes (`probability`, `p_yes`);
- a class and a score: `predicted`, `confidence`.

If a table fits several forms, the error lists them with the flag that chooses each.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

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
# Names of columns that have a role without being mapped.
_DEFAULTS = {
    "target": ("target", "label", "y", "y_true", "truth", "ground_truth", "true_label", "true_class", "gold"),
    "id": ("id",),
    "predicted": ("predicted", "prediction", "y_pred", "predicted_label", "predicted_class"),
}
# Names of one column with a score, and what it is.
_ONE_SCORE = {
    "confidence": "probabilities",
    "probability": "probabilities",
    "prob": "probabilities",
    "proba": "probabilities",
    "p": "probabilities",
    "y_prob": "probabilities",
    "y_proba": "probabilities",
    "y_score": "scores",
    "logit": "logits",
    "score": "scores",
}
RIGHT_OR_WRONG = ("wrong", "right")
"""Classes of a rule for predictions of a class and a score: whether the prediction is right."""
_NO_LABEL = "Leave out the rows without a label."
# Names of an index without a name: as pandas writes it, as it reads it back, and as it puts it into Parquet.
_INDEX = ("", "Unnamed: 0", "__index_level_0__")
_ZERO_AND_ONE = {"0", "1"}
# A class number. Tools that convert numbers to floats (one missing value is enough) write 1.0 for 1.
WHOLE = re.compile(r"([0-9]{1,9})(?:\.0*)?")
_DECIMAL = re.compile(r"\s*-?[0-9]*\.[0-9]+(?:[eE]-?[0-9]+)?\s*")


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
    free = [column for column in there if column not in mapped]
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


def _several(where: str, header: Sequence[str], ways: Mapping[str, str]) -> InvalidInput:
    """The error for a table that can be read in several ways, with the flag for each."""
    listed = "; ".join(f"{text}: {flag}" for text, flag in ways.items())
    return InvalidInput(
        f"{where} can be read in {len(ways)} ways. Its columns: {shortened(header, 12)}. Choose one. {listed}."
    )


class TableReading:
    """Finds the meaning of each column of a table.

    `labels_in` returns the distinct values of a column as text, and `is_number` says whether a column holds numbers:
    cells are read if names of columns do not suffice.
    """

    def __init__(
        self,
        where: str,
        header: Sequence[str],
        request: Request,
        labels_in: Callable[[str], set[str]],
        is_number: Callable[[str], bool],
    ) -> None:
        self.where = where
        self.header = header
        self.kind = request.kind
        self.columns = request.columns
        # Those of the user or of a policy. New cases have no labels that would name the classes.
        self.class_names = request.class_names
        self.right_or_wrong = self.class_names == RIGHT_OR_WRONG  # the policy is for a class and a score
        if self.right_or_wrong:
            self.class_names = None
        self.labels_in = labels_in
        self.is_number = is_number
        self.roles = find_roles(where, header, self.columns, _DEFAULTS)
        taken = {*self.roles.values(), *_INDEX}
        self.others = [name for name in header if name not in taken]  # without a role

    def layout(self) -> Layout:
        """Find the form of the scores."""
        if "scores" in self.columns:
            return self._mapped_scores()
        by_prefix = self._by_prefix()
        if by_prefix is not None:
            return self._all_classes(*by_prefix)
        named = self._named_like_classes()
        if not named or "predicted" in self.roles:
            self.roles |= find_roles(self.where, self.others, self.columns, {"confidence": tuple(_ONE_SCORE)})
        confidence = self.roles.get("confidence")
        pair = "predicted" in self.roles and confidence is not None and "positive" not in self.columns
        if pair and named and self.kind is None:
            ways = {"one column per class": "--kind probabilities", "a class and its confidence": "--kind confidence"}
            raise _several(self.where, self.header, ways)
        if pair and not (named and self.kind in ("logits", "probabilities")):
            return self._class_and_score()
        if named:
            return self._all_classes("scores", named)
        if confidence is not None:
            return self._one_of_two(_word_of(confidence), confidence)
        numbers = [name for name in self.others if self.is_number(name)]
        if "positive" in self.columns and len(numbers) == 1:
            return self._one_of_two("scores", numbers[0])
        raise self._without_scores()

    def _without_scores(self) -> InvalidInput:
        rule = "have scores: columns like probability_cat, columns named like the labels, or predicted and confidence"
        hint = ""
        if self.header:
            hint = "Name them: --columns 'scores=PATTERN', or predicted=COLUMN,confidence=COLUMN."
        if any(_DECIMAL.fullmatch(name) for name in self.header):
            hint = "Its first line must hold the names of the columns."
        return invalid(self.where, rule, shortened(self.header, 12) or "no columns", hint)

    def _by_prefix(self) -> tuple[str, dict[str, str]] | None:
        """Columns with a prefix: what it says, and the class of each column."""
        by_word: dict[str, dict[str, str]] = {}
        weak: dict[str, dict[str, str]] = {}
        for heading in self.others:
            prefix = next((prefix for prefix in PREFIXES if heading.startswith(prefix) and heading != prefix), None)
            if prefix is not None:
                words = by_word
                if prefix in _WEAK_PREFIXES:
                    words = weak
                words.setdefault(PREFIXES[prefix], {})[heading] = heading.removeprefix(prefix)
        if not by_word:
            by_word = {word: columns for word, columns in weak.items() if len(columns) > 1} or weak
        if len(by_word) > 1:
            ways = {}
            for word, columns in by_word.items():
                prefix = next(iter(columns)).removesuffix(next(iter(columns.values())))
                ways[f"{word} in {shortened(list(columns), 2)}"] = f"--columns 'scores={prefix}*'"
            raise _several(self.where, self.header, ways)
        return next(iter(by_word.items()), None)

    def _mapped_scores(self) -> Layout:
        """The columns that the user says are scores: patterns, separated by |."""
        mapped = self.columns["scores"]
        chosen = [name for name in self.others if any(fnmatchcase(name, pattern) for pattern in mapped.split("|"))]
        if not chosen:
            there = shortened(self.others, 12)
            raise InvalidInput(f"{self.where}: no column is called {mapped!r}. There are: {there}.")
        for prefix, word in PREFIXES.items():
            if all(name.startswith(prefix) and name != prefix for name in chosen):
                return self._all_classes(word, {name: name.removeprefix(prefix) for name in chosen})
        if len(chosen) == 1:
            return self._one_of_two(_word_of(chosen[0]), chosen[0])
        head, star, tail = mapped.partition("*")
        if not star or any(sign in tail for sign in "*|?["):
            head = tail = ""
        return self._all_classes("scores", {name: name.removeprefix(head).removesuffix(tail) for name in chosen})

    def _named_like_classes(self) -> dict[str, str]:
        """Columns of numbers that are named like the classes, if all of them are there."""
        if self.class_names is not None and set(self.class_names) <= set(self.others):
            return {name: name for name in self.class_names}
        labels = self._labels
        if len(labels) < 2 or not labels <= set(self.others):
            return {}
        numbers = [name for name in self.others if self.is_number(name)]
        classes = [name for name in numbers if name in labels]
        if len(classes) < len(labels):
            return {}
        rest = [name for name in numbers if name not in labels and name.lower() not in _ONE_SCORE]
        if rest:
            without_a_case = "is a class without a case, too"
            if len(rest) > 1:
                without_a_case = "are classes without a case, too"
            ways = {
                f"only {shortened(classes)} are classes": f"--columns 'scores={'|'.join(classes)}'",
                f"{shortened(rest)} {without_a_case}": f"--columns 'scores={'|'.join([*classes, *rest])}'",
            }
            raise _several(self.where, self.header, ways)
        return {name: name for name in classes}

    @cached_property
    def _labels(self) -> set[str]:
        """The distinct targets as text, for which the whole file is read."""
        if "target" not in self.roles:
            return set()
        return {plain_label(label) for label in self.labels_in(self.roles["target"])}

    def _all_classes(self, word: str, names: Mapping[str, str]) -> Layout:
        """One column per class: the class name of each heading."""
        if len(names) == 1:
            ((heading, name),) = names.items()
            return self._one_of_two(word, heading, name)
        if set(names.values()) == set(map(str, range(len(names)))):
            # Classes with numbers for names are sorted by number: tools like to sort 10 before 2.
            names = dict(sorted(names.items(), key=lambda item: int(item[1])))
        kind = resolve_kind(self.where, word, self.kind)
        return self._made(kind, tuple(names), tuple(names.values()))

    def _one_of_two(self, word: str, heading: str, named: str | None = None) -> Layout:
        """One column: the score of one of two classes. `named` is the class in the name of the column."""
        labels = self._labels
        if self.class_names is not None and len(self.class_names) == 2 and labels <= set(self.class_names):
            labels = set(self.class_names)
        if "" in labels:
            raise invalid(f"{self.where}: targets", "have a label in every row", "an empty cell", _NO_LABEL)
        positive = self.columns.get("positive", named)
        if positive == "1" and {label.lower() for label in labels} <= {"true", "false"}:
            positive = next((label for label in labels if label.lower() == "true"), "True")
        if positive is None or ("positive" not in self.columns and not _is_one_of(positive, labels)):
            raise self._which_is_positive(heading, labels, named)
        if len(labels) > 2:
            hint = "One column of scores is enough for two classes only. Write a column for each class."
            raise invalid(f"{self.where}: targets", "have two classes", shortened(sorted(labels)), hint)
        if len(labels | {positive}) > 2:
            hint = f"Labels of {self.where}: {shortened(sorted(labels))}."
            raise invalid("positive", "be one of the labels", repr(positive), hint)
        kind = resolve_kind(self.where, word, self.kind)
        other = {"1": "0", "0": "1"}.get(positive, f"not {positive}")
        for label in labels - {positive}:
            other = label
        names = (other, positive)
        if set(names) == _ZERO_AND_ONE:
            names = ("0", "1")
        return self._made(kind, (heading,), names, positive=names.index(positive))

    def _which_is_positive(self, heading: str, labels: set[str], named: str | None) -> InvalidInput:
        classes = set(labels)
        if len(labels) == 1 and named is not None:
            classes.add(named)
        if labels and labels <= _ZERO_AND_ONE:
            classes = _ZERO_AND_ONE
        ways = {}
        if len(classes) <= 2:
            ways = _ways_of_positive(heading, classes)
        for name in self._may_be_predicted(labels):
            ways[f"{heading!r} is the score of the class in {name!r}"] = f"--columns {shlex.quote(f'predicted={name}')}"
        if len(ways) > 1:
            return _several(self.where, self.header, ways)
        hint = (
            f"If {heading!r} is the score of one of two classes, name that class: --positive CLASS. If it is that of a "
            "predicted class, name the column of that class: --columns predicted=COLUMN."
        )
        for text, flag in ways.items():
            hint = f"If {text}: {flag}."
        if len(classes) == 1:
            hint += " If not, name the other class so."
            return invalid(f"{self.where}: labels", "be of two classes", f"{min(labels)!r} in every row", hint)
        return invalid(self.where, "have scores for at least two classes", shortened(self.header, 12), hint)

    def _may_be_predicted(self, labels: set[str]) -> list[str]:
        """Columns that may hold the predicted class: text of which some is a label."""
        columns = []
        for name in self.others:
            with suppress(InvalidInput):  # of Parquet: a list, or a missing value
                if not self.is_number(name) and not labels.isdisjoint(self.labels_in(name)):
                    columns.append(name)
        return columns

    def _class_and_score(self) -> Layout:
        """A predicted class and its score."""
        heading = self.roles["confidence"]
        if self.kind == "logits":
            raise invalid("kind", "be confidence or score for one score of the predicted class", "logits")
        ways = {}
        if self.kind is None and _word_of(heading) == "scores":
            ways[f"{heading!r} is a probability in 0..1"] = "--kind confidence"
            ways[f"{heading!r} is any number that is only ranked"] = "--kind score"
        # Beside predictions of two classes, the probability of one of them is as usual as that of the predicted one.
        stated = self.right_or_wrong or heading.lower() == "confidence" or "confidence" in self.columns
        if self.kind not in ("confidence", "score") and not stated:
            labels = self._labels | set(map(plain_label, self.labels_in(self.roles["predicted"])))
            if len(labels) <= 2:
                ways = ways or {f"{heading!r} is the probability of the predicted class": "--kind confidence"}
                ways |= _ways_of_positive(heading, labels)
        if ways:
            raise _several(self.where, self.header, ways)
        kind: Kind = "confidence"
        if self.kind == "score":
            kind = "score"
        return self._made(kind, (heading,), (), predicted=self.roles["predicted"])

    def _made(
        self,
        kind: Kind,
        headings: tuple[str, ...],
        names: tuple[str, ...],
        *,
        predicted: str | None = None,
        positive: int | None = None,
    ) -> Layout:
        target, row_id = self.roles.get("target"), self.roles.get("id")
        # Not an extra: a column with our own name for a role that another column was mapped to. Nor other scores.
        used = {*headings, target, row_id, predicted, *_INDEX, "target", "id"}
        extras = [name for name in self.header if name not in used and not name.startswith(RESERVED_PREFIXES)]
        return Layout(kind, headings, names, target, row_id, tuple(extras), predicted, positive)


def _word_of(heading: str) -> str:
    """What a single column of scores holds by its name; "scores" if that does not say it."""
    return _ONE_SCORE.get(heading.lower(), "scores")


def _ways_of_positive(heading: str, classes: Collection[str]) -> dict[str, str]:
    return {f"{heading!r} is the score of {name!r}": f"--positive {shlex.quote(name)}" for name in sorted(classes)}


def _is_one_of(named: str, labels: set[str]) -> bool:
    """Whether the class in the name of a column is one of two classes by these labels. One of p_value is not."""
    if labels | {named} <= _ZERO_AND_ONE:
        return True
    return named in labels and len(labels) <= 2


def plain_label(label: str) -> str:
    """Text of a label; tools that convert numbers to floats write 1.0 for 1."""
    whole = WHOLE.fullmatch(label.strip())
    if whole:
        return str(int(whole[1]))
    return label.strip()


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
    """Return a name that occurs twice, or None."""
    return next((name for name, count in Counter(names).items() if count > 1), None)
