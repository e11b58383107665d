"""An exclusive lock on a file. The system releases it when the process ends, however it ends."""

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
def locked(path: Path, *, busy: str, inherited: bool = True) -> Iterator[None]:
    """Hold the lock on a file, which is created if it is missing.

    Args:
        path: The file.
        busy: The error message if another process holds the lock.
        inherited: See `try_lock`.
    """
    try:
        handle = path.open("w")
    except OSError as error:
        raise output_error(path, error) from error
    with handle:
        if not try_lock(handle, inherited=inherited):
            raise InvalidInput(busy)
        yield


def try_lock(handle: IO[str], *, inherited: bool = True) -> bool:
    """Lock an open file until it is closed. Return False if it is locked already.

    Args:
        handle: The file.
        inherited: Whether forked processes hold the lock too. Data loader processes would hold it for seconds after
            their parent was killed. A lock that is not inherited keeps out other processes, but not this one.
    """
    try:
        if fcntl is None:
            msvcrt = import_module("msvcrt")
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            lock = fcntl.flock if inherited else fcntl.lockf
            lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
