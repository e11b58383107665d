"""Which workers are alive: each holds a lock on a file, which the system releases when the worker ends in any way."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from calibrant.files import output_error
from calibrant.lock import try_lock


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
        try_lock(handle)  # nobody else knows the name
        try:
            yield name
        finally:
            with contextlib.suppress(PermissionError):  # Windows removes no open file
                path.unlink(missing_ok=True)


def is_dead(folder: Path, name: str) -> bool:
    """Whether a worker of this folder has ended without removing its file; False for one that is not known here."""
    try:
        handle = (folder / f"{name}.lock").open("r+")
    except FileNotFoundError:
        return False
    with handle:
        return try_lock(handle)
