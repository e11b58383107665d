"""Which samples left, when and with what score: the report and the file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import labels
from calibrant.display import Displayed, Overview, ShownFields
from calibrant.errors import invalid
from calibrant.files import atomic_write, parse_json
from calibrant.predictions import read_npz
from calibrant.pruning.table import ScoreTable

_FORMAT = 1


@dataclass(frozen=True)
class Suspect(ShownFields):
    """A sample whose label may be wrong: the model keeps predicting another class.

    Attributes:
        index: Position in the data set.
        target: The label it carries.
        predicted: The class the model predicted last.
        excess: EMA (bias-corrected) of the top probability minus the label's, in [0, 1].
        confidence: EMA of the top probability.
    """

    index: int
    target: int
    predicted: int
    excess: float
    confidence: float


def find_suspects(table: ScoreTable, labels: NDArray[np.integer], *, limit: int) -> list[Suspect]:
    """The samples with the largest excess among those whose last prediction is not their label; ties by index."""
    predicted = table.column("predicted").astype(np.int64)
    excess = table.corrected("excess")
    doubted = np.flatnonzero((predicted >= 0) & (predicted != labels))
    chosen = doubted[np.argsort(-excess[doubted], kind="stable")[:limit]]
    confidence = table.corrected("confidence")
    return [
        Suspect(int(i), int(labels[i]), int(predicted[i]), round(float(excess[i]), 6), round(float(confidence[i]), 6))
        for i in chosen
    ]


@dataclass(frozen=True)
class Note(ShownFields):
    """Something the pruner refused or could not do, and the epoch when it first happened."""

    epoch: int
    text: str


@dataclass(frozen=True, repr=False)
class PruningReport(Displayed):
    """What pruning did so far.

    Attributes:
        samples: Size of the data set.
        epoch: Finished epochs.
        class_sizes: Samples of each class in the data set.
        class_kept: Samples of each class that train in the coming epoch.
        kept_by_epoch: Samples trained on in each finished epoch.
        seen: Sample updates so far, the sum of `kept_by_epoch`.
        full: What training on all data would have taken.
        notes: Refusals and cuts without effect.
        suspects: Likely wrong labels, the likeliest first.
        seconds: Training time so far, where it was given.
    """

    samples: int
    epoch: int
    class_sizes: list[int]
    class_kept: list[int]
    kept_by_epoch: list[int]
    seen: int
    full: int
    notes: list[Note]
    suspects: list[Suspect]
    seconds: float | None = None

    def _overview(self) -> Overview:
        rows: list[tuple[str, object]] = [
            ("trained on in the last epoch", f"{self.kept_by_epoch[-1]:,}" if self.kept_by_epoch else "-"),
            ("in the coming epoch", f"{sum(self.class_kept):,}"),
            ("sample updates", f"{self.seen:,} of {self.full:,}, {self.saved_share:.1%} saved"),
            ("likely wrong labels", len(self.suspects)),
            *((f"epoch {each.epoch}", each.text) for each in self.notes),
        ]
        return Overview(f"{self.samples:,} samples, {self.epoch} epochs done", rows)

    @property
    def saved(self) -> int:
        """Sample updates saved, exactly."""
        return self.full - self.seen

    @property
    def saved_share(self) -> float:
        """Sample updates saved as a share of those on all data; 0 before the first epoch."""
        return self.saved / self.full if self.full else 0.0

    @property
    def seconds_saved(self) -> float | None:
        """Estimate of the time saved: the saved updates at the pace of those that were made."""
        return None if self.seconds is None or not self.seen else self.seconds * self.saved / self.seen

    @property
    def class_left(self) -> list[int]:
        """Samples of each class that do not train in the coming epoch."""
        return [size - kept for size, kept in zip(self.class_sizes, self.class_kept, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `json.dump`."""
        derived = {
            "class_left": self.class_left,
            "saved": self.saved,
            "saved_share": self.saved_share,
            "seconds_saved": self.seconds_saved,
        }
        return asdict(self) | derived

    def table(self) -> str:
        """A few lines for people."""
        lines = [
            f"after epoch {self.epoch}: {sum(self.class_kept):,} of {self.samples:,} samples are trained on",
            f"sample updates: {self.seen:,} instead of {self.full:,} ({self.saved_share:.1%} saved)",
        ]
        if self.seconds_saved is not None:
            lines.append(f"time saved: about {self.seconds_saved:,.1f} s")
        lines.append(f"{'class':>8} {'samples':>10} {'kept':>10} {'left':>10}")
        rows = zip(self.class_sizes, self.class_kept, self.class_left, strict=True)
        lines += [f"{k:>8} {size:>10,} {kept:>10,} {left:>10,}" for k, (size, kept, left) in enumerate(rows)]
        lines += [f"epoch {note.epoch}: {note.text}" for note in self.notes]
        lines.append(f"{len(self.suspects)} suspects for wrong labels")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class PruningAudit(Displayed):
    """What `pruning.npz` holds; all arrays are in the order of the data set.

    Attributes:
        index: 0..n-1.
        target: Label.
        left: Epoch (counted from 1) after which the sample left; -1 where it never did or was re-admitted. The anneal
            does not erase it, and a rest for an epoch is not a leave.
        score: EMA of the top probability (bias-corrected where the pruner is).
        excess: EMA of the top probability minus the label's.
        predicted: Class predicted last; -1 where never observed.
        count: Number of batches that held the sample.
        kept: Whether the sample trains in the coming epoch.
        kept_counts: Shape (epochs, K): samples of each class trained on in each finished epoch.
        class_sizes: Shape (K,): samples of each class in the data set.
        settings: The pruner's settings.
    """

    index: NDArray[np.int64]
    target: NDArray[np.int64]
    left: NDArray[np.int64]
    score: NDArray[np.float32]
    excess: NDArray[np.float32]
    predicted: NDArray[np.int64]
    count: NDArray[np.int64]
    kept: NDArray[np.bool_]
    kept_counts: NDArray[np.int64]
    class_sizes: NDArray[np.int64]
    settings: dict[str, Any]

    def _overview(self) -> Overview:
        rows = [
            ("left for good", f"{int((self.left >= 0).sum()):,}"),
            ("train in the coming epoch", f"{int(self.kept.sum()):,}"),
            ("sample updates", f"{int(self.kept_counts.sum()):,} of {len(self.index) * len(self.kept_counts):,}"),
        ]
        return Overview(f"{len(self.index):,} samples, {len(self.kept_counts)} epochs", rows)

    @property
    def kept_share(self) -> NDArray[np.float64]:
        """Shape (epochs, K): share of each class trained on in each finished epoch; NaN for a class without samples."""
        with np.errstate(invalid="ignore"):
            share: NDArray[np.float64] = self.kept_counts / self.class_sizes
        return share


_NUMBERS = ("index", "target", "left", "predicted", "count", "kept_counts", "class_sizes")
_KINDS = {**dict.fromkeys(_NUMBERS, "i"), "score": "f", "excess": "f", "kept": "b"}
_ARRAYS = tuple(name for name in PruningAudit.__dataclass_fields__ if name != "settings")


def save_audit(path: str | Path, audit: PruningAudit) -> None:
    """Write `pruning.npz`, atomically and without pickle."""
    if Path(path).suffix != ".npz":
        raise invalid("path", "end in .npz, as the record is a NumPy archive", path)
    header = json.dumps({"format": _FORMAT, "settings": audit.settings}, allow_nan=False)
    with atomic_write(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, header=np.array(header), **{name: getattr(audit, name) for name in _ARRAYS})


def load_audit(path: str | Path) -> PruningAudit:
    """Read what `pruner.save` wrote."""
    arrays = read_npz(path, (*_ARRAYS, "header"))
    missing = [name for name in (*_ARRAYS, "header") if name not in arrays]
    if missing:
        raise invalid(str(path), "be written by pruner.save", f"a file without {', '.join(missing)}")
    header = parse_json(str(arrays.pop("header")), str(path))
    found = header.get("format") if isinstance(header, dict) else None
    if found != _FORMAT:
        raise invalid(str(path), f"have format {_FORMAT}", found, "Update this package to read it.")
    _check_arrays(arrays, str(path))
    if not isinstance(header.get("settings"), dict):
        raise invalid(f"settings in {path}", "be those of a pruner", type(header.get("settings")).__name__)
    return PruningAudit(**arrays, settings=header["settings"])


def _check_arrays(arrays: dict[str, NDArray[Any]], path: str) -> None:
    """Refuse arrays of other types and shapes than a pruner writes, and classes that do not exist."""
    samples, n_classes = arrays["target"].size, arrays["class_sizes"].size
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_ARRAYS, (samples,))
    shapes |= {"class_sizes": (n_classes,), "kept_counts": (len(np.atleast_1d(arrays["kept_counts"])), n_classes)}
    for name, array in arrays.items():
        if array.dtype.kind != _KINDS[name] or array.shape != shapes[name]:
            rule = f"be of kind {_KINDS[name]!r} and shape {shapes[name]}"
            raise invalid(f"{name} in {path}", rule, f"{array.dtype.kind!r} and {array.shape}")
    labels(f"target in {path}", arrays["target"], n_classes=n_classes)
    for name, least, most in (
        ("index", 0, samples - 1),
        ("left", -1, 2**31),
        ("predicted", -1, n_classes - 1),
        ("count", 0, 2**31),
        ("kept_counts", 0, samples),
        ("class_sizes", 0, samples),
        ("score", -1, 2),
        ("excess", -1, 2),
    ):
        # Written so that NaN is refused too.
        if not ((arrays[name] >= least) & (arrays[name] <= most)).all():
            raise invalid(f"{name} in {path}", f"lie in {least}..{most}", "something else", "The file is damaged.")
