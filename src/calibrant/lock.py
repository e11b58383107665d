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
def locked(path: Path, *, busy: str, inherited: bool = True) -> Iterator[None]:
    """Hold the lock on a file, which is made if it is missing.

    Args:
        path: The file.
        busy: The error message where another process holds it.
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
    """Lock an open file until it is closed; False where it is locked already.

    Args:
        handle: The file.
        inherited: Whether forked processes hold the lock too. Loader processes would, for seconds after their parent
            was killed. A lock that is not inherited has another weakness: it keeps other processes out, not this one.
    """
    try:
        if fcntl is None:
            msvcrt = import_module("msvcrt")
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            (fcntl.flock if inherited else fcntl.lockf)(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
