"""Optuna and the storages that it writes to: imported on use, silent, and with faults in one line."""

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator
from typing import Any

from calibrant.errors import CalibrantError, InvalidInput, importing


def load_optuna() -> Any:
    """Optuna, or one line that says how to get it."""
    with importing("a sweep", "Optuna", "study"):
        import optuna
    return optuna


def make_tables(url: str) -> None:
    """Make the tables of a new SQLite storage, all or none of them.

    Optuna makes them one by one. Where it is killed in between, a later start finds the table of studies and does not
    make the index that keeps their names unique, so that every further start adds a study of the same name.
    """
    from sqlalchemy.engine import make_url

    place = make_url(url)
    if place.get_backend_name() != "sqlite" or not place.database or place.database.startswith("file:"):
        return
    with contextlib.closing(sqlite3.connect(place.database)) as target:
        if target.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        pattern = load_optuna().storages.RDBStorage("sqlite://").engine.raw_connection().driver_connection
        # One transaction. Where another worker was faster, the first statement of it fails, and nothing is changed.
        with contextlib.suppress(sqlite3.OperationalError):
            target.executescript("\n".join(pattern.iterdump()))


@contextlib.contextmanager
def storage_faults(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a storage raises into one line. Its URL may hold a password: only what stands before that is said."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except CalibrantError:
        raise
    except (SQLAlchemyError, sqlite3.Error, load_optuna().exceptions.OptunaError, *more) as error:
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        reason = str(getattr(cause, "orig", None) or cause).splitlines()[0][:200]
        kind, _, rest = url.partition(":")
        if rest.count("@") > 1:  # what follows the first is taken for the host, which messages name
            reason = "a password is written with %40 for every @ in it"
        raise InvalidInput(f"storage {kind}:... cannot be used: {type(cause).__name__}: {reason}") from error


@contextlib.contextmanager
def quiet(module: Any) -> Iterator[None]:
    """Hide Optuna's log lines and its notes about experimental features while the block runs."""
    level = module.logging.get_verbosity()
    module.logging.set_verbosity(module.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", module.exceptions.ExperimentalWarning)
            yield
    finally:
        module.logging.set_verbosity(level)
