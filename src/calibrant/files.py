"""Writing files so that a reader never sees half of one, and reading them without trust."""

import errno
import hashlib
import json
import os
import struct
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput, OutputError, invalid

DAMAGED_NPZ = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
)
"""What zipfile and NumPy raise on a damaged `.npz`.

The last four come from a damaged list of members (a newer format, a member that seems encrypted) and from a damaged
header, which NumPy reads as Python.
"""


def output_error(path: str | Path, error: OSError) -> OutputError:
    """Translate an operating-system error into one line that says what to do."""
    way_out = {
        errno.ENOSPC: "The disk is full: free some space, then try again (a training goes on with --resume).",
        errno.EDQUOT: "The disk quota is used up: free some space, then try again (a training goes on with --resume).",
        errno.EACCES: "No permission to write there: choose another folder or change its permissions.",
        errno.EPERM: "No permission to write there: choose another folder or change its permissions.",
        errno.EROFS: "The file system is read-only: choose another folder.",
        errno.ENOTDIR: "A part of the path is a file, not a folder: choose another path.",
        errno.EISDIR: "The path is a folder: choose a file name.",
    }.get(error.errno or 0, f"The system says: {error.strerror or error}.")
    return OutputError(f"cannot write {path}. {way_out}")


def as_path(path: Any, name: str = "path") -> Path:
    """`path` as a `Path`; one line where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise invalid(name, "be a path, as text or pathlib.Path", type(path).__name__)
    return Path(path)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on a clean exit it is flushed to disk and renamed to `path`.

    A crash or a full disk leaves whatever stood at `path` before.
    """
    target = as_path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise output_error(target, error) from error
    finally:
        # Where a part of the path is a file, even the cleaning up fails; the error above says it better.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write text atomically as UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused because they are not JSON."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; a missing or damaged file is one clear line."""
    source = as_path(path)
    try:
        return json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist.") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise invalid(str(path), "be a JSON file", f"something else ({error})") from error


def check_format(content: Any, *, what: str, name: str, version: int, where: str) -> None:
    """Refuse JSON that is not what we wrote under this format name and version.

    Args:
        content: What was read.
        what: What it should be, for the message: "routing rule".
        name: Its value of "format".
        version: Its value of "version".
        where: The file.
    """
    if not isinstance(content, dict) or content.get("format") != name:
        raise invalid(where, f"be a {what} written by calibrant", "something else")
    if content.get("version") != version:
        raise invalid(where, f"have version {version}", content.get("version"), "Use the calibrant that wrote it.")


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read TOML; a missing or damaged file is one clear line.

    Args:
        path: The file.
        what: What it is, for the message: "recipe", "study".
    """
    try:
        return tomllib.loads(as_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidInput(f"{what} {path} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} {path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise invalid(f"{what} {path}", "be TOML", f"something else ({error})") from error


def sha256_of(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file, read in blocks."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
