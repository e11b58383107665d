"""The tables of a decision log, and connections that lose nothing: SQLAlchemy Core, imported only here and in use."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from calibrant.errors import CalibrantError, InvalidInput, OutputError, importing, one_line

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# How long a process waits for others that write to the same SQLite file.
_PATIENCE_MS = 60_000


def sqlalchemy() -> Any:
    """The library; one line where it is missing."""
    with importing("a decision log", "SQLAlchemy", "serve"):
        import sqlalchemy as found
    return found


@cache
def tables() -> SimpleNamespace:
    """`about` (one row: whose log it is), `policies`, `decisions` and `labels`. Rows are added and never changed.

    Numbers are given by us, under a lock, not by the database: they then have the order in which rows become visible.
    A reader that asks for what came after the last number that it saw misses nothing.
    """
    sa = sqlalchemy()
    data = sa.MetaData()
    whole, text = sa.BigInteger(), sa.Text()
    # MySQL cannot index text without a length.
    key, digest = sa.String(256), sa.String(64)
    column = sa.Column
    number = whole.with_variant(sa.Integer(), "sqlite")

    def of(value: Any, name: str = "") -> Any:
        return column(name, value, nullable=False)

    about = sa.Table(
        "calibrant_log",
        data,
        column("one", sa.Integer, primary_key=True, autoincrement=False),
        of(sa.Integer(), "format"),
        of(digest, "model"),
        of(sa.Integer(), "n_classes"),
        column("class_names", text),
    )
    policies = sa.Table(
        "calibrant_policies", data, column("digest", digest, primary_key=True), of(whole, "time"), of(text, "content")
    )
    decisions = sa.Table(
        "calibrant_decisions",
        data,
        column("sequence", number, primary_key=True, autoincrement=False),
        column("id", key, nullable=False, unique=True),
        of(whole, "time"),
        of(digest, "policy"),
        of(sa.Integer(), "predicted"),
        of(sa.Double(), "confidence"),
        of(sa.Boolean(), "automate"),
        of(text, "shortlist"),
        of(text, "reason"),
        of(text, "extras"),
    )
    labels = sa.Table(
        "calibrant_labels",
        data,
        column("sequence", number, primary_key=True, autoincrement=False),
        column("id", key, sa.ForeignKey(decisions.c.id), nullable=False, unique=True),
        of(whole, "time"),
        of(sa.Integer(), "target"),
    )
    return SimpleNamespace(data=data, about=about, policies=policies, decisions=decisions, labels=labels)


def connect(url: str, *, create: bool) -> "Engine":
    """An engine whose committed transactions survive the death of the process, and for SQLite that of the machine.

    Args:
        url: Of the database.
        create: Whether it may be new; one that is only read keeps its mode, because it may not be ours.
    """
    sa = sqlalchemy()
    with faults(url, ImportError, ValueError):  # of drivers and of URLs
        engine: Engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", partial(_set_up_sqlite, create=create))
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def url_of(place: str | Path) -> str:
    """A path as the URL of an SQLite file; a URL as it is."""
    text = str(place)
    return text if isinstance(place, str) and "://" in text else f"sqlite:///{Path(text).absolute()}"


def _set_up_sqlite(connection: Any, _: Any, *, create: bool) -> None:
    try:
        # Python's module would begin transactions on its own, after reading: too late for the lock.
        connection.isolation_level = None
        # The other process may be changing the mode of a new file: patience first.
        connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        if create:
            connection.execute("PRAGMA journal_mode = WAL")
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


def create(engine: "Engine", url: str, about: dict[str, Any]) -> None:
    """Make the tables of a new log and say whose it is, unless another process has."""
    with faults(url), engine.connect().execution_options(calibrant_writes=True) as connection, connection.begin():
        tables().data.create_all(connection)
        if connection.execute(tables().about.select()).first() is None:
            connection.execute(tables().about.insert(), about)


@contextmanager
def writing(engine: "Engine", url: str) -> Iterator["Connection"]:
    """A transaction that no other writer of this log overlaps; nothing is written where the block raises."""
    with faults(url), engine.connect().execution_options(calibrant_writes=True) as connection, connection.begin():
        # SQLite's own lock is taken when the transaction begins; elsewhere the lock is that of the one row.
        connection.execute(sqlalchemy().select(tables().about.c.one).with_for_update())
        yield connection


@contextmanager
def reading(engine: "Engine", url: str) -> Iterator["Connection"]:
    """A connection for a short look."""
    with faults(url), engine.connect() as connection:
        yield connection


@contextmanager
def faults(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a database raises into one line. A URL may hold a password: only what stands before that is said."""
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    # Python cannot read what SQLite says about a damaged name.
    raised: tuple[type[Exception], ...] = (SQLAlchemyError, UnicodeDecodeError, *more)
    kind, _, rest = url.partition(":")
    place = f"decision log {rest.removeprefix('///')}" if kind == "sqlite" else f"decision log {kind}:..."
    try:
        yield
    except CalibrantError:
        raise
    except raised as error:
        cause = getattr(error, "orig", None) or error
        told = one_line(cause, most=200)
        if kind != "sqlite" and rest.count("@") > 1:  # what follows the first is taken for the host, which is named
            told = "a password is written with %40 for every @ in it"
        kind_of = OutputError if isinstance(error, OperationalError) and kind == "sqlite" else InvalidInput
        raise kind_of(f"{place} cannot be used: {type(cause).__name__}: {told.removesuffix('.')}.") from error
