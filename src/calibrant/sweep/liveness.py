"""Which workers are alive: each holds a lock on a file, which the system releases when the worker ends in any way."""

import contextlib
import fcntl
import uuid
from collections.abc import Iterator
from pathlib import Path

from calibrant.files import output_error


@contextlib.contextmanager
def living_worker(folder: Path) -> Iterator[str]:
    """Hold a lock under a new name while the block runs."""
    name = uuid.uuid4().hex
    path = folder / f"{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as error:
        raise output_error(path, error) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield name
        finally:
            path.unlink(missing_ok=True)


def is_dead(folder: Path, name: str) -> bool:
    """Whether a worker of this folder has ended without removing its file; False for one that is not known here."""
    try:
        handle = (folder / f"{name}.lock").open("r+")
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
