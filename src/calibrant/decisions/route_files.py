"""Apply a policy to a file of any length: predictions in, one decision per id out, block by block."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.multilabel import MultiLabel
from calibrant.decisions.policy import Policy
from calibrant.decisions.rule import Routed, percent
from calibrant.decisions.shortlist import candidate_columns, candidates
from calibrant.errors import InvalidInput, did_you_mean, invalid, naming
from calibrant.files import as_path, atomic_stream
from calibrant.predictions import Block, Kind, Origin, Predictions, Scan, names_or_numbers, scan, table_writer
from calibrant.predictions.columns import DistinctIds, as_ids
from calibrant.predictions.npz import calibrated_by
from calibrant.tables import ShownFields

SHORTLIST = "shortlist"
_COLUMNS = ("id", "decision", "predicted", "class", "confidence", SHORTLIST)
# What a spreadsheet takes for a formula, except numbers.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class RouteCounts(ShownFields):
    """How many cases a file had."""

    cases: int
    automated: int  # the others go to a person
    unknown_groups: int = 0  # cases whose group the rule does not know, if it has a threshold per group

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
            person: class names, most probable first, as a JSON list.
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
    path = as_path(target, "target")
    suffix = _table_suffix(path)
    opened = _open(policy, source, kind, columns, keep)
    rule = policy.routing
    wanted = list(keep)
    if rule.group_thresholds is not None and rule.groups is not None:
        wanted.append(rule.groups)
    if policy.shortlist is not None and not opened.has_all_classes:
        wanted += [column for pair in candidate_columns(opened.extras) for column in pair]
    names: NDArray[Any] = np.array(names_or_numbers(opened.class_names, opened.n_classes), dtype=object)
    cases = automated = unknown = 0
    distinct = DistinctIds()
    with naming(source), atomic_stream(path) as handle, table_writer(handle, suffix) as append:
        for block in opened.blocks(targets=False, extras=list(dict.fromkeys(wanted))):
            ids: NDArray[Any] = np.arange(block.start, block.start + len(block))
            if block.ids is not None:
                ids = block.ids
                distinct.add(ids)
            if rule.group_thresholds is not None:
                unknown += rule.unknown_groups(block.extras[rule.groups or ""])
            routed, lists = _decided(policy, block, opened)
            written: dict[str, Any] = {
                "id": ids,
                "decision": routed.decisions,
                "predicted": routed.predicted,
                "class": names[routed.predicted],
                "confidence": routed.confidence,
            }
            if policy.shortlist is not None:
                # JSON: a class may have any name, with commas in it.
                written[SHORTLIST] = [json.dumps(names, ensure_ascii=False) if names else "" for names in lists]
            written |= {name: block.extras[name] for name in keep}
            if suffix == ".csv":
                written = _for_csv(written)
            append(written)
            cases += len(block)
            automated += int(routed.automate.sum())
        distinct.check(opened.column)
        if cases == 0:
            raise InvalidInput(f"{source} must have at least one row, got none.")
    return RouteCounts(cases, automated, unknown)


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
        wanted = {"scores": f"p_{label}", "positive": "1", "target": ""}
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


def _open(
    policy: Policy, source: str | Path, kind: Kind | None, columns: Mapping[str, str] | None, keep: Sequence[str]
) -> Scan:
    """Predictions with the classes of the policy in their order; refused if they do not fit it."""
    opened = scan(source, kind=kind, columns=columns, known_classes=policy.class_names)
    rule = policy.routing
    if opened.has_all_classes:
        rule.check_classes(opened.n_classes)
    if rule.group_thresholds is not None and rule.groups not in opened.extras:
        raise invalid(opened.where, f"have the column {rule.groups!r}, which decides the threshold", "none")
    known = [column for column in opened.extras if column not in _COLUMNS]
    for name in keep:
        if name not in known:
            hint = did_you_mean(name, known) if known else "There are no other columns."
            raise invalid("keep", f"name columns of {opened.where} that decisions have not", repr(name), hint)
    if policy.calibrator is not None:
        path = Path(source)
        policy.refuse_calibrated(Origin(path, calibrated_by=calibrated_by(path)))
        policy.calibrator.refuse_other_kind(opened.kind)
    if not opened.has_all_classes:
        return opened
    # Columns may stand in any order; names decide.
    return opened.with_class_names(names_or_numbers(policy.class_names, policy.n_classes))


def _decided(policy: Policy, block: Block, opened: Scan) -> tuple[Routed, list[list[str]]]:
    """Decisions of some rows, and their shortlists by name, best first; empty for automated cases."""
    called: NDArray[Any] | None = None
    if block.predicted is None:
        scores = policy.probabilities(block.scores, opened.kind, precision=opened.precision, first=block.start)
        routed = policy.routing.decide(scores, block.extras.get(policy.routing.groups or ""))
    else:
        names = names_or_numbers(opened.class_names, opened.n_classes)
        cases: Any = {"kind": opened.kind, "classes": names, "extras": block.extras}
        answers = Predictions.from_confidence(block.predicted, block.scores[:, 0], **cases)
        # The predicted class keeps its number in the file.
        routed = replace(policy.decide(answers), predicted=block.predicted)
        if policy.shortlist is not None:
            scores, called = candidates(answers)
    lists: list[list[str]] = [[] for _ in range(len(block))]
    if policy.shortlist is not None:
        reviewed = np.flatnonzero(~routed.automate)
        if called is not None:
            called = called[reviewed]
        for row, listed in zip(reviewed.tolist(), policy.shortlist.names(scores[reviewed], called), strict=True):
            lists[row] = listed
    return routed, lists


def _for_csv(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Guard text against spreadsheets."""
    written: dict[str, Any] = {}
    for name, column in columns.items():
        cells = column
        if isinstance(column, np.ndarray) and column.dtype.kind in "OU":
            cells = np.array([guarded(str(value)) for value in column.tolist()], dtype=object)
        written[guarded(name)] = cells
    return written


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
