"""Write files completely or not at all, and read files that may be damaged or hostile."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

from calibrant.errors import InvalidInput, OutputError, invalid

# Limits of JSON and TOML files. Our own files stay far below: the largest is matrix scaling of some thousand classes.
# With these limits a hostile file takes less than 500 MB of memory and is refused in seconds. A file that declares more
# than MOST_CLASSES classes is refused before arrays of that size are allocated.
MOST_BYTES = 100 * 2**20
MOST_TOML_BYTES = 2**20
MOST_LEVELS = 64
MOST_CLASSES = 1_000_000
_MOST_SIGNS = {",": 3_500_000, ":": 500_000, "[": 500_000, "{": 500_000}
_MOST_BITS = 160
_LONG_KEY = re.compile(rf"(?<![\w\-\"'])(?:[\w\-\"']++\s*+\.\s*+){{{MOST_LEVELS}}}")
_DIGEST = "sha256"
_RESTORE = "Restore it from a copy, or make it again."
_TOO_DEEP = f"values nested more than {MOST_LEVELS} deep"
_T = TypeVar("_T")

try:
    fcntl: Any = import_module("fcntl")
except ImportError:  # Windows has msvcrt instead
    fcntl = None


def output_error(path: str | Path, error: OSError) -> OutputError:
    """Translate an error of the operating system into a message that says what to do."""
    hint = {
        errno.ENOSPC: "The disk is full: free some space, then try again (a training goes on with --resume).",
        errno.EDQUOT: "The disk quota is used up: free some space, then try again (a training goes on with --resume).",
        errno.EACCES: "No permission to write there: choose another folder or change its permissions.",
        errno.EPERM: "No permission to write there: choose another folder or change its permissions.",
        errno.EROFS: "The file system is read-only: choose another folder.",
        errno.ENOTDIR: "A part of the path is a file, not a folder: choose another path.",
        errno.EISDIR: "The path is a folder: choose a file name.",
    }.get(error.errno or 0, f"The system says: {error.strerror or error}.")
    return OutputError(f"cannot write {path}. {hint}")


def as_path(path: Any, name: str = "path") -> Path:
    """Convert `path` to a `Path`, or raise an error if it is not one."""
    if not isinstance(path, str | os.PathLike):
        raise invalid(name, "be a path, as text or pathlib.Path", type(path).__name__)
    return Path(path)


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Raise `InvalidInput` if a file does not exist or cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInput(f"{where} does not exist.") from error
    except OSError as error:
        raise InvalidInput(f"{where} cannot be read: {error.strerror or error}.") from error


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on a clean exit it is flushed to disk and renamed to `path`.

    After a crash or on a full disk, `path` is unchanged.
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
        # If a part of the path is a file, this fails too; the error above is the better message.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_stream(path: str | Path) -> Iterator[IO[bytes]]:
    """Give an open file that gets the name `path` on a clean exit, for files that take long to write.

    Until then the file has no name if the system supports that, so that a killed process leaves nothing behind.
    """
    target = as_path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unnamed = os.open(target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (AttributeError, OSError):
        with atomic_write(target) as temporary, temporary.open("wb") as handle:
            yield handle
        return
    with atomic_write(target) as temporary, os.fdopen(unnamed, "w+b") as handle:
        yield handle
        handle.flush()
        try:
            # A folder's descriptor, which an absolute path does not use, makes Python follow the link to the file.
            os.link(f"/proc/self/fd/{unnamed}", temporary.absolute(), src_dir_fd=unnamed)
        except OSError:
            handle.seek(0)
            with temporary.open("wb") as named:
                shutil.copyfileobj(handle, named)


def write_text(path: str | Path, text: str) -> None:
    """Write text atomically as UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused because they are not JSON."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_with_digest(path: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON object with the SHA-256 of its members, so that a damaged file is refused when it is read."""
    text = json.dumps({**content, _DIGEST: content_digest(content)}, indent=2, allow_nan=False) + "\n"
    if len(text) > MOST_BYTES or any(text.count(sign) > most for sign, most in _MOST_SIGNS.items()):
        raise invalid(str(path), f"have at most {MOST_BYTES // 2**20} MB, or it could not be read again", "more")
    write_text(path, text)


def content_digest(content: dict[str, Any]) -> str:
    """Return the hexadecimal SHA-256 of plain JSON values, whatever the order of members and the white space."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing, damaged or too large file is an `InvalidInput`."""
    return parse_json(_read_bounded(path, str(path), MOST_BYTES), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON, bytes as UTF-8. Anything but plain JSON of reasonable size is an error that names `where`."""
    with _parsing(where, "a JSON file"):
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        for sign, most in _MOST_SIGNS.items():
            if text.count(sign) > most:
                raise ValueError(f"more than {most:,} times {sign!r}")
        content = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
        _refuse_strange_values(content)
    return content


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file, with the limits of `parse_json`; `what` says what it is, for messages: "recipe", "study"."""
    where = f"{what} {path}"
    data = _read_bounded(path, where, MOST_TOML_BYTES)
    with _parsing(where, "TOML"):
        text = data.decode("utf-8")
        # tomllib takes time and memory that grow with the square of the length of a dotted key.
        if _LONG_KEY.search(text):
            raise ValueError(_TOO_DEEP)
        content = tomllib.loads(text)
        _refuse_strange_values(content)
    return content


@contextmanager
def _parsing(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise invalid(where, f"be {what}", f"something else ({error})") from error
    except RecursionError as error:
        raise invalid(where, f"be {what}", f"something else ({_TOO_DEEP})") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name[:40]!r} twice in one object")
        content[name] = value
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which is not JSON")


def _refuse_strange_values(content: object) -> None:
    """Refuse values that would fail later: deep nesting, endless numbers, text that cannot be written again."""
    level: list[Any] = [content]
    for _ in range(MOST_LEVELS):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, str):
                value.encode("utf-8")  # a lone surrogate has no encoding
            elif isinstance(value, float):
                if not math.isfinite(value):
                    raise ValueError("a number beyond the range of floating point")
            elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise ValueError("a whole number of more than 48 digits")
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


def check_format(content: Any, *, what: str, name: str, version: int, where: str) -> tuple[dict[str, Any], bool]:
    """Refuse JSON of another format or version, or that was changed after it was written.

    Returns:
        The other members, and whether the file has a digest, which proves that they were not changed.
    """
    if not isinstance(content, dict) or content.get("format") != name:
        raise invalid(where, f"be a {what} written by calibrant", "something else")
    if content.get("version") != version or isinstance(content["version"], bool):
        raise invalid(where, f"have version {version}", content.get("version"), "Use the calibrant that wrote it.")
    members = {key: value for key, value in content.items() if key != _DIGEST}
    if _DIGEST in content and content[_DIGEST] != content_digest(members):
        raise invalid(where, f"be an undamaged {what}", "one that was changed after it was written", _RESTORE)
    return {key: value for key, value in members.items() if key not in ("format", "version")}, _DIGEST in content


def typed(kind: type[_T], values: Any, *, what: str, where: str) -> _T:
    """Make a dataclass from plain JSON values by field, and check their types. No other fields may be there."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # As JSON, because strict validation of Python values expects tuples, and JSON has lists.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        fault = f"{place}: {first['msg']}".removeprefix(": ").replace("Value error, ", "").removesuffix(".")
        raise invalid(where, f"be an undamaged {what}", f"one with a fault: {fault}") from error


def _read_bounded(path: str | Path, where: str, most: int) -> bytes:
    """Read a file of at most `most` bytes."""
    source = as_path(path)
    with reading(where):
        if source.exists() and not source.is_file():
            raise invalid(where, "be a file", "something else")
        with source.open("rb") as handle:
            content = handle.read(most + 1)
    # One character outside ASCII makes all others take up to four bytes in memory.
    if len(content) > most or (len(content) > most // 4 and not content.isascii()):
        raise invalid(where, f"have at most {most // 2**20} MB, a quarter of that outside ASCII", "a larger file")
    return content


def sha256_of(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file, read in blocks."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def refuse_overwriting(outputs: Iterable[str | Path], inputs: Iterable[str | Path | None]) -> None:
    """Refuse an output that is one of the inputs, also by another name (a link, another spelling)."""
    read = [Path(given) for given in inputs if given is not None]
    for output in outputs:
        for given in read:
            if _same(Path(output), given):
                rule = f"not be {given}, which is read here"
                raise invalid("out", rule, str(output), "Name another file.")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


@contextmanager
def locked(path: Path, *, busy: str, inherited: bool = True) -> Iterator[None]:
    """Hold the lock on a file, which is created if it is missing; `busy` is the error if another process holds it."""
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

    If `inherited`, forked processes hold the lock too. Data loader processes would hold it for seconds after their
    parent was killed. A lock that is not inherited keeps out other processes, but not this one.
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
