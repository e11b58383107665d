"""Predictions as `.npz`: plain arrays without pickle, which can stay on disk."""

import struct
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid
from calibrant.files import DAMAGED_NPZ, atomic_write
from calibrant.predictions.checks import Kind
from calibrant.predictions.files import KINDS, Content, refuse_unknown, settle_kind, spool

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_KNOWN = (*KINDS, "scores", "targets", "ids", "class_names", "precision")
_LOCAL_HEADER = 30
_BLOCK_BYTES = 2**24


def write_npz(predictions: "Predictions", path: str | Path) -> None:
    """Write uncompressed members, so that a reader can map them."""
    arrays: dict[str, Any] = {predictions.kind: predictions.scores, "targets": predictions.targets}
    if predictions.ids is not None:
        arrays["ids"] = predictions.ids
    if predictions.class_names is not None:
        arrays["class_names"] = np.asarray(predictions.class_names)
    if predictions.precision == "bfloat16":
        arrays["precision"] = np.asarray("bfloat16")  # NumPy stores it as float32
    with atomic_write(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def read_npz(path: Path, kind: Kind | None, *, mmap: bool) -> Content:
    """Read the members by name; with `mmap` the scores are mapped, or spooled to disk where they are compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive, kind, mmap=mmap)
    except DAMAGED_NPZ as error:
        if isinstance(error, InvalidInput):
            raise
        raise invalid(str(path), "be a whole .npz file of plain arrays", f"something else ({error})") from error


def _read(path: Path, archive: zipfile.ZipFile, kind: Kind | None, *, mmap: bool) -> Content:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    for name in members:
        if name not in _KNOWN:
            raise refuse_unknown(path, "array", name, _KNOWN)
    found = [name for name in (*KINDS, "scores") if name in members]
    if len(found) != 1 or "targets" not in members:
        rule = "hold targets and exactly one of logits, probabilities, scores"
        raise invalid(str(path), rule, ", ".join(members) or "no arrays")
    settled = settle_kind(path, found[0], kind)
    arrays = {name: _member(path, archive, info, mmap=mmap and name == found[0]) for name, info in members.items()}
    if "precision" in arrays and arrays["precision"].tolist() != "bfloat16":
        raise invalid(f"{path}: precision", "be 'bfloat16' where it is given", repr(arrays["precision"].tolist()))
    names = arrays.get("class_names")
    return Content(
        kind=settled,
        scores=arrays[found[0]],
        targets=arrays["targets"],
        ids=arrays.get("ids"),
        class_names=None if names is None else tuple(np.atleast_1d(names).tolist()),
        precision="bfloat16" if "precision" in arrays else None,
    )


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, mmap: bool) -> NDArray[Any]:
    with archive.open(info) as handle:
        shape, fortran, dtype, start = _header(path, handle, info.filename)
        if start + prod(shape) * dtype.itemsize != info.file_size:
            rule = f"hold {prod(shape) * dtype.itemsize} bytes of {info.filename}"
            raise invalid(str(path), rule, f"{info.file_size - start}", "The file is damaged or was cut off.")
        order: Literal["F", "C"] = "F" if fortran else "C"
        if mmap and info.compress_type == zipfile.ZIP_STORED:
            offset = _data_offset(path, info) + start
            mapped: NDArray[Any] = np.memmap(path, dtype=dtype, mode="c", offset=offset, shape=shape, order=order)
            return mapped
        if mmap and not fortran and len(shape) == 2 and 0 not in shape:
            return spool(_blocks(handle, shape, dtype), mmap=True)
        return _read_all(handle, dtype, shape, order)


def _read_all(
    handle: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["F", "C"]
) -> NDArray[Any]:
    """Fill one array, without a second copy of the bytes; the last read checks the member's checksum."""
    values = np.empty(prod(shape), dtype)
    room = values.view(np.uint8)
    filled = 0
    while data := handle.read(_BLOCK_BYTES):
        room[filled : filled + len(data)] = np.frombuffer(data, np.uint8)
        filled += len(data)
    return values.reshape(shape, order=order)


def _header(path: Path, handle: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type and length of the header of a `.npy` member."""
    version = npy.read_magic(handle)
    if version not in ((1, 0), (2, 0)):
        raise invalid(f"{path}: {name}", "be .npy of version 1 or 2", f"version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(handle)
    if dtype.hasobject or dtype.fields is not None:
        way_out = "Pickled objects are never loaded: they can run code. Save numbers and strings."
        raise invalid(f"{path}: {name}", "be a plain array", f"dtype {dtype}", way_out)
    return shape, fortran, dtype, handle.tell()


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: its local header has a name and an extra field of its own lengths."""
    with path.open("rb") as handle:
        handle.seek(info.header_offset)
        name, extra = struct.unpack("<26xHH", handle.read(_LOCAL_HEADER))
    return int(info.header_offset + _LOCAL_HEADER + name + extra)


def _blocks(handle: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    row = shape[1] * dtype.itemsize
    while data := handle.read(max(1, _BLOCK_BYTES // row) * row):
        yield np.frombuffer(data, dtype).reshape(-1, shape[1])
