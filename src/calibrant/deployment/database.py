"""The tables of a decision log, and connections that lose nothing: SQLAlchemy Core, imported only here and in use."""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from calibrant.errors import CalibrantError, InvalidInput, OutputError, importing, invalid, one_line

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

# How long a transaction waits for other writers of the same SQLite file, and for a free connection. A client of the
# service waits as long before it gets 503.
_PATIENCE_S = 15
_WAIT = f"PRAGMA busy_timeout = {_PATIENCE_S * 1000}"
# Of 4 kB each.
_PAGES_IN_WAL = 8000


def sqlalchemy() -> Any:
    """The library; one line on how to install it if it is missing."""
    with importing("a decision log", "SQLAlchemy", "serve"):
        import sqlalchemy as found
    return found


@cache
def tables() -> SimpleNamespace:
    """`about` (one row: the log's model), `policies`, `decisions` and `labels`. Rows are added and never changed.

    We number the rows under a lock, not the database, so that numbers become visible in their order. A reader that
    asks for what came after the last number that it saw misses nothing.
    """
    sa = sqlalchemy()
    data = sa.MetaData()
    # MySQL cannot index text without a length.
    key, digest, time = sa.String(256), sa.String(64), sa.BigInteger()
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

    def column(name: str, kind: Any, *more: Any, **options: Any) -> Any:
        return sa.Column(name, kind, *more, **{"nullable": False, **options})

    about = sa.Table(
        "calibrant_log",
        data,
        column("one", sa.Integer(), primary_key=True, autoincrement=False),
        column("format", sa.Integer()),
        column("model", digest),
        column("n_classes", sa.Integer()),
        column("class_names", sa.Text(), nullable=True),
    )
    policies = sa.Table(
        "calibrant_policies",
        data,
        column("digest", digest, primary_key=True),
        column("time", time),
        column("content", sa.Text()),
    )
    decisions = sa.Table(
        "calibrant_decisions",
        data,
        column("sequence", number, primary_key=True, autoincrement=False),
        column("id", key, unique=True),
        column("time", time),
        column("policy", digest),
        column("predicted", sa.Integer()),
        column("confidence", sa.Double()),
        column("automate", sa.Boolean()),
        column("shortlist", sa.Text()),
        column("reason", sa.Text()),
        column("extras", sa.Text()),
    )
    labels = sa.Table(
        "calibrant_labels",
        data,
        column("sequence", number, primary_key=True, autoincrement=False),
        column("id", key, sa.ForeignKey(decisions.c.id), unique=True),
        column("time", time),
        column("target", sa.Integer()),
        column("by", sa.Text(), nullable=True),
    )
    return SimpleNamespace(data=data, about=about, policies=policies, decisions=decisions, labels=labels)


def url_of(place: str | Path) -> "URL":
    """The URL of a database, or of the SQLite file at a path. It is built from parts: a path may hold any character."""
    sa = sqlalchemy()
    if isinstance(place, Path) or "://" not in place:
        return cast("URL", sa.URL.create("sqlite", database=str(Path(place).absolute())))
    try:
        url: URL = sa.make_url(place)
    except (sa.exc.ArgumentError, ValueError) as error:
        kind = place.partition(":")[0]
        raise invalid("decision log", "be a path or a database URL that can be parsed", f"{kind}:...") from error
    if url.get_backend_name() == "sqlite":
        raise invalid("decision log", "be a path or the URL of a server", place, "Give the path of the SQLite file.")
    return url


class Database:
    """Connections to the database of a log. Committed transactions survive the death of the process.

    With SQLite they also survive the death of the machine, and every transaction is refused if the path no longer leads
    to the file that was opened: nobody who opens the path would find what is written to a deleted or moved file. A
    database that must not be new (`create`) keeps its mode, because it may not be a log. If all connections are in
    use, a caller waits, and is then refused.
    """

    def __init__(self, url: "URL", *, create: bool) -> None:
        sa = sqlalchemy()
        self.url = url
        self._file: Path | None = None
        self._place = f"decision log {url.drivername}:..."  # a URL may hold a password
        if url.get_backend_name() == "sqlite":
            self._file = Path(str(url.database))
            self._place = f"decision log {self._file}"
        self._opened: dict[Path, tuple[int, int]] = {}
        # Threads queue for this lock in their order. SQLite's own makes them sleep and try again, for up to a second.
        self._writers = threading.Lock()
        self._appender: Any = None
        with self.faults(ImportError, ValueError):  # of drivers and of URLs
            self.engine: Engine = sa.create_engine(
                url,
                pool_pre_ping=self._file is None,
                pool_timeout=_PATIENCE_S,
            )
        if self._file is not None:
            # Without the check SQLite would make a new, empty file.
            sa.event.listen(self.engine, "do_connect", lambda *_: self.check_file())
            sa.event.listen(self.engine, "connect", partial(_set_up_sqlite, create=create))
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    def close(self) -> None:
        """Close all connections."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None
        self.engine.dispose()

    def keep_file(self) -> None:
        """From now on refuse every transaction if the path leads to another file than now."""
        if self._file is None:
            return
        # What was committed last is in the file beside it, which exists as long as we have a connection.
        for path in (self._file, Path(f"{self._file}-wal")):
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

    def create_tables(self, about: dict[str, Any]) -> None:
        """Make the tables of a new log and note its model, unless another process has."""
        with self._transaction() as connection:
            tables().data.create_all(connection)
            if connection.execute(tables().about.select()).first() is None:
                connection.execute(tables().about.insert(), about)

    @contextmanager
    def writing(self) -> Iterator["Connection"]:
        """A transaction that no other writer of this log overlaps; nothing is written if the block raises."""
        with self._turn(), self._transaction() as connection:
            # SQLite's own lock is taken when the transaction begins; elsewhere the lock is that of the one row.
            connection.execute(sqlalchemy().select(tables().about.c.one).with_for_update())
            yield connection
            # Right before the commit: the file may have gone while this waited for the lock or wrote.
            self.check_file()

    @contextmanager
    def appending(self) -> Iterator["Decisions"]:
        """The same for new decisions alone. SQLite is used without SQLAlchemy, which costs three times as much."""
        if self._file is None:
            with self.writing() as connection:
                yield Decisions(lambda statement, values: connection.execute(sqlalchemy().text(statement), values))
            return
        with self.faults(), self._turn():
            if self._appender is None:
                self._appender = self.engine.raw_connection()
            raw: Any = self._appender.driver_connection
            raw.execute("BEGIN IMMEDIATE")
            try:
                yield Decisions(partial(_run_sqlite, raw))
                self.check_file()
                raw.execute("COMMIT")
            finally:
                if raw.in_transaction:
                    raw.execute("ROLLBACK")

    def delete_securely(self, connection: "Connection") -> None:
        """Let SQLite overwrite what this connection deletes. Other databases have their own way."""
        if self._file is not None:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")

    def forget_old_pages(self) -> None:
        """Let SQLite empty its write-ahead log, in which old rows are until then."""
        if self._file is not None:
            with self.faults(), self.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._writers.acquire(timeout=_PATIENCE_S):
            raise OutputError(f"{self._place} is busy: other writers took more than {_PATIENCE_S} s.")
        try:
            yield
        finally:
            self._writers.release()

    def try_writing(self) -> None:
        """Commit a transaction that changes nothing: a full disk is an `OutputError`. It waits for no other writer."""
        if self._file is None:
            return
        with self.faults(), closing(self.engine.raw_connection()) as connection:
            raw: Any = connection.driver_connection
            raw.execute("PRAGMA busy_timeout = 0")
            try:
                with suppress(sqlite3.OperationalError):  # somebody writes right now
                    raw.execute("BEGIN IMMEDIATE")
                if raw.in_transaction:
                    (version,) = raw.execute("PRAGMA user_version").fetchone()
                    raw.execute(f"PRAGMA user_version = {version}")
                    raw.execute("COMMIT")
            finally:
                raw.execute(_WAIT)
                if raw.in_transaction:
                    raw.execute("ROLLBACK")

    def check_integrity(self) -> None:
        """Refuse a log in which the database finds a fault or rows are missing."""
        sa = sqlalchemy()
        with self.reading() as connection:
            if self._file is not None:
                fault = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
                if fault != "ok":
                    raise invalid(self._place, "be undamaged", one_line(fault, most=100), "Restore it from a copy.")
            for table in (tables().decisions, tables().labels):
                query = sa.select(sa.func.count(), sa.func.max(table.c.sequence)).select_from(table)
                rows, last = connection.execute(query).one()
                if rows != (last or 0):
                    missing = f"{rows:,} rows in {table.name} for {last:,} numbers"
                    raise invalid(self._place, "have every row", missing, "Restore it from a copy.")

    @contextmanager
    def _transaction(self) -> Iterator["Connection"]:
        writes = {"calibrant_writes": True}
        with self.faults(), self.engine.connect().execution_options(**writes) as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator["Connection"]:
        """A connection for a short look."""
        self.check_file()
        with self.faults(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def faults(self, *more: type[Exception]) -> Iterator[None]:
        """Turn errors of a database into errors of ours with one line."""
        from sqlalchemy.exc import OperationalError, SQLAlchemyError
        from sqlalchemy.exc import TimeoutError as NoConnection

        # Python cannot read what SQLite says about a damaged name.
        raised: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError, *more)
        try:
            yield
        except CalibrantError:
            raise
        except NoConnection as error:
            raise OutputError(f"{self._place} is busy: no connection was free within {_PATIENCE_S} s.") from error
        except raised as error:
            cause = getattr(error, "orig", None) or error
            fault = one_line(cause, most=200).removesuffix(".")
            if "@" in (self.url.host or ""):  # the host, which the message names, begins after the first @
                fault = "a password is written with %40 for every @ in it"
            message = f"{self._place} cannot be used: {type(cause).__name__}: {fault}."
            if isinstance(error, OperationalError | sqlite3.OperationalError):
                raise OutputError(message) from error
            raise InvalidInput(message) from error


class Decisions:
    """The decisions of a log inside a transaction, in SQL that every database understands.

    `run` executes a statement with values by name, or with a list of them.
    """

    def __init__(self, run: Callable[[str, Any], Iterable[Any]]) -> None:
        self._run = run
        self._table = tables().decisions.name

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that were decided before."""
        values = {f"id{number}": name for number, name in enumerate(ids)}
        query = f"SELECT id FROM {self._table} WHERE id IN ({_marks(values)})"  # noqa: S608 (no value is in it)
        return {name for (name,) in self._run(query, values)}

    def last(self) -> int:
        """The number of the last decision; 0 if there is none."""
        query = f"SELECT max(sequence) FROM {self._table}"  # noqa: S608 (no value is in it)
        ((number,),) = self._run(query, {})
        return number or 0

    def insert(self, rows: list[dict[str, Any]]) -> None:
        """Add rows, which have the same columns."""
        names = ", ".join(rows[0])
        self._run(f"INSERT INTO {self._table} ({names}) VALUES ({_marks(rows[0])})", rows)  # noqa: S608 (likewise)


def _marks(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)


def _run_sqlite(connection: sqlite3.Connection, statement: str, values: Any) -> Iterable[Any]:
    if isinstance(values, list):
        return connection.executemany(statement, values)
    return connection.execute(statement, values)


def last_number(connection: "Connection", table: Any) -> int:
    """The last sequence number of a table; 0 if it is empty."""
    sa = sqlalchemy()
    return connection.execute(sa.select(sa.func.max(table.c.sequence))).scalar() or 0


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _set_up_sqlite(connection: Any, _: Any, *, create: bool) -> None:
    try:
        # Python's module would begin transactions on its own, after reading: too late for the lock.
        connection.isolation_level = None
        # First of all, because another process may be changing the mode of a new file.
        connection.execute(_WAIT)
        if create:
            connection.execute("PRAGMA journal_mode = WAL")
        # The file is brought up to date less often than by default, so that fewer commits wait for that.
        connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_IN_WAL}")
        # Each commit waits for the disk: an answered decision outlives a power cut, too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        # SQLAlchemy 2.0.0 leaves it open; the files beside a damaged log would then stay behind.
        connection.close()
        raise


def _begin_sqlite(connection: "Connection") -> None:
    writes = connection.get_execution_options().get("calibrant_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
