"""The state of pruning: which samples train in the coming epoch, when the others left, and what was refused."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.errors import invalid
from calibrant.pruning.quotas import Mask, Quota
from calibrant.pruning.score_table import ScoreTable
from calibrant.tables import Displayed, ShownFields, Table

_log = logging.getLogger("calibrant.pruning")
_DATA = ("samples", "classes", "targets")
"""Settings that describe the data. A state with other values belongs to other data and cannot be loaded."""
_STATE = ("rows", "shared_count", "weights", "kept_mask", "left", "history", "epoch", "notes", "settings")


@dataclass(frozen=True)
class Note(ShownFields):
    """Something the pruner refused or could not do, and the epoch when it first happened."""

    epoch: int
    text: str


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
    """Return the samples with the largest excess whose last prediction is not their label; ties by index."""
    predicted = table.column("predicted").astype(np.int64)
    excess = table.corrected("excess")
    confidence = table.corrected("confidence")
    doubted = np.flatnonzero((predicted >= 0) & (predicted != labels))
    chosen = doubted[np.argsort(-excess[doubted], kind="stable")[:limit]]
    return [
        Suspect(int(i), int(labels[i]), int(predicted[i]), round(float(excess[i]), 6), round(float(confidence[i]), 6))
        for i in chosen
    ]


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
        full: Sample updates that training on all data would have taken.
        notes: Refusals and cuts without effect.
        suspects: Likely wrong labels, the likeliest first.
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

    def _overview(self) -> Table:
        rows: list[tuple[str, object]] = [
            ("trained on in each epoch", ", ".join(f"{kept:,}" for kept in self.kept_by_epoch) or "-"),
            ("in the coming epoch", f"{sum(self.class_kept):,}"),
            ("sample updates", f"{self.seen:,} of {self.full:,}, {self.saved_share:.1%} saved"),
            ("likely wrong labels", len(self.suspects)),
            *((f"epoch {note.epoch}", note.text) for note in self.notes),
        ]
        return Table(f"{self.samples:,} samples, {self.epoch} epochs done", rows)

    @property
    def saved_share(self) -> float:
        """Sample updates saved as a share of those on all data; 0 before the first epoch."""
        return (self.full - self.seen) / max(self.full, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `json.dump`."""
        return asdict(self) | {"saved_share": self.saved_share}


class PruningState:
    """What changes once per epoch.

    Args:
        labels: Shape (n,).
        sizes: Samples of each class.
    """

    def __init__(self, labels: NDArray[np.int64], sizes: list[int]) -> None:
        self.labels = labels
        self.n_classes = len(sizes)
        self.epoch = 0
        self.weights = torch.ones(len(labels))
        self.kept_mask = torch.ones(len(labels), dtype=torch.bool)
        self.kept_sizes = list(sizes)
        self.left = np.full(len(labels), -1, dtype=np.int32)
        self.history: list[list[int]] = []
        self.notes: list[Note] = []
        if empty := [k for k, size in enumerate(sizes) if size == 0]:
            self.note(f"{len(empty)} of {self.n_classes} classes have no samples (first: class {empty[0]})")

    def to(self, device: torch.device | str) -> None:
        """Move the tables; afterwards their storage never changes."""
        self.weights = self.weights.to(device)
        self.kept_mask = self.kept_mask.to(device)

    def mask(self) -> Mask:
        """Return which samples train, as an array in main memory."""
        mask: Mask = self.kept_mask.cpu().numpy()
        return mask

    def train_on(self, stay: Mask, weights: NDArray[np.float32] | None = None) -> None:
        """Set in place which samples train in the coming epoch; the weight of all others becomes 0."""
        self.kept_mask.copy_(torch.from_numpy(stay))
        self.weights.copy_(self.kept_mask if weights is None else torch.from_numpy(weights))
        self.kept_sizes = self._count(stay)

    def note_leaving(self, stay: Mask) -> None:
        """Record which samples leave now and which return. Call it before `train_on`."""
        before = self.mask()
        self.left[before & ~stay] = self.epoch + 1
        self.left[stay & ~before] = -1

    def rested(self) -> int:
        """Return how many samples rested in the finished epochs and the one that just ended, together."""
        return len(self.labels) * (self.epoch + 1) - sum(map(sum, self.history)) - sum(self.kept_sizes)

    def finish_epoch(self, trained: list[int]) -> None:
        """Count the epoch, with the class sizes that it trained on."""
        self.history.append(trained)
        self.epoch += 1

    def note(self, text: str, *, topic: str | None = None) -> None:
        """Log what was refused or could not be done, once; `topic` is the part of the text that makes it the same."""
        if not any((topic or text) in note.text for note in self.notes):
            self.notes.append(Note(self.epoch + 1, text))
            _log.warning("epoch %d: %s", self.epoch + 1, text)

    def note_refusals(self, quota: Quota, minimum: int) -> None:
        """Note if the class floor kept samples."""
        if refused := quota.refused:
            k = refused[0]
            self.note(
                f"refused to prune below minimum_per_class={minimum} in {len(refused)} of {self.n_classes} classes "
                f"(first: class {k}, {quota.wanted[k]} should leave, {quota.leave[k]} did)"
            )

    def _count(self, mask: Mask) -> list[int]:
        sizes: list[int] = np.bincount(self.labels[mask], minlength=self.n_classes).tolist()
        return sizes

    def state_dict(self) -> dict[str, Any]:
        """Return copies on the CPU, and plain values."""
        return {
            "weights": self.weights.cpu().clone(),
            "kept_mask": self.kept_mask.cpu().clone(),
            "left": torch.from_numpy(self.left.copy()),
            "history": torch.tensor(self.history, dtype=torch.int64).reshape(-1, self.n_classes),
            "epoch": self.epoch,
            "notes": [asdict(note) for note in self.notes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, in place."""
        self.weights.copy_(state["weights"])
        self.kept_mask.copy_(state["kept_mask"])
        self.left = state["left"].cpu().numpy().astype(np.int32, copy=True)
        self.history = state["history"].tolist()
        self.epoch = int(state["epoch"])
        self.notes = [Note(**note) for note in state["notes"]]
        self.kept_sizes = self._count(self.mask())


def check_state(state: object, mine: Mapping[str, Any], *, strict: bool) -> None:
    """Raise if a saved state belongs to other data or, if strict, to other settings."""
    if not isinstance(state, Mapping) or not all(name in state for name in _STATE):
        raise invalid("state", "be what state_dict gave", type(state).__name__)
    theirs = state["settings"]
    compared = {**mine, **theirs} if strict else _DATA
    differs = [name for name in compared if theirs.get(name) != mine.get(name)]
    if not differs:
        return
    # The settings hold a digest of the labels, which means nothing to a reader, so it is described in words.
    words = {"targets": "targets (other labels, or the same in another order)"}
    found = ", ".join(words.get(name, f"{name} ({theirs.get(name)} there, {mine.get(name)} here)") for name in differs)
    way_out = "Pass strict=False to go on with the settings here."
    if any(name in _DATA for name in differs):
        way_out = "It belongs to other data; start without it."
    raise invalid("state", "come from a pruner with the same settings", f"another {found}", way_out)
