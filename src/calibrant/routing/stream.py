"""Apply a rule to a file of any length: predictions in, one decision for each id out, block by block."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path, atomic_write
from calibrant.predictions import SUM_TOLERANCE, Kind, as_scores, refuse_scores
from calibrant.routing.reading import parquet_module, read_blocks
from calibrant.routing.rule import RoutingRule
from calibrant.routing.shortlist import Shortlist

COLUMNS = ("id", "decision", "predicted", "class", "confidence")
SHORTLIST = "shortlist"
_Write = Callable[[list[list[Any]]], None]
_Scores = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RouteCounts:
    """How many cases a file had.

    Attributes:
        cases: Rows.
        automated: Those that the rule automates; the others go to a person.
    """

    cases: int
    automated: int


def route_file(
    rule: RoutingRule,
    source: str | Path,
    target: str | Path,
    *,
    kind: Kind | None = None,
    calibrate: Callable[[_Scores], _Scores] | None = None,
    check_kind: Callable[[Kind], None] | None = None,
    shortlist: Shortlist | None = None,
) -> RouteCounts:
    """Route every row of `source` and write `target`; both are read and written in blocks.

    Args:
        rule: The rule; its temperature is applied.
        source: `.csv` or `.parquet` with columns `logit_<class>` or `probability_<class>`, optionally `id`, or `.npz`
            with `logits` or `probabilities`, optionally `ids`. Targets are ignored. Without ids rows are numbered
            from 0. Class names decide over the order of columns; a rule without names takes classes called 0..K-1
            only.
        target: `.csv` or `.parquet`, with columns id, decision (auto or review), predicted (class number), class (its
            name), confidence (calibrated top probability). Written all or nothing.
        kind: What the scores are, for a file that does not say: array `scores`, columns `score_<class>`.
        calibrate: Maps logits to calibrated ones before the rule sees them, as `Calibrator.transform_logits` does: for
            raw scores and a rule that was chosen behind a calibrator.
        check_kind: Called with what the scores are, before anything is written; may refuse.
        shortlist: Adds a column `shortlist` for the cases that go to a person: class names, most probable first, as a
            list in Parquet and as a JSON list in CSV; empty for automated ones.
    """
    if shortlist is not None:
        shortlist.check_fits(rule)
    names = np.array(rule.class_names or [str(k) for k in range(rule.n_classes)], dtype=object)
    seen: set[Any] = set()
    cases = automated = 0
    with _writer(as_path(target, "target"), (*COLUMNS, *([SHORTLIST] if shortlist else []))) as write:
        for block in read_blocks(as_path(source, "source"), rule, kind):
            if check_kind is not None:
                check_kind(block.kind)
            _refuse_repeats(block.ids, seen, cases)
            # The rule checks again; this check knows the row's number in the whole file.
            precision = block.precision or as_scores(block.kind, block.scores, block.kind)[1]
            refuse_scores(block.kind, block.scores, cases, None if block.kind == "logits" else SUM_TOLERANCE[precision])
            if calibrate is not None:
                probabilities = rule.calibrated(calibrate(_as_logits(block.kind, block.scores)), "logits")
            else:
                probabilities = rule.calibrated(block.scores, block.kind, precision=precision)
            routed = rule.decide(probabilities)
            classes = names[routed.predicted].tolist()
            columns = [routed.decisions, routed.predicted.tolist(), classes, routed.confidence.tolist()]
            if shortlist is not None:
                columns.append(_lists(shortlist, probabilities, routed.automate))
            write([list(block.ids), *columns])
            cases += len(block.ids)
            automated += int(routed.automate.sum())
        if cases == 0:
            raise InvalidInput(f"{source} must have at least one row, got none.")
    return RouteCounts(cases, automated)


def _as_logits(kind: str, scores: _Scores) -> _Scores:
    # The smallest double stands for 0, whose logarithm no calibrator takes.
    return scores if kind == "logits" else np.log(np.maximum(scores.astype(np.float64), 5e-324))


def _lists(shortlist: Shortlist, probabilities: NDArray[np.float64], automate: NDArray[np.bool_]) -> list[list[str]]:
    """The shortlist of each case that goes to a person, nothing for the others."""
    found = iter(shortlist.names(probabilities[~automate]))
    return [[] if auto else next(found) for auto in automate.tolist()]


def _refuse_repeats(ids: Sequence[Any], seen: set[Any], first_row: int) -> None:
    for row, name in enumerate(ids):
        if name in seen:
            raise invalid("ids", "be distinct", f"{name!r} again in row {first_row + row}")
        seen.add(name)


@contextmanager
def _writer(path: Path, columns: Sequence[str]) -> Iterator[_Write]:
    """A function that appends columns of a block; the file appears when all is written."""
    writers = {".csv": _csv_writer, ".parquet": _parquet_writer}
    if path.suffix.lower() not in writers:
        raise invalid("output", f"end in one of {', '.join(writers)}", str(path))
    with atomic_write(path) as temporary, writers[path.suffix.lower()](temporary, columns) as write:
        yield write


@contextmanager
def _csv_writer(path: Path, names: Sequence[str]) -> Iterator[_Write]:
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(names)

        def write(columns: list[list[Any]]) -> None:
            plain = [
                _as_text(column) if name == SHORTLIST else column for name, column in zip(names, columns, strict=True)
            ]
            writer.writerows(zip(*plain, strict=True))

        yield write


def _as_text(lists: list[list[str]]) -> list[str]:
    # JSON: a class may have any name, with commas and semicolons in it.
    return [json.dumps(names, ensure_ascii=False) if names else "" for names in lists]


@contextmanager
def _parquet_writer(path: Path, names: Sequence[str]) -> Iterator[_Write]:
    parquet = parquet_module()
    import pyarrow as pa

    writers: list[Any] = []

    def write(columns: list[list[Any]]) -> None:
        content: dict[str, Any] = dict(zip(names, columns, strict=True))
        if SHORTLIST in content:
            # Told, not guessed: a first block without any list would have lists of nothing.
            content[SHORTLIST] = pa.array(content[SHORTLIST], pa.list_(pa.string()))
        table = pa.table(content)
        if not writers:
            writers.append(parquet.ParquetWriter(path, table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
