"""Predictions as `.npz`: plain arrays, which can stay on disk."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.errors import invalid
from calibrant.files import atomic_write
from calibrant.npz import Npz
from calibrant.predictions.checks import PRECISIONS, Precision, as_class_names, check_shape
from calibrant.predictions.class_order import names_or_numbers, shortened
from calibrant.predictions.columns import Layout, find_roles, resolve_kind
from calibrant.predictions.on_disk import OnDisk
from calibrant.predictions.source import RawBlock, Wanted, block_rows

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_SCORES = ("logits", "probabilities", "scores")
_OWN = {"target": "targets", "id": "ids"}
_KNOWN = (*_SCORES, *_OWN.values(), "class_names", "precision")


def write_npz(predictions: "Predictions", path: str | Path) -> None:
    """Write uncompressed arrays, so that a reader can leave them where they are."""
    arrays: dict[str, Any] = {predictions.kind: predictions.scores, "targets": predictions.targets}
    if predictions.ids is not None:
        arrays["ids"] = predictions.ids
    if predictions.class_names is not None:
        arrays["class_names"] = np.asarray(predictions.class_names)
    if predictions.precision == "bfloat16":
        arrays["precision"] = np.asarray("bfloat16")  # NumPy stores it as float32
    for name, column in predictions.extras.items():
        arrays[name] = column.astype(np.str_) if column.dtype == object else column
    with atomic_write(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


class NpzSource:
    """One `.npz` file; arrays of one axis that have other names are extras."""

    typed = True

    def __init__(self, path: Path, kind: Kind | None, columns: Mapping[str, str]) -> None:
        self.where, self._path = str(path), path
        with Npz(path) as archive:
            found = [name for name in _SCORES if name in archive]
            if len(found) != 1:
                rule = "hold exactly one of the arrays logits, probabilities, scores"
                way_out = "Name them when you save: numpy.savez(file, logits=..., targets=...)."
                raise invalid(self.where, rule, shortened(archive.names, 12) or "no arrays", way_out)
            kind = resolve_kind(self.where, found[0], kind)
            self._name, self._member = found[0], archive.member(found[0])
            self.dtype, rows, classes = self._check_scores(kind)
            self.rows: int | None = rows
            roles = find_roles(self.where, archive.names, columns, _OWN)
            self.precision = self._own_precision(archive)
            names = archive.read("class_names") if "class_names" in archive else None
            self.class_names = as_class_names(None if names is None else np.atleast_1d(names), classes)
            others = [name for name in archive.names if name not in (*_KNOWN, *roles.values())]
            extras = tuple(name for name in others if archive.member(name).shape == (rows,))
            for role, name in roles.items():
                shape = archive.member(name).shape
                if shape != (rows,):
                    way_out = "Of one-hot rows take the argmax." if role == "target" and len(shape) == 2 else ""
                    raise invalid(_OWN[role], f"have shape ({rows},), one per row", f"shape {shape}", way_out)
        own_names = names_or_numbers(self.class_names, classes)
        self.layout = Layout(kind, own_names, own_names, roles.get("target"), roles.get("id"), extras)

    def _check_scores(self, kind: Kind) -> tuple[np.dtype[Any], int, int]:
        whole = self._member.dtype.kind in "iu"
        dtype = np.dtype(np.float64) if whole else self._member.dtype.newbyteorder("=")
        check_shape(kind, self._member.shape, dtype, kind)
        return dtype, *self._shape

    def _own_precision(self, archive: Npz) -> Precision:
        said = archive.read("precision").tolist() if "precision" in archive else None
        if said not in (None, "bfloat16"):
            raise invalid(f"{self.where}: precision", "be 'bfloat16' where it is given", repr(said)[:60])
        return "bfloat16" if said else PRECISIONS[self.dtype.itemsize]

    def on_disk(self) -> OnDisk | None:
        """The scores in place, where they are neither compressed nor in another type than this machine's."""
        with Npz(self._path) as archive:
            offset = archive.offset(self._name)
        if offset is None or self._member.dtype != self.dtype:
            return None
        with self._path.open("rb") as handle:
            return OnDisk(handle, self._shape, self.dtype, offset=offset, order=self._member.order, where=self.where)

    @property
    def _shape(self) -> tuple[int, int]:
        rows, classes = self._member.shape
        return rows, classes

    def read(self, wanted: Wanted) -> Iterator[RawBlock]:
        """The rows in order; all arrays are read side by side."""
        rows, classes = self._shape
        step = block_rows(classes)
        with Npz(self._path) as archive:
            names = [self._name] if wanted.scores else []
            names += [name for name in (self.layout.target,) if name is not None and wanted.target]
            names += [name for name in (self.layout.id,) if name is not None and wanted.id]
            streams = {name: _rows(archive, name, step) for name in (*names, *wanted.extras)}
            for start in range(0, rows, step):
                columns = {name: next(stream) for name, stream in streams.items()}
                yield self._block(columns, min(step, rows - start), wanted)

    def _block(self, columns: dict[str, NDArray[Any]], rows: int, wanted: Wanted) -> RawBlock:
        target = columns.get(self.layout.target or "") if wanted.target else None
        if target is not None and target.dtype.kind not in "iuU":
            way_out = "Convert them before you save: targets.astype(int)."
            raise invalid("targets", "be integers or class names", f"dtype {target.dtype}", way_out)
        return RawBlock(
            rows,
            columns[self._name].astype(self.dtype, copy=False) if wanted.scores else None,
            None if target is None else _encode(target),
            columns.get(self.layout.id or "") if wanted.id else None,
            {name: columns[name] for name in wanted.extras},
        )


def _encode(values: NDArray[Any]) -> tuple[list[Any], NDArray[Any]]:
    distinct, places = np.unique(values, return_inverse=True)
    return distinct.tolist(), places


def _rows(archive: Npz, name: str, step: int) -> Iterator[NDArray[Any]]:
    if archive.member(name).order == "C" or len(archive.member(name).shape) == 1:
        return archive.rows(name, step)
    values = archive.read(name)
    return (values[start : start + step] for start in range(0, len(values), step))
