"""Apply a policy to a file of any length: predictions in, one decision per id out, block by block."""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.multilabel import MultiLabel
from calibrant.decisions.policy import Policy
from calibrant.decisions.rule import Routed, percent
from calibrant.decisions.shortlist import candidate_columns, candidates
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import as_path, atomic_folder, atomic_stream
from calibrant.predictions import Block, Kind, Origin, Predictions, Scan, names_or_numbers, scan, table_writer
from calibrant.predictions.columns import as_ids
from calibrant.predictions.npz import calibrated_by
from calibrant.predictions.reader import DistinctIds
from calibrant.scale import Executor, map_parts
from calibrant.tables import ShownFields

COLUMNS = ("id", "decision", "predicted", "class", "confidence")
SHORTLIST = "shortlist"
Write = Callable[[NDArray[Any], Routed, list[list[str]], Sequence[NDArray[Any]]], None]
# What a spreadsheet takes for a formula, except numbers.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class RouteCounts(ShownFields):
    """How many cases a file had.

    Attributes:
        cases: Rows.
        automated: Those that the rule automates; the others go to a person.
        unknown_groups: Those whose group the rule does not know, if it has a threshold per group. They go to a person.
    """

    cases: int
    automated: int
    unknown_groups: int = 0

    def describe(self) -> str:
        """One sentence."""
        share = percent(self.automated, self.cases)
        sentence = f"{self.automated:,} of {self.cases:,} cases are automated ({share}), the others go to a person."
        if self.unknown_groups:
            return f"{sentence} {self.unknown_groups:,} cases have a group that the rule does not know."
        return sentence


def route_file(
    policy: Policy,
    source: str | Path,
    target: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
) -> RouteCounts:
    """Decide every row of `source` and write `target`; both are read and written in blocks.

    Args:
        policy: Calibrates and decides. With a shortlist, a column `shortlist` is added for the cases that go to a
            person: class names, most probable first, as a list in Parquet and as a JSON list in CSV.
        source: Raw scores of the model, as `calibrant.predictions.scan` reads them: `.npz`, `.csv`, `.parquet`, a
            folder or pattern of Parquet files. Targets are ignored. Rows without ids are numbered from 0. Class names
            decide the order of columns; a policy without names takes classes called 0..K-1 only.
        target: `.csv` or `.parquet`, with columns id, decision (auto or review), predicted (class number), class (its
            name), confidence (calibrated top probability). Written all or nothing. In CSV, text that a spreadsheet
            would run as a formula gets an apostrophe in front.
        kind: What the scores are, for a file that does not say: array `scores`, columns `score_<class>`.
        columns: If the id has another name: `{"id": "case"}`.
        keep: Names of other columns of the source that are written behind the decisions, as groups for the monitor.
    """
    router = Router(policy, keep)
    opened = router.open(source, kind, columns)
    with router.writer(as_path(target, "target"), opened) as write:
        counts, distinct = router.route(opened, write)
        distinct.check(opened.column)
        if counts.cases == 0:
            raise InvalidInput(f"{source} must have at least one row, got none.")
    return counts


def route_labels(rules: MultiLabel, source: str | Path, target: str | Path) -> dict[str, dict[str, int]]:
    """Decide every label of every row of a table.

    Args:
        rules: What decides.
        source: A table with the column of each label's probability; rows without ids are numbered from 0.
        target: `.csv` or `.parquet`, with the columns id and one per label: negative, positive or review. Written
            all or nothing.

    Returns:
        For each label, how many cases got each decision.
    """
    columns: dict[str, Any] = {}
    probabilities = []
    for label in rules.labels:
        wanted = {"scores": rules.probability.format(label), "positive": "1", "target": ""}
        blocks = list(scan(source, kind="probabilities", columns=wanted).blocks(extras=()))
        if not blocks:
            raise InvalidInput(f"{source} must have at least one row, got none.")
        probabilities.append(np.concatenate([block.scores[:, 1] for block in blocks]))
        columns["id"] = np.arange(len(probabilities[0]))
        if blocks[0].ids is not None:
            columns["id"] = as_ids(np.concatenate([block.ids for block in blocks]), len(probabilities[0]))
    decisions = rules.decide(np.stack(probabilities, axis=1))
    columns |= {label: decisions[:, place] for place, label in enumerate(rules.labels)}
    path = as_path(target, "target")
    suffix = _table_suffix(path)
    if suffix == ".csv":
        columns = _for_csv(columns)
    with atomic_stream(path) as handle, table_writer(handle, suffix) as append:
        append(columns)
    counts = {}
    for place, label in enumerate(rules.labels):
        counts[label] = {word: int((decisions[:, place] == word).sum()) for word in ("negative", "positive", "review")}
    return counts


def _table_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise invalid("output", "end in one of .csv, .parquet", str(path))
    return suffix


@dataclass(frozen=True)
class Router:
    """What decides the rows of a file.

    Attributes:
        policy: Calibrates and decides.
        keep: Other columns that are written, too.
    """

    policy: Policy
    keep: Sequence[str]

    def open(self, source: str | Path, kind: Kind | None, columns: Mapping[str, str] | None) -> Scan:
        """Predictions with the classes of the policy in their order; refused if they do not fit it."""
        opened = scan(source, kind=kind, columns=columns, known_classes=self.policy.class_names)
        rule = self.policy.routing
        if opened.answers is None:
            rule.check_classes(opened.n_classes)
        if rule.group_thresholds is not None and rule.groups not in opened.extras:
            raise invalid(opened.where, f"have the column {rule.groups!r}, which decides the threshold", "none")
        for name in self.keep:
            if name not in opened.extras or name in (*COLUMNS, SHORTLIST):
                known = [column for column in opened.extras if column not in (*COLUMNS, SHORTLIST)]
                way_out = "There are no other columns."
                if known:
                    way_out = did_you_mean(name, known)
                raise invalid("keep", f"name columns of {opened.where} that decisions have not", repr(name), way_out)
        if self.policy.calibrator is not None:
            path = Path(source)
            self.policy.refuse_calibrated(Origin(path, calibrated_by=calibrated_by(path)))
            self.policy.calibrator.refuse_other_kind(opened.kind)
        if opened.answers is not None:
            return opened
        # Columns may stand in any order; names decide.
        return opened.with_class_names(names_or_numbers(self.policy.class_names, self.policy.n_classes))

    @contextmanager
    def writer(self, path: Path, opened: Scan) -> Iterator[Write]:
        """Give a function that appends the rows of a block; the file appears when all of them are written."""
        suffix = _table_suffix(path)
        names: NDArray[Any] = np.array(names_or_numbers(opened.class_names, opened.n_classes), dtype=object)
        if suffix == ".csv":
            names = _guarded_column(names)
        with atomic_stream(path) as handle, table_writer(handle, suffix) as append:

            def write(ids: NDArray[Any], routed: Routed, lists: list[list[str]], kept: Sequence[NDArray[Any]]) -> None:
                columns: dict[str, Any] = {
                    "id": ids,
                    "decision": routed.decisions,
                    "predicted": routed.predicted,
                    "class": names[routed.predicted],
                    "confidence": routed.confidence,
                }
                if self.policy.shortlist is not None:
                    columns[SHORTLIST] = lists
                columns |= dict(zip(self.keep, kept, strict=True))
                if suffix == ".csv":
                    columns = _for_csv(columns)
                append(columns)

            yield write

    def route(
        self, opened: Scan, write: Write, *, first: int = 0, secret: bytes | None = None
    ) -> tuple[RouteCounts, DistinctIds]:
        """Decide all rows and write them; the ids are still to be checked.

        Args:
            opened: What `open` gave, or a part of it.
            write: Is given the rows of a block.
            first: Number of the first row, if rows have no ids.
            secret: See `DistinctIds`.
        """
        cases = automated = unknown = 0
        rule = self.policy.routing
        wanted = list(self.keep)
        if rule.group_thresholds is not None and rule.groups is not None:
            wanted.append(rule.groups)
        if self.policy.shortlist is not None and opened.answers is not None:
            wanted += [column for pair in candidate_columns(opened.extras) for column in pair]
        wanted = list(dict.fromkeys(wanted))
        distinct = DistinctIds(secret)
        for block in opened.blocks(targets=False, extras=wanted):
            ids: NDArray[Any] = np.arange(first + block.start, first + block.start + len(block))
            if block.ids is not None:
                ids = block.ids
                distinct.add(ids)
            groups = None
            if rule.group_thresholds is not None:
                groups = block.extras[rule.groups or ""]
                unknown += rule.unknown_groups(groups)
            if block.predicted is not None:
                routed, lists = self._decide_answers(block, opened)
            else:
                probabilities = self.policy.probabilities(
                    block.scores, opened.kind, precision=opened.precision, first=block.start
                )
                routed = rule.decide(probabilities, groups)
                lists = self._shortlists(probabilities, None, routed.automate)
            write(ids, routed, lists, [block.extras[name] for name in self.keep])
            cases += len(block)
            automated += int(routed.automate.sum())
        return RouteCounts(cases, automated, unknown), distinct

    def _decide_answers(self, block: Block, opened: Scan) -> tuple[Routed, list[list[str]]]:
        """Decide rows of a class and a score. The predicted class keeps its number in the file."""
        names = names_or_numbers(opened.class_names, opened.n_classes)
        cases: Any = {"kind": opened.kind, "classes": names, "extras": block.extras}
        answers = Predictions.from_confidence(block.predicted, block.scores[:, 0], **cases)
        routed = self.policy.decide(answers)
        assert block.predicted is not None
        lists: list[list[str]] = [[] for _ in range(len(block))]
        if self.policy.shortlist is not None:
            lists = self._shortlists(*candidates(answers), routed.automate)
        return replace(routed, predicted=block.predicted), lists

    def _shortlists(
        self, scores: NDArray[np.float64], called: NDArray[Any] | None, automate: NDArray[np.bool_]
    ) -> list[list[str]]:
        """The shortlist of each case by name, best first; empty for automated cases. `called`: see `candidates`."""
        lists: list[list[str]] = [[] for _ in automate]
        if self.policy.shortlist is not None:
            if called is not None:
                called = called[~automate]
            names = self.policy.shortlist.names(scores[~automate], called)
            for row, listed in zip(np.flatnonzero(~automate).tolist(), names, strict=True):
                lists[row] = listed
        return lists


def _for_csv(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Guard text against spreadsheets, and write lists as JSON: a class may have any name, with commas in it."""
    written: dict[str, Any] = {}
    for name, column in columns.items():
        if name == SHORTLIST:
            column = [_json_list(names) for names in column]  # noqa: PLW2901
        elif name != "class" and isinstance(column, np.ndarray):
            column = _guarded_column(column)  # noqa: PLW2901
        written[guarded(name)] = column
    return written


def _json_list(names: list[str]) -> str:
    if not names:
        return ""
    return json.dumps(names, ensure_ascii=False)


def guarded(text: str) -> str:
    """Return text that a spreadsheet shows and does not run: a formula gets an apostrophe in front."""
    if _needs_guard(text):
        return f"'{text}"
    return text


def unguarded(text: str) -> str:
    """Return the text that `route apply` guarded with an apostrophe."""
    if text.startswith("'") and _needs_guard(text[1:]):
        return text[1:]
    return text


def _needs_guard(text: str) -> bool:
    # A formula behind apostrophes as well: otherwise "=1" and "'=1" would be written as the same text.
    return text.lstrip("'").startswith(_FORMULA) and not _NUMBER.fullmatch(text)


def _guarded_column(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind not in "OU":
        return column
    return np.array([guarded(str(value)) for value in column.tolist()], dtype=object)


# -- folders, each file by itself --------------------------------------------------------------------------------------

_Part = tuple[Scan, int, Path]


def route_parts(
    policy: Policy,
    source: str | Path,
    target: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    executor: Executor | None = None,
) -> RouteCounts:
    """Route every row of a folder of Parquet files; the rows of all parts together are those that `route_file` writes.

    Args:
        policy: Calibrates and decides.
        source: As for `route_file`; each file of a folder is a part.
        target: A folder that does not exist yet: `part-00000.parquet` and so on, in the order of the parts. It appears
            when all of them are written.
        kind: What the scores are, for files that do not say.
        columns: If the id has another name.
        keep: Names of other columns that are written, too.
        executor: Where parts are decided; None for this process, one after the other.
    """
    router = Router(policy, keep)
    opened = router.open(Path(source).absolute(), kind, columns)
    # A part without rows has no decisions.
    parts = [part for part in opened.parts() if part.n_rows != 0]
    if not parts:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    secret = secrets.token_bytes(16)
    routed = _Routed(RouteCounts(0, 0), DistinctIds(secret))
    with atomic_folder(target) as draft:
        if executor is not None:
            executor.check_shared(Path(parts[0].where), draft)
        firsts = accumulate((part.n_rows or 0 for part in parts), initial=0)
        files = (draft / f"part-{number:05}.parquet" for number in range(len(parts)))
        work = partial(_route_part, router=router, secret=secret)
        for part in map_parts(work, list(zip(parts, firsts, files, strict=False)), executor):
            routed.merge(part)
        routed.ids.check(opened.column)
    return routed.counts


@dataclass
class _Routed:
    """How many rows were routed, and their ids, which must be distinct over all parts."""

    counts: RouteCounts
    ids: DistinctIds

    def merge(self, part: "_Routed") -> None:
        """Add the next part."""
        self.counts = RouteCounts(
            self.counts.cases + part.counts.cases,
            self.counts.automated + part.counts.automated,
            self.counts.unknown_groups + part.counts.unknown_groups,
        )
        self.ids.merge(part.ids)


def _route_part(item: _Part, *, router: Router, secret: bytes) -> _Routed:
    part, first, target = item
    with router.writer(target, part) as write:
        return _Routed(*router.route(part, write, first=first, secret=secret))
