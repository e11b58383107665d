"""Predictions as files: which format, and what a file says about its scores."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import CalibrantError, InvalidInput, did_you_mean, invalid
from calibrant.files import as_path
from calibrant.predictions.checks import Kind, Precision

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

SUFFIXES = (".npz", ".csv", ".parquet")
KINDS: tuple[Kind, ...] = ("logits", "probabilities")


@dataclass(frozen=True)
class Content:
    """What a file holds, before it is checked.

    Attributes:
        kind: What it says its scores are.
        scores: In memory or mapped.
        targets: As read.
        ids: As read, or None.
        class_names: As read, or None.
        precision: Where NumPy's type does not say it (bfloat16), else None.
        extras: Other columns by name, or None.
    """

    kind: Kind
    scores: NDArray[Any]
    targets: NDArray[Any]
    ids: NDArray[Any] | None
    class_names: tuple[str, ...] | None
    precision: Precision | None = None
    extras: Mapping[str, NDArray[Any]] | None = None


def save(predictions: "Predictions", path: str | Path) -> None:
    """Write all or nothing, in the format that the ending names."""
    suffix = _suffix(path)
    if suffix == ".npz":
        from calibrant.predictions.npz import write_npz

        write_npz(predictions, path)
        return
    if predictions.kind == "probabilities" and predictions.precision in ("float16", "bfloat16"):
        # Read back as float64 they would have to meet its tolerance, which rounding to half precision breaks.
        raise invalid("path", "end in .npz for half-precision probabilities", str(path))
    from calibrant.predictions import tables

    (tables.write_csv if suffix == ".csv" else tables.write_parquet)(predictions, path)


def load(path: str | Path, kind: Kind | None, *, mmap: bool) -> Content:
    """Read a file of any known format; scores stay on disk with `mmap`."""
    if kind not in (None, *KINDS):
        raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
    if as_path(path).is_dir():
        way_out = f"The test predictions of a run lie in {path}/predictions/test.npz."
        raise invalid("path", "be a file", f"the folder {path}", way_out)
    suffix = _suffix(path)
    with readable(path):
        if suffix == ".npz":
            from calibrant.predictions.npz import read_npz

            return read_npz(Path(path), kind, mmap=mmap)
        from calibrant.predictions import tables

        read = tables.read_csv if suffix == ".csv" else tables.read_parquet
        return read(Path(path), kind, mmap=mmap)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn what the system says about a file into one line."""
    try:
        yield
    except CalibrantError:
        raise
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist.") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error


def _suffix(path: str | Path) -> str:
    suffix = as_path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise invalid("path", f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", str(path))
    return suffix


def settle_kind(path: Path, found: str, kind: Kind | None) -> Kind:
    """What the scores are, from the file's own word ("scores" if it says nothing) and from the user's."""
    if found == "scores":
        if kind is None:
            way_out = "Say it: --kind logits or --kind probabilities (kind= in Python)."
            raise InvalidInput(f"{path} does not say whether its scores are logits or probabilities. {way_out}")
        return kind
    if kind not in (None, found):
        raise invalid(f"{path}: scores", f"be {kind} as you said", f"{found} by their name")
    return "logits" if found == "logits" else "probabilities"


def refuse_unknown(path: Path, what: str, name: str, known: Iterable[str]) -> InvalidInput:
    """The error for an array or column that nobody knows."""
    return InvalidInput(f"{path}: unknown {what} {name!r}. {did_you_mean(name, known)}")


def spool(blocks: Iterable[NDArray[Any]], *, mmap: bool) -> NDArray[Any]:
    """Join blocks of rows in memory, or in a temporary file that vanishes with the array."""
    if not mmap:
        return np.concatenate(list(blocks))
    shape, dtype = (0, 0), np.dtype(np.float64)
    with TemporaryFile(prefix="calibrant-") as handle:
        for block in blocks:
            shape, dtype = (shape[0] + block.shape[0], block.shape[1]), block.dtype
            np.ascontiguousarray(block).tofile(handle)
        handle.flush()
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(handle, dtype=dtype, mode="c", shape=shape)
