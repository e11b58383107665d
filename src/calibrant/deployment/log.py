"""`DecisionLog`: every decision of one model in an SQLite file, and the labels that come later."""

import json
import re
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Self
from uuid import uuid4

from calibrant.checks import whole
from calibrant.decisions import Policy
from calibrant.deployment.database import Database, last_number
from calibrant.deployment.decision import (
    ContradictingLabel,
    Decision,
    DuplicateId,
    Logged,
    LoggedDecisions,
    UnknownId,
    check_id,
    microseconds,
    now,
    undamaged,
)
from calibrant.errors import CalibrantError, InvalidInput, OutputError, did_you_mean, invalid
from calibrant.files import as_path, parse_json
from calibrant.predictions import names_or_numbers
from calibrant.predictions.columns import as_class_names
from calibrant.predictions.readings import RIGHT_OR_WRONG

FORMAT = 2
# Rows in a transaction of a purge.
_AT_ONCE = 500
_DIGEST = re.compile("[0-9a-f]{64}")
# How the ids of purged decisions begin.
_PURGED = "calibrant-purged-"
_INSERT = """INSERT INTO calibrant_decisions
    (sequence, id, time, policy, predicted, confidence, automate, shortlist, reason, extras)
    VALUES (:sequence, :id, :time, :policy, :predicted, :confidence, :automate, :shortlist, :reason, :extras)"""
# Decisions with their labels.
_JOINED = "calibrant_decisions AS d LEFT JOIN calibrant_labels AS l ON d.id = l.id"


class DecisionLog:
    """Decisions of one model, in the order in which they were made; rows are added and never changed but by `purge`.

    - One log belongs to one model. Opening it for another is refused; its policy may change, and each decision keeps
      the digest of the policy that made it.
    - The sequence number is the order. Times are kept as the clock gave them, even if it went back.
    - An id is decided once. A second decision with the same id is refused, and with it all of its `append`.
    - The first label of an id counts. The same label again changes nothing; another one is refused. A label of an id
      that was never decided is refused.
    - When `append` or `label` returns, what it was given is on disk. When it raises, nothing of it is.
    - If the file of a log is deleted, moved or replaced while it is open, everything but `close` raises `OutputError`.

    Args:
        place: Path of the SQLite file, which is in write-ahead mode.
        model: Digest of the model; None opens a log that is there, for reading and labels.
        n_classes: For a new log: number of classes.
        class_names: For a new log: their names.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> log = DecisionLog(f"{folder}/decisions.db", model="0" * 64, n_classes=2, class_names=["cat", "dog"])
    >>> log.append([Decision("a", 1, 0.97, True), Decision("b", 0, 0.6, False, extras={"site": "north"})])
    >>> log.label("a", "dog")
    >>> for block in log.decisions():
    ...     print(block.ids.tolist(), block.automate.tolist(), block.target.tolist(), block.extras["site"].tolist())
    ['a', 'b'] [True, False] [1, -1] [None, 'north']
    >>> log.close()
    """

    def __init__(
        self,
        place: str | Path,
        *,
        model: str | None = None,
        n_classes: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        if model is not None and not _DIGEST.fullmatch(model):
            raise invalid("model", "be a SHA-256 in 64 hexadecimal digits", repr(model))
        path = as_path(place, "decision log").absolute()
        if model is None and not path.is_file():
            raise InvalidInput(f"decision log {path} does not exist.")
        if not path.parent.is_dir():
            raise invalid("decision log", "lie in a folder that exists", str(path))
        self._database = Database(path, create=model is not None)
        self.write_seconds = 0.0  # how long the last write took
        self._queue: list[_Waiting] = []
        self._lock = threading.Lock()  # of the queue
        self._turn = threading.Lock()  # of the one who writes
        try:
            self._open(model, n_classes, class_names)
            self._database.keep_file()
        except BaseException:
            self.close()
            raise

    def _open(self, model: str | None, n_classes: int | None, class_names: Sequence[str] | None) -> None:
        row = self._about()
        if row is None:
            if model is None:
                raise InvalidInput("this file holds no decision log. Name the one that calibrant serve writes.")
            if n_classes is None and class_names is not None:
                n_classes = len(class_names)
            n_classes = whole("n_classes", n_classes, 2)
            names = json.dumps(as_class_names(class_names, n_classes))
            self._database.create_tables((FORMAT, model, n_classes, names))
            row = self._about()
        if row["format"] != FORMAT:
            raise invalid("decision log", f"have format {FORMAT}", row["format"], "Use the calibrant that wrote it.")
        if model is not None and row["model"] != model:
            other, hint = f"one of {str(row['model'])[:12]}...", "Begin another log for another model."
            raise invalid("decision log", f"be one of the model {model[:12]}...", other, hint)
        self._database.check_integrity()
        self.model: str = row["model"]
        self.n_classes: int = whole("n_classes of the decision log", row["n_classes"], 2)
        with undamaged():
            names = json.loads(row["class_names"])
            self.class_names: tuple[str, ...] | None = as_class_names(names, self.n_classes)

    def _about(self) -> Any:
        with self._database.reading() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'calibrant_log'").fetchall():
                return None
            return connection.execute("SELECT * FROM calibrant_log").fetchone()

    def close(self) -> None:
        """Close the connections; what was appended is on disk already."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._database.reading() as connection:
            (rows,) = connection.execute("SELECT count(*) FROM calibrant_decisions").fetchone()
        return int(rows)

    def check(self) -> int:
        """The number of the last decision, or an `OutputError` if the log cannot be read or written.

        Unlike everything else, this does not wait for those who write.
        """
        with self._database.reading() as connection:
            number = last_number(connection, "calibrant_decisions")
        self._database.try_writing()
        return number

    # -- decisions ------------------------------------------------------------------------------------------------

    def add_policy(self, policy: Policy) -> str:
        """Keep a policy, so that readers of the log know what was promised; returns its digest."""
        # A policy for a class and a score knows only "right" and "wrong", and the log may have any classes.
        if policy.n_classes != self.n_classes and policy.class_names != RIGHT_OR_WRONG:
            raise invalid("policy", f"be made for the log's {self.n_classes} classes", f"{policy.n_classes} classes")
        content = json.dumps(policy.to_dict(), allow_nan=False)
        with self._database.writing() as connection:
            row = (policy.digest, now(), content)
            connection.execute("INSERT OR IGNORE INTO calibrant_policies VALUES (?, ?, ?)", row)
        return policy.digest

    def policies(self) -> dict[str, Policy]:
        """The policies that were kept, by their digest, the oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT digest, content FROM calibrant_policies ORDER BY time").fetchall()
        return {digest: _stored_policy(digest, content) for digest, content in rows}

    def append(self, decisions: Sequence[Decision], *, policy: str = "", time: datetime | None = None) -> None:
        """Add decisions, all or none; when this returns they are on disk.

        Args:
            decisions: In their order.
            policy: Digest of the policy that decided, as `add_policy` gave it; empty if it is not known.
            time: When they were made; now by default.
        """
        (fault,) = self.append_all([decisions], policy=policy, time=time)
        if fault is not None:
            raise fault

    def append_all(
        self, batches: Sequence[Sequence[Decision]], *, policy: str = "", time: datetime | None = None
    ) -> list[CalibrantError | None]:
        """Add several batches, each all or none, and return why each was refused or not written, or None.

        Batches of several threads that arrive while another is written share one transaction: a commit waits for the
        disk, and so they wait together.
        """
        stamp = now() if time is None else microseconds(time)
        waiting = [_Waiting(batch, self.n_classes, stamp, policy) for batch in batches]
        with self._lock:
            self._queue += waiting
        # The first thread to get here writes for all; the others find their batches written when they get here.
        with self._turn:
            with self._lock:
                queue, self._queue = self._queue, []
            if queue:
                self._write(queue)
        return [batch.fault for batch in waiting]

    def _write(self, queue: "list[_Waiting]") -> None:
        begun = perf_counter()
        failure: CalibrantError | None = OutputError("the decision log was not written.")
        try:
            with self._database.writing() as connection:
                for batch in queue:
                    batch.insert(connection)
            failure = None
        except CalibrantError as error:
            failure = error
        finally:
            for batch in queue:
                batch.fault = batch.fault or failure
        self.write_seconds = perf_counter() - begun

    def decisions(
        self,
        since: int = 0,
        *,
        block: int = 10_000,
        labelled: bool | None = None,
        extras: Collection[str] | None = None,
    ) -> Iterator[LoggedDecisions]:
        """The decisions in their order, in blocks, with the labels that had come before the first block was read.

        So a reader who is slow sees the first labels without a gap, as if all blocks had been read at once.

        Args:
            since: A sequence number: only what came after it.
            block: Most decisions in one block.
            labelled: True for those with a label alone, False for those without.
            extras: Names of the extras to read; None for all, of which a block may have 1,000.
        """
        whole("block", block, 1)
        facts = "d.extras"
        if extras is not None and not extras:
            facts = "'{}'"
        condition = {None: "", True: "AND l.target IS NOT NULL", False: "AND l.target IS NULL"}[labelled]
        query = f"""SELECT d.sequence, d.id, d.time, d.policy, d.predicted, d.confidence, d.automate, d.shortlist,
            {facts} AS extras, coalesce(l.target, -1) AS target, coalesce(l.sequence, 0) AS label_sequence
            FROM calibrant_decisions AS d LEFT JOIN calibrant_labels AS l ON d.id = l.id AND l.sequence <= ?
            WHERE d.sequence > ? {condition} ORDER BY d.sequence LIMIT ?"""
        last = since
        with self._database.reading() as connection:
            last_label = last_number(connection, "calibrant_labels")
        while True:
            # One short transaction per block, so that writers do not wait for a slow reader.
            with self._database.reading() as connection:
                rows = connection.execute(query, (last_label, last, block)).fetchall()
            if not rows:
                return
            if labelled is None:
                for number, row in enumerate(rows, start=last + 1):
                    if row["sequence"] != number:
                        missing = f"none with number {number}"
                        raise invalid("decision log", "have every decision", missing, "Restore it from a copy.")
            yield LoggedDecisions.from_rows(rows, extras)
            last = rows[-1]["sequence"]

    def find(self, id: str) -> Logged | None:  # noqa: A002 (the word of every file of ours)
        """One decision; None if the id was never decided."""
        query = f"SELECT d.*, l.target FROM {_JOINED} WHERE d.id = ?"
        with self._database.reading() as connection:
            row = connection.execute(query, (id,)).fetchone()
        if row is None:
            return None
        return Logged.from_row(row)

    # -- labels ---------------------------------------------------------------------------------------------------

    def label(self, id: str, target: int | str) -> None:  # noqa: A002
        """Keep the true class of a case, by its number or name."""
        self.label_all({id: target})

    def label_all(
        self, targets: Mapping[str, int | str], *, time: datetime | None = None, by: str | None = None
    ) -> int:
        """Keep labels of several cases by id, all or none; returns how many were new.

        Args:
            targets: The number or the name of the true class by id.
            time: When they were given; now by default.
            by: Who gave them.
        """
        if by is not None:
            check_id(by)
        numbers = {each: self._class_number(target) for each, target in targets.items()}
        stamp = now() if time is None else microseconds(time)
        with self._database.writing() as connection:
            last = last_number(connection, "calibrant_labels")
            rows: list[tuple[Any, ...]] = []
            for each, number in numbers.items():
                known = connection.execute(f"SELECT l.target FROM {_JOINED} WHERE d.id = ?", (each,)).fetchone()
                if known is None:
                    raise UnknownId(f"id {each[:100]!r} was never decided in this log, so it cannot be labelled.")
                if known["target"] is None:
                    rows.append((last + len(rows) + 1, each, stamp, number, by))
                elif known["target"] != number:
                    counts = f"id {each!r} has the label {known['target']}, got {number}. The first label counts."
                    raise ContradictingLabel(counts)
            connection.executemany("INSERT INTO calibrant_labels VALUES (?, ?, ?, ?, ?)", rows)
        return len(rows)

    # -- retention ------------------------------------------------------------------------------------------------

    def purge(self, before: datetime, *, keep: Collection[str] = ()) -> int:
        """Forget what names a case in decisions that were logged before a time; returns how many were changed.

        Ids become random ones, reasons and extras go. Everything that the monitor needs stays: predicted class,
        confidence, decision, shortlist, label, the order of both, and the extras that a rule of this log needs (groups
        and clusters). So its evidence is the same afterwards. A label for a purged case is refused, because its id is
        not known any more. If this is interrupted, call it again.

        Args:
            before: A time with its zone.
            keep: Names of other extras to keep. One that no case has is refused: it may be misspelt.
        """
        self._check_columns(keep)
        names = set(keep).union(*(policy.columns for policy in self.policies().values()))
        # A client may call its case as purged ones are called, but the reason of its decision is not empty.
        query = """SELECT sequence, id, extras FROM calibrant_decisions
            WHERE sequence > ? AND time < ? AND (id NOT LIKE ? OR reason != '') ORDER BY sequence LIMIT ?"""
        purged = last = 0
        while True:
            with self._database.writing() as connection:
                connection.execute("PRAGMA secure_delete = ON")  # overwrites what is deleted
                # A label refers to an id that changes a moment earlier.
                connection.execute("PRAGMA defer_foreign_keys = ON")
                rows = connection.execute(query, (last, microseconds(before), f"{_PURGED}%", _AT_ONCE)).fetchall()
                for sequence, known, extras in rows:
                    with undamaged():
                        facts = {name: value for name, value in json.loads(extras).items() if name in names}
                    unknown = _PURGED + uuid4().hex
                    change = "UPDATE calibrant_decisions SET id = ?, reason = '', extras = ? WHERE sequence = ?"
                    connection.execute(change, (unknown, json.dumps(facts), sequence))
                    connection.execute("UPDATE calibrant_labels SET id = ? WHERE id = ?", (unknown, known))
            purged += len(rows)
            if len(rows) < _AT_ONCE:
                break
            last = rows[-1]["sequence"]
        with self._database.reading() as connection:
            # Until then old rows are in the write-ahead log.
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise OutputError(
                f"{self._database.path}-wal still holds purged rows, because another program reads or writes the log. "
                "Purge again."
            )
        return purged

    def _check_columns(self, names: Collection[str]) -> None:
        """Refuse names of extras that no case has."""
        if not names:
            return
        query = "SELECT DISTINCT key FROM calibrant_decisions, json_each(extras)"
        with self._database.reading() as connection:
            known = [row["key"] for row in connection.execute(query)]
        for name in names:
            if known and name not in known:
                raise invalid("keep", "name columns of the log", repr(name), did_you_mean(name, known))

    def _class_number(self, target: int | str) -> int:
        if isinstance(target, str):
            if self.class_names is None and target.isascii() and target.isdigit() and int(target) < self.n_classes:
                return int(target)  # the answers of the service call it so
            if self.class_names is None or target not in self.class_names:
                known = names_or_numbers(self.class_names, min(self.n_classes, 20))
                raise invalid("label", "be a class of the model", repr(target), did_you_mean(target, known))
            return self.class_names.index(target)
        if whole("label", target, 0) >= self.n_classes:
            raise invalid("label", f"lie in 0..{self.n_classes - 1}", target)
        return int(target)


class _Waiting:
    """Decisions of one caller that wait to be written; `fault` says why they were refused or not written."""

    def __init__(self, decisions: Sequence[Decision], n_classes: int, time: int, policy: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self.fault: CalibrantError | None = None
        try:
            for decision in decisions:
                self.rows.append({**decision.to_row(n_classes), "time": time, "policy": policy})
        except InvalidInput as error:
            self.rows, self.fault = [], error

    def insert(self, connection: sqlite3.Connection) -> None:
        """Add all rows; none if an id was decided before or occurs twice."""
        for sequence, row in enumerate(self.rows, start=last_number(connection, "calibrant_decisions") + 1):
            row["sequence"] = sequence
        connection.execute("SAVEPOINT batch")
        try:
            connection.executemany(_INSERT, self.rows)
        except sqlite3.IntegrityError:
            connection.execute("ROLLBACK TO batch")
            self.fault = self._duplicate(connection)
        connection.execute("RELEASE batch")

    def _duplicate(self, connection: sqlite3.Connection) -> DuplicateId:
        seen: set[str] = set()
        for row in self.rows:
            if row["id"] in seen:
                return DuplicateId(f"id {row['id']!r} occurs twice among the cases. Each case needs an id of its own.")
            seen.add(row["id"])
            if connection.execute("SELECT 1 FROM calibrant_decisions WHERE id = ?", (row["id"],)).fetchone():
                return DuplicateId(f"id {row['id']!r} was decided before. Each case needs an id of its own.")
        return DuplicateId("ids must be distinct.")


def _stored_policy(digest: object, content: object) -> Policy:
    """A policy that was kept; refused if its content is not what its digest says."""
    if not isinstance(digest, str) or not isinstance(content, str):  # SQLite keeps anything in any column
        raise invalid("decision log", "be undamaged", "a policy that is no text", "Restore it from a copy.")
    where = f"policy {digest[:12]}... of the decision log"
    policy = Policy.from_dict(parse_json(content, where), where=where)
    if policy.digest != digest:
        raise invalid(where, "be undamaged", "another one", "Restore the log from a copy.")
    return policy
