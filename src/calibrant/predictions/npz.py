"""`.npz` files of plain arrays. Sizes are checked before memory is taken, and pickled objects are never loaded."""

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path, reading
from calibrant.predictions.columns import (
    Coded,
    PredictionSource,
    RawBlock,
    as_class_names,
    block_rows,
    check_columns_there,
    check_unfolded,
    names_or_numbers,
)
from calibrant.predictions.readings import Layout, Request, find_roles, resolve_kind, shortened
from calibrant.predictions.rows import PRECISIONS, OnDisk, Precision, check_shape

# NumPy writes at most some hundred bytes. Its parser takes long for hostile text of more than this.
_LONGEST_HEADER = 2000
# Enough for some thousand arrays; zipfile keeps about ten times as much in memory.
_LONGEST_LIST = 2**20
_LOCAL_HEADER = 30
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    struct.error,
    SyntaxError,
    RuntimeError,
    MemoryError,
    TypeError,
    OverflowError,
    TokenError,
)

_SCORES = ("logits", "probabilities", "scores")
# Scores of the predicted class alone; the array `predicted` holds that class.
_TOP_SCORES: dict[str, Kind] = {"confidence": "confidence", "score": "score"}
_ROLES = {"target": ("targets",), "id": ("ids",)}
CALIBRATED_BY = "calibrated_by"
_KNOWN = (*_SCORES, "targets", "ids", "class_names", "precision", CALIBRATED_BY)


@dataclass(frozen=True)
class Member:
    """The header of an array; `start` is its length in bytes, and with `fortran` the first index runs fastest."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int


class Npz:
    """An open `.npz` file. Any fault of the file is an `InvalidInput` that names it."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        with self._errors():
            self.size = self.path.stat().st_size
            with self.path.open("rb") as handle:
                _refuse_long_list(handle, self.size)
            self._archive = zipfile.ZipFile(self.path)
        try:
            self._infos = self._list()
        except InvalidInput:
            self._archive.close()
            raise
        self.names = list(self._infos)  # in the order of the file
        self._members: dict[str, Member] = {}

    def _list(self) -> dict[str, zipfile.ZipInfo]:
        infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in infos:
                raise invalid(str(self.path), "hold each array once", f"{name[:40]!r} twice")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._damaged(f"{name[:40]!r} has a compression that NumPy does not use")
            infos[name] = info
        self.unfolded = sum(info.file_size for info in infos.values())
        check_unfolded(str(self.path), self.unfolded, self.size)
        return infos

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def member(self, name: str) -> Member:
        """Read the header of an array and compare it with the size of the array."""
        if name not in self._members:
            with self._errors(), self._archive.open(self._infos[name]) as handle:
                self._members[name] = self._header(name, handle)
        return self._members[name]

    def _header(self, name: str, handle: IO[bytes]) -> Member:
        shown = name[:40]
        version = npy.read_magic(handle)
        if version not in ((1, 0), (2, 0)):
            raise invalid(f"{self.path}: {shown}", "be .npy of version 1 or 2", f"version {version}")
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(handle, max_header_size=_LONGEST_HEADER)
        if dtype.kind not in "biufcUS":
            hint = "Pickled objects are never loaded: they can run code. Save numbers and strings."
            raise invalid(f"{self.path}: {shown}", "be a plain array", f"dtype {str(dtype)[:40]}", hint)
        start = handle.tell()
        info = self._infos[name]
        stored = info.file_size - start
        declared = prod(shape) * dtype.itemsize
        if declared != stored:
            rule = f"hold {declared} bytes of {shown} for its shape"
            raise invalid(str(self.path), rule, f"{stored}", "The file is damaged or was cut off.")
        # An axis of 10^18 entries of no bytes has the right size, and a loop over it never ends.
        if any(not 0 <= axis <= max(stored, 2**16) for axis in shape):
            raise self._damaged(f"{shown!r} has the shape {shape} and {stored} bytes")
        return Member(info, shape, dtype, bool(fortran) and len(shape) > 1, start)

    def read(self, name: str) -> NDArray[Any]:
        """Read a whole array."""
        self.member(name)  # checks its size
        with self._errors(), self._archive.open(self._infos[name]) as handle:
            values: NDArray[Any] = npy.read_array(handle, allow_pickle=False, max_header_size=_LONGEST_HEADER)
            handle.read(1)  # at the end zipfile compares the checksum
        return values

    def rows(self, name: str, step: int) -> Iterator[NDArray[Any]]:
        """Yield an array in blocks of at most `step` entries of its first axis."""
        member = self.member(name)
        if member.fortran:  # rows are not together in the file
            values = self.read(name)
            yield from (values[start : start + step] for start in range(0, len(values), step))
            return
        left = member.info.file_size - member.start
        size = step * prod(member.shape[1:]) * member.dtype.itemsize
        with self._errors(), self._archive.open(member.info) as handle:
            handle.read(member.start)
            while left:
                data = handle.read(min(size, left))
                if len(data) < min(size, left):
                    raise EOFError(f"{name[:40]!r} holds less than it declares")
                left -= len(data)
                if not left:
                    handle.read(1)  # at the end zipfile compares the checksum
                yield np.frombuffer(data, member.dtype).reshape(-1, *member.shape[1:])

    def offset(self, name: str) -> int | None:
        """Return where the array's bytes begin in the file, or None if they are compressed."""
        member = self.member(name)
        if member.info.compress_type != zipfile.ZIP_STORED:
            return None
        with self._errors(), self.path.open("rb") as handle:
            handle.seek(member.info.header_offset)
            # The name and the extra field of the local header have lengths of their own.
            lengths = struct.unpack("<26xHH", handle.read(_LOCAL_HEADER))
        return int(member.info.header_offset + _LOCAL_HEADER + sum(lengths) + member.start)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with reading(self.path):
                yield
        except InvalidInput:
            raise
        except _DAMAGED as error:
            raise self._damaged(str(error).partition("\n")[0][:200]) from error

    def _damaged(self, fault: object) -> InvalidInput:
        return invalid(str(self.path), "be a whole .npz file of plain arrays", f"something else ({fault})")


def read_npz(path: str | Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read the named arrays, as far as the file has them."""
    with Npz(path) as archive:
        return {name: archive.read(name) for name in names if name in archive}


def _refuse_long_list(handle: IO[bytes], size: int) -> None:
    """Refuse a list of members that would fill memory: zipfile has no limit."""
    handle.seek(max(0, size - 2**16 - 22 - 76))
    tail = handle.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0 or len(tail) < end + 22:
        return  # zipfile says what is wrong
    (length,) = struct.unpack_from("<I", tail, end + 12)
    if end >= 76 and tail[end - 20 : end - 16] == b"PK\6\7":  # large files have another record before this one
        length = struct.unpack_from("<Q", tail, end - 76 + 40)[0]
    if length > _LONGEST_LIST:
        raise ValueError(f"its list of arrays takes {length} bytes")


class NpzSource(PredictionSource):
    """Predictions in one `.npz` file. Arrays of one axis that have other names are extras."""

    typed = True
    rows: int  # the file declares it

    def __init__(self, path: Path, request: Request) -> None:
        self.where = str(path)
        self._path = path
        with Npz(path) as archive:
            self.stored = archive.size
            self.unfolded = archive.unfolded
            self._name = self._scores_of(archive)
            self._member = archive.member(self._name)
            self.dtype = self._member.dtype.newbyteorder("=")
            if self.dtype.kind in "iu":
                self.dtype = np.dtype(np.float64)
            kind = self._kind_of(request.kind)
            top = self._name in _TOP_SCORES
            self.rows = self._member.shape[0]
            self._width = 1
            if not top:
                self._width = self._member.shape[1]
            self.precision = self._precision_of(archive)
            self.class_names = None
            if "class_names" in archive:
                named = np.atleast_1d(archive.read("class_names"))
                self.class_names = as_class_names(named, len(named) if top else self._width)
            roles = self._roles_of(archive, request.columns)
            others = [name for name in archive.names if name not in (*_KNOWN, self._name, *roles.values())]
            extras = tuple(name for name in others if archive.member(name).shape == (self.rows,))
        names: tuple[str, ...] = ()
        if not top:
            names = names_or_numbers(self.class_names, self._width)
        places = roles.get("target"), roles.get("id"), extras, roles.get("predicted")
        self.layout = Layout(kind, names or (self._name,), names, *places)
        if request.like is not None:
            self._check_like(request.like)

    def _check_like(self, like: Layout) -> None:
        """Check a later file of a folder against the first one."""
        if (self.layout.kind, self.layout.names) != (like.kind, like.names):
            rule = f"hold {like.kind} of the classes {shortened(like.names)}, in this order"
            raise invalid(self.where, rule, f"{self.layout.kind} of {shortened(self.layout.names)}")
        there = [*self.layout.beside_scores, *self.layout.headings, *self.layout.extras]
        check_columns_there(self.where, there, like)
        self.layout = like

    def _scores_of(self, archive: Npz) -> str:
        names = [name for name in _SCORES if name in archive]
        if not names and "predicted" in archive:
            names = [name for name in _TOP_SCORES if name in archive]
        if len(names) != 1:
            rule = "hold exactly one of the arrays logits, probabilities, scores, or predicted and confidence"
            hint = "Name them when you save: numpy.savez(file, logits=..., targets=...)."
            raise invalid(self.where, rule, shortened(archive.names, 12) or "no arrays", hint)
        return names[0]

    def _roles_of(self, archive: Npz, columns: Mapping[str, str]) -> dict[str, str]:
        """Find the arrays of targets, ids and predicted classes, which have one entry per row."""
        roles = find_roles(self.where, archive.names, columns, _ROLES)
        if self._name in _TOP_SCORES:
            roles["predicted"] = "predicted"
        for role, name in roles.items():
            shape = archive.member(name).shape
            if shape != (self.rows,):
                hint = ""
                if role == "target" and len(shape) == 2:
                    hint = "Of one-hot rows take the argmax."
                raise invalid(name, f"have shape ({self.rows},), one per row", f"shape {shape}", hint)
        return roles

    def _precision_of(self, archive: Npz) -> Precision:
        if "precision" not in archive:
            return PRECISIONS[self.dtype.itemsize]
        value = archive.read("precision").tolist()
        if value != "bfloat16":
            raise invalid(f"{self.where}: precision", "be 'bfloat16' if it is there", repr(value)[:60])
        return "bfloat16"

    def _kind_of(self, kind: Kind | None) -> Kind:
        shape = self._member.shape
        top = _TOP_SCORES.get(self._name)
        if top is None:
            kind = resolve_kind(self.where, self._name, kind)
            check_shape(shape, self.dtype, kind)
            return kind
        if kind not in (None, top):
            raise invalid(f"{self.where}: scores", f"be {kind} as you said", f"{top} by their name")
        if len(shape) != 1 or not shape[0] or self.dtype.kind != "f":
            raise invalid(top, "hold one floating-point number per row", f"{self.dtype} of shape {shape}")
        return top

    def labels_in(self, column: str) -> set[str]:
        """Return the distinct values of an array as text."""
        with Npz(self._path) as archive:
            return set(map(str, np.unique(archive.read(column)).tolist()))

    def on_disk(self) -> OnDisk | None:
        """Return the scores in the file itself, unless they are compressed, of a foreign type or stored by columns."""
        with Npz(self._path) as archive:
            offset = archive.offset(self._name)
        if offset is None or self._member.dtype != self.dtype or self._member.fortran:
            return None
        with self._path.open("rb") as handle:
            return OnDisk(handle, (self.rows, self._width), self.dtype, offset=offset, where=self.where)

    def read(self, names: Sequence[str], *, scores: bool = False) -> Iterator[RawBlock]:
        """Yield the rows in order. All arrays are read side by side."""
        step = block_rows(self._width)
        wanted = [*names]
        if scores:
            wanted.append(self._name)
        with Npz(self._path) as archive:
            streams = {name: archive.rows(name, step) for name in wanted}
            for start in range(0, self.rows, step):
                columns: dict[str, Any] = {name: next(stream) for name, stream in streams.items()}
                block_scores = None
                if scores:
                    block_scores = columns.pop(self._name).astype(self.dtype, copy=False).reshape(-1, self._width)
                for name in self.layout.labels:
                    if name in columns:
                        columns[name] = _coded(name, columns[name])
                yield RawBlock(min(step, self.rows - start), columns, block_scores)


def _coded(name: str, values: NDArray[Any]) -> Coded:
    if values.dtype.kind not in "iuU":
        hint = f"Convert them before you save: {name}.astype(int)."
        raise invalid(name, "be integers or class names", f"dtype {values.dtype}", hint)
    distinct, places = np.unique(values, return_inverse=True)
    return distinct.tolist(), places


def calibrated_by(path: Path) -> str | None:
    """Digest of the calibrator that made the scores of an `.npz` file; None if it does not say, and for other files."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    with Npz(path) as archive:
        if CALIBRATED_BY not in archive.names:
            return None
        return str(np.atleast_1d(archive.read(CALIBRATED_BY))[0])[:64]
