"""Optuna and the storages that it writes to: imported on use, silent, and with faults in one line."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from calibrant.errors import CalibrantError, InvalidInput


def load_optuna() -> Any:
    """Optuna, or one line that says how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise InvalidInput("a sweep needs Optuna. Install it with: pip install 'calibrant[study]'") from error
    return optuna


@contextlib.contextmanager
def storage_faults(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a storage raises into one line. Its URL may hold a password: only what stands before that is said."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except CalibrantError:
        raise
    except (SQLAlchemyError, load_optuna().exceptions.OptunaError, *more) as error:
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
