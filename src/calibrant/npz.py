"""The one reader of `.npz` files. It believes nothing that the file cannot hold, and it never loads pickled objects."""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path

# Real arrays unfold to a few times their size; a file that unfolds to more than this was made to fill memory.
_MOST_UNFOLDED = 10
# A small file may hold zeros only: so many bytes harm nobody, although metrics may need five times as many.
_HARMLESS = 2**26
_BLOCK_BYTES = 2**24
# NumPy writes at most some hundred bytes, padded to a multiple of 64.
_LONGEST_HEADER = 10_000
# Room for some thousand arrays; zipfile keeps about ten times as much in memory.
_LONGEST_LIST = 2**20
_LOCAL_HEADER = 30
_FIELD = re.compile(r"""['"](descr|fortran_order|shape)['"]:(?:['"]([^'"]*)['"]|(True|False)|\(([0-9,L]*)\)),?""")
_PLAIN = re.compile(r"[<>|=]?[biufcUS][0-9]{1,9}")
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, struct.error, NotImplementedError, RuntimeError)


_UNPACKED = "If it is meant to be so, write it again without compression."


def check_unfolded(
    where: str, unfolded: int, stored: int, way_out: str = _UNPACKED, *, most: int = _MOST_UNFOLDED
) -> None:
    """Refuse, before anything is allocated, what would take far more memory than the file has bytes.

    Args:
        where: The file, for the message.
        unfolded: Bytes that its content would take.
        stored: Bytes that the file has.
        way_out: What to do.
        most: How many times its size a file may unfold to.
    """
    if unfolded > max(_HARMLESS, most * stored):
        rule = f"unfold to at most {most} times its size"
        found = f"{unfolded / 2**20:,.0f} MB in a file of {stored / 2**20:,.2f} MB"
        raise invalid(where, rule, found, way_out)


@dataclass(frozen=True)
class Member:
    """What the header of an array says.

    Attributes:
        info: Its entry in the list of members.
        shape: Its shape.
        dtype: A plain type: numbers, booleans or text.
        order: "F" where the first index runs fastest, else "C".
        start: Length of the header.
    """

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["F", "C"]
    start: int


class Npz:
    """An open `.npz` file. Whatever is wrong with it is one line that names it, an `InvalidInput`."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        with self._guard():
            self.size = self.path.stat().st_size
            with self.path.open("rb") as handle:
                _refuse_long_list(handle, self.size)
            self._archive = zipfile.ZipFile(self.path)
        try:
            self._infos = self._list()
        except InvalidInput:
            self._archive.close()
            raise
        self._members: dict[str, Member] = {}

    def _list(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in found:
                raise invalid(str(self.path), "hold each array once", f"{name[:40]!r} twice")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._damaged(f"{name[:40]!r} is compressed in another way than NumPy's")
            found[name] = info
        check_unfolded(str(self.path), sum(info.file_size for info in found.values()), self.size)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays, as the file lists them."""
        return list(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def member(self, name: str) -> Member:
        """What the header of an array says, checked against the size of the array."""
        if name not in self._members:
            with self._guard(), self._archive.open(self._infos[name]) as handle:
                self._members[name] = self._header(name, handle)
        return self._members[name]

    def _header(self, name: str, handle: IO[bytes]) -> Member:
        magic, major, minor = struct.unpack("<6sBB", handle.read(8))
        if magic != b"\x93NUMPY":
            raise self._damaged(f"{name[:40]!r} is no array")
        if (major, minor) not in ((1, 0), (2, 0)):
            raise invalid(f"{self.path}: {name[:40]}", "be .npy of version 1 or 2", f"version {(major, minor)}")
        (length,) = struct.unpack("<H", handle.read(2)) if major == 1 else struct.unpack("<I", handle.read(4))
        if length > _LONGEST_HEADER:
            raise self._damaged(f"the header of {name[:40]!r} is {length} bytes long")
        descr, fortran, shape = _fields(handle.read(length).decode("latin-1"))
        if not _PLAIN.fullmatch(descr):
            way_out = "Pickled objects are never loaded: they can run code. Save numbers and strings."
            raise invalid(f"{self.path}: {name[:40]}", "be a plain array", f"dtype {descr[:40]}", way_out)
        dtype, start = _dtype(descr), handle.tell()
        info = self._infos[name]
        held, declared = info.file_size - start, prod(shape) * dtype.itemsize
        if declared != held:
            rule = f"hold {declared} bytes of {name[:40]} for its shape"
            raise invalid(str(self.path), rule, f"{held}", "The file is damaged or was cut off.")
        # An axis of 10^18 entries of no bytes has the right size, and a loop over it never ends.
        if any(axis > max(held, 2**16) for axis in shape):
            raise self._damaged(f"{name[:40]!r} has the shape {shape} and {held} bytes")
        return Member(info, shape, dtype, "F" if fortran else "C", start)

    def read(self, name: str) -> NDArray[Any]:
        """A whole array."""
        member = self.member(name)
        values = np.empty(prod(member.shape), member.dtype)
        room, filled = values.view(np.uint8), 0
        for data in self.raw_blocks(name, _BLOCK_BYTES):
            room[filled : filled + len(data)] = np.frombuffer(data, np.uint8)
            filled += len(data)
        return values.reshape(member.shape, order=member.order)

    def raw_blocks(self, name: str, size: int) -> Iterator[bytes]:
        """The bytes of an array in blocks of `size`; the last one checks that all of them were there."""
        member = self.member(name)
        left = member.info.file_size - member.start
        with self._guard():
            handle = self._archive.open(member.info)
        with handle:
            with self._guard():
                handle.read(member.start)
            while left:
                with self._guard():
                    data = handle.read(min(size, left))
                    if len(data) < min(size, left):
                        raise EOFError(f"{name[:40]!r} holds less than it declares")
                    left -= len(data)
                    if not left:
                        handle.read(1)  # at the end zipfile compares the checksum
                yield data

    def rows(self, name: str, size: int) -> Iterator[NDArray[Any]]:
        """An array in blocks of at most `size` of its first axis; its order must be "C"."""
        member = self.member(name)
        row = prod(member.shape[1:]) * member.dtype.itemsize
        for data in self.raw_blocks(name, size * row):
            yield np.frombuffer(data, member.dtype).reshape(-1, *member.shape[1:])

    def offset(self, name: str) -> int | None:
        """Where the array's bytes begin in the file; None where they are compressed."""
        member = self.member(name)
        if member.info.compress_type != zipfile.ZIP_STORED:
            return None
        with self._guard(), self.path.open("rb") as handle:
            handle.seek(member.info.header_offset)
            # The local header has a name and an extra field whose lengths are its own.
            lengths = struct.unpack("<26xHH", handle.read(_LOCAL_HEADER))
        return int(member.info.header_offset + _LOCAL_HEADER + sum(lengths) + member.start)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except InvalidInput:
            raise
        except FileNotFoundError as error:
            raise InvalidInput(f"{self.path} does not exist.") from error
        except _DAMAGED as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def _damaged(self, fault: object) -> InvalidInput:
        return invalid(str(self.path), "be a whole .npz file of plain arrays", f"something else ({fault})")


def read_npz(path: str | Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that a file has."""
    with Npz(path) as archive:
        return {name: archive.read(name) for name in names if name in archive}


def _refuse_long_list(handle: IO[bytes], size: int) -> None:
    """Refuse a list of members so long that reading it would fill memory: zipfile itself has no limit."""
    handle.seek(max(0, size - 2**16 - 22 - 76))
    tail = handle.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0 or len(tail) < end + 22:
        return  # zipfile says what is wrong
    (length,) = struct.unpack_from("<I", tail, end + 12)
    if end >= 76 and tail[end - 20 : end - 16] == b"PK\6\7":  # a record for large files stands before
        length = struct.unpack_from("<Q", tail, end - 76 + 40)[0]
    if length > _LONGEST_LIST:
        raise ValueError(f"its list of arrays takes {length} bytes")


def _fields(header: str) -> tuple[str, bool, tuple[int, ...]]:
    """Type, order and shape. NumPy reads this as Python, which takes minutes or all memory for hostile text."""
    text = header.strip().replace(" ", "")
    found: dict[str, re.Match[str]] = {}
    place = 1
    while field := _FIELD.match(text, place):
        found[field[1]], place = field, field.end()
    if text[:1] != "{" or text[place:] != "}" or len(found) < 3:
        raise ValueError(f"a header that is not NumPy's: {text[:60]!r}")
    descr, order, shape = found["descr"][2], found["fortran_order"][3], found["shape"][4]
    if descr is None or order is None or shape is None:
        raise ValueError(f"a header that is not NumPy's: {text[:60]!r}")
    axes = [axis.removesuffix("L") for axis in shape.split(",") if axis]
    if len(axes) > 32 or any(not 0 < len(axis) < 20 for axis in axes):
        raise ValueError(f"the shape ({shape[:60]})")
    return descr, order == "True", tuple(map(int, axes))


def _dtype(descr: str) -> np.dtype[Any]:
    try:
        return np.dtype(descr)
    except TypeError as error:
        raise ValueError(f"the type {descr!r}") from error
