"""Apply a policy to a file of any length: predictions in, one decision per id out, block by block."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.policy import Policy, name_lists
from calibrant.decisions.rule import Routed
from calibrant.display import ShownFields
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import as_path, atomic_stream
from calibrant.predictions import (
    Block,
    DistinctIds,
    Kind,
    Scan,
    names_or_numbers,
    parquet_module,
    scan,
)

COLUMNS = ("id", "decision", "predicted", "class", "confidence")
SHORTLIST = "shortlist"
Write = Callable[[NDArray[Any], Routed, list[list[str]], Sequence[NDArray[Any]]], None]
# What a spreadsheet takes for a formula, except numbers.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NOT_PLAIN = r'^[=+\-@\t]|[",\r\n]'
_NUMBER = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class RouteCounts(ShownFields):
    """How many cases a file had.

    Attributes:
        cases: Rows.
        automated: Those that the rule automates; the others go to a person.
    """

    cases: int
    automated: int


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
        columns: Where the id has another name: `{"id": "case"}`.
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
        opened = scan(source, kind=kind, columns=columns)
        self.policy.routing.check_classes(opened.n_classes)
        for name in self.keep:
            if name not in opened.extras or name in (*COLUMNS, SHORTLIST):
                known = [each for each in opened.extras if each not in (*COLUMNS, SHORTLIST)]
                way_out = did_you_mean(name, known) if known else "There are no other columns."
                raise invalid("keep", f"name columns of {opened.where} that decisions have not", repr(name), way_out)
        if self.policy.calibrator is not None:
            self.policy.calibrator.refuse_other_kind(opened.kind)
        # Columns may stand in any order; names decide.
        return opened.with_class_names(names_or_numbers(self.policy.class_names, self.policy.n_classes))

    @contextmanager
    def writer(self, path: Path, opened: Scan) -> Iterator[Write]:
        """A function that appends the rows of a block; the file appears when all is written."""
        writers = {".csv": _csv_writer, ".parquet": _parquet_writer}
        if path.suffix.lower() not in writers:
            raise invalid("output", f"end in one of {', '.join(writers)}", str(path))
        make, names, lists = writers[path.suffix.lower()], opened.class_names or (), self.policy.shortlist is not None
        headings = [*COLUMNS, *([SHORTLIST] if lists else []), *self.keep]
        with atomic_stream(path) as handle, make(handle, names, headings, lists=lists) as write:
            yield write

    def route(
        self, opened: Scan, write: Write, *, first: int = 0, secret: bytes | None = None
    ) -> tuple[RouteCounts, DistinctIds]:
        """Decide all rows and write them; the ids are still to be checked.

        Args:
            opened: What `open` gave, or a part of it.
            write: Is given the rows of a block.
            first: Number of the first row, where rows have no ids.
            secret: See `DistinctIds`.
        """
        cases = automated = 0
        distinct = DistinctIds(secret)
        for block in opened.blocks(targets=False, extras=self.keep):
            numbers = np.arange(first + block.start, first + block.start + len(block))
            if block.ids is not None:
                distinct.add(block.ids)
            probabilities = self._probabilities(block, opened)
            routed = self.policy.routing.decide(probabilities)
            lists = name_lists(self.policy, probabilities, routed.automate)
            ids = numbers if block.ids is None else block.ids
            write(ids, routed, lists, [block.extras[name] for name in self.keep])
            cases += len(block)
            automated += int(routed.automate.sum())
        return RouteCounts(cases, automated), distinct

    def _probabilities(self, block: Block, opened: Scan) -> NDArray[np.float64]:
        return self.policy.probabilities(block.scores, opened.kind, precision=opened.precision, first=block.start)


@contextmanager
def _csv_writer(handle: IO[bytes], names: Sequence[str], headings: Sequence[str], *, lists: bool) -> Iterator[Write]:
    handle.write(_csv_lines([[_harmless(heading) for heading in headings]]))
    classes = np.array([_harmless(name) for name in names], dtype=object)

    def write(ids: NDArray[Any], routed: Routed, shortlists: list[list[str]], kept: Sequence[NDArray[Any]]) -> None:
        quick = None if lists or kept else _plain_lines(ids, routed, classes)
        if quick is not None:
            handle.write(quick)
            return
        columns: list[list[Any]] = [_shown(ids), routed.decisions, routed.predicted.tolist()]
        columns += [classes[routed.predicted].tolist(), routed.confidence.tolist()]
        if lists:
            # JSON: a class may have any name, with commas and semicolons in it.
            columns.append([json.dumps(own, ensure_ascii=False) if own else "" for own in shortlists])
        columns += [_shown(column) for column in kept]
        handle.write(_csv_lines(zip(*columns, strict=True)))

    yield write


def _csv_lines(rows: Iterable[Iterable[Any]]) -> bytes:
    # A text layer over the file would cost as much again as the formatting: it is called for every row.
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _shown(column: NDArray[Any]) -> list[Any]:
    return [_harmless(str(value)) for value in column] if column.dtype.kind in "OU" else column.tolist()


def _plain_lines(ids: NDArray[Any], routed: Routed, classes: NDArray[Any]) -> bytes | None:
    """What the csv module would write, several times as fast; None where pyarrow is missing or would write otherwise.

    That is text with quotes or a formula, and numbers below 0.0001 (1e-5, where Python writes 1e-05).
    """
    try:
        import pyarrow as pa
        from pyarrow import compute
    except ImportError:
        return None
    own = pa.array(ids, pa.string()) if ids.dtype.kind in "OU" else pa.array(ids).cast(pa.string())
    names = pa.array(classes, pa.string())
    odd = any(compute.any(compute.match_substring_regex(text, _NOT_PLAIN)).as_py() for text in (own, names))
    if odd or not routed.confidence.min() > 1e-4:
        return None
    confidence = pa.array(routed.confidence).cast(pa.string())
    lines = compute.binary_join_element_wise(
        own,
        pa.array(routed.decisions, pa.string()),
        pa.array(routed.predicted).cast(pa.string()),
        names.take(pa.array(routed.predicted)),
        compute.if_else(pa.array(routed.confidence == 1.0), "1.0", confidence),
        ",",
    )
    (whole,) = compute.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n").to_pylist()
    return bytes(whole.encode() + b"\n")


def _harmless(text: str) -> str:
    """Text that a spreadsheet shows and does not run: what it would read as a formula begins with an apostrophe."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else str(text)


@contextmanager
def _parquet_writer(
    handle: IO[bytes], names: Sequence[str], headings: Sequence[str], *, lists: bool
) -> Iterator[Write]:
    arrow = parquet_module()
    types = [arrow.string(), arrow.int64(), arrow.string(), arrow.float64()]
    types += [arrow.list_(arrow.string())] if lists else []
    classes = np.array(names, dtype=object)
    writers: list[Any] = []

    def write(ids: NDArray[Any], routed: Routed, shortlists: list[list[str]], kept: Sequence[NDArray[Any]]) -> None:
        columns: list[Any] = [routed.decisions, routed.predicted, classes[routed.predicted], routed.confidence]
        columns += [shortlists] if lists else []
        own, *others = (arrow.array(each, arrow.string() if each.dtype.kind in "OU" else None) for each in (ids, *kept))
        # Types are told, not guessed: a first block without any list would have lists of nothing.
        arrays = [arrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        table = arrow.table([own, *arrays, *others], names=list(headings))
        if not writers:
            writers.append(arrow.parquet.ParquetWriter(handle, table.schema, write_page_checksum=True))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
