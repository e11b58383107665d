"""The SQLite file of a decision log: its tables, and connections that lose nothing."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput, OutputError, invalid, one_line

# How long a transaction waits for other writers. A client of the service waits as long before it gets 503.
_PATIENCE_S = 15
# Of 4 kB each.
_PAGES_IN_WAL = 8000
# Rows are added and never changed. We number them under a lock, so that numbers become visible in their order: a reader
# that asks for what came after the last number that it saw misses nothing.
_TABLES = (
    """CREATE TABLE IF NOT EXISTS calibrant_log (
        one INTEGER NOT NULL PRIMARY KEY,
        format INTEGER NOT NULL,
        model TEXT NOT NULL,
        n_classes INTEGER NOT NULL,
        class_names TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS calibrant_policies (
        digest TEXT NOT NULL PRIMARY KEY,
        time INTEGER NOT NULL,
        content TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS calibrant_decisions (
        sequence INTEGER NOT NULL PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        time INTEGER NOT NULL,
        policy TEXT NOT NULL,
        predicted INTEGER NOT NULL,
        confidence REAL NOT NULL,
        automate INTEGER NOT NULL,
        shortlist TEXT NOT NULL,
        reason TEXT NOT NULL,
        extras TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS calibrant_labels (
        sequence INTEGER NOT NULL PRIMARY KEY,
        id TEXT NOT NULL UNIQUE REFERENCES calibrant_decisions (id),
        time INTEGER NOT NULL,
        target INTEGER NOT NULL,
        "by" TEXT
    )""",
)


class Database:
    """Connections to the file of a log. Committed transactions survive the death of the process and of the machine.

    Every transaction is refused if the path no longer leads to the file that was opened: nobody who opens the path
    would find what is written to a deleted or moved file. A file that must not be new (`create`) keeps its mode,
    because it may not be a log.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._create = create
        self._opened: dict[Path, tuple[int, int]] = {}
        # Threads queue for this lock in their order. SQLite's own makes them sleep and try again, for up to a second.
        self._writers = threading.Lock()
        # Connections that nobody uses now. The one that was used last is taken first: its caches are filled.
        self._idle: list[sqlite3.Connection] = []

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    def keep_file(self) -> None:
        """From now on refuse every transaction if the path leads to another file than now."""
        # What was committed last is in the file beside it, which exists as long as we have a connection.
        for path in (self.path, Path(f"{self.path}-wal")):
            found = _identity(path)
            if found is not None:
                self._opened[path] = found

    def check_file(self) -> None:
        """Refuse to go on if the file of the log was deleted, moved or replaced."""
        for path, opened in self._opened.items():
            found = _identity(path)
            if found != opened:
                what = "was deleted or moved" if found is None else "was replaced by another file"
                hint = "Nothing was logged. Put the file back, or restart the service to begin a new log."
                raise OutputError(f"decision log {path} {what} after it was opened. {hint}")

    def create_tables(self, about: tuple[Any, ...]) -> None:
        """Make the tables of a new log and note what it is about, unless another process has."""
        with self.writing() as connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute("INSERT OR IGNORE INTO calibrant_log VALUES (1, ?, ?, ?, ?)", about)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for a short look."""
        self.check_file()
        with self._connection() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other writer of this log overlaps; nothing is written if the block raises."""
        if not self._writers.acquire(timeout=_PATIENCE_S):
            raise OutputError(f"decision log {self.path} is busy: other writers took more than {_PATIENCE_S} s.")
        try:
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                # Right before the commit: the file may have gone while this waited for the lock or wrote.
                self.check_file()
                connection.execute("COMMIT")
        finally:
            self._writers.release()

    def try_writing(self) -> None:
        """Commit a transaction that changes nothing: a full disk is an `OutputError`. It waits for no other writer."""
        with self._connection() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                with suppress(sqlite3.OperationalError):  # somebody writes right now
                    connection.execute("BEGIN IMMEDIATE")
                if connection.in_transaction:
                    (version,) = connection.execute("PRAGMA user_version").fetchone()
                    connection.execute(f"PRAGMA user_version = {version}")
                    connection.execute("COMMIT")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE_S}")

    def check_integrity(self) -> None:
        """Refuse a log in which SQLite finds a fault or rows are missing."""
        where, hint = f"decision log {self.path}", "Restore it from a copy."
        with self.reading() as connection:
            (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if fault != "ok":
                raise invalid(where, "be undamaged", one_line(fault, most=100), hint)
            for table in ("calibrant_decisions", "calibrant_labels"):
                query = f"SELECT count(*), coalesce(max(sequence), 0) FROM {table}"
                rows, last = connection.execute(query).fetchone()
                if rows != last:
                    raise invalid(where, "have every row", f"{rows:,} rows in {table} for {last:,} numbers", hint)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._faults():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        # Without the check SQLite would make a new, empty file.
        self.check_file()
        # Without an isolation level: Python's module would begin transactions on its own, too late for the lock.
        connection = sqlite3.connect(self.path, _PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            if self._create:
                connection.execute("PRAGMA journal_mode = WAL")
            # The file is brought up to date less often than by default, so that fewer commits wait for that.
            connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_IN_WAL}")
            # Each commit waits for the disk: an answered decision outlives a power cut, too.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            # The files beside a damaged log would stay behind.
            connection.close()
            raise
        return connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn errors of SQLite into errors of ours with one line."""
        try:
            yield
        # Python cannot read what SQLite says about a damaged name.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            fault = one_line(error, most=200).removesuffix(".")
            message = f"decision log {self.path} cannot be used: {type(error).__name__}: {fault}."
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_CANTOPEN"):
                message += " Even to read a log, SQLite must be able to write to its folder: copy the log to another."
            # A log that was fine when it was opened is no fault of who asks for a decision.
            if self._opened or isinstance(error, sqlite3.OperationalError):
                raise OutputError(message) from error
            raise InvalidInput(message) from error


def last_number(connection: sqlite3.Connection, table: str) -> int:
    """The last sequence number of a table; 0 if it is empty."""
    query = f"SELECT coalesce(max(sequence), 0) FROM {table}"
    (number,) = connection.execute(query).fetchone()
    return int(number)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
