"""An exclusive lock on a file; the system releases it when the process ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from calibrant.errors import InvalidInput
from calibrant.files import output_error

try:
    fcntl: Any = import_module("fcntl")
except ImportError:  # Windows has msvcrt instead
    fcntl = None


@contextmanager
def locked(path: Path, *, busy: str) -> Iterator[None]:
    """Hold the lock on a file, which is made if it is missing.

    Args:
        path: The file.
        busy: The error message where another process holds it.
    """
    try:
        handle = path.open("w")
    except OSError as error:
        raise output_error(path, error) from error
    with handle:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError) as error:
            raise InvalidInput(busy) from error
        yield


def _lock(handle: IO[str]) -> None:
    if fcntl is None:
        msvcrt = import_module("msvcrt")
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        return
    # A record lock and not `flock`, which loader processes would inherit and hold for seconds after their parent was
    # killed.
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
