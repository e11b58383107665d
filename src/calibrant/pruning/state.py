"""The state of pruning: which samples train in the coming epoch, when the others left, and what was refused."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.pruning.audit import Note
from calibrant.pruning.selection import Mask, Quota

_log = logging.getLogger("calibrant.pruning")


class PruningState:
    """What changes once per epoch.

    Args:
        labels: Shape (n,).
        sizes: Samples of each class.
        fixed: Batches are never rebuilt: what leaves the pruned set stays in its batch, and all samples train.
    """

    def __init__(self, labels: NDArray[np.int64], sizes: list[int], *, fixed: bool = False) -> None:
        self.labels, self.n_classes, self.fixed = labels, len(sizes), fixed
        self.epoch = 0
        self.weights = torch.ones(len(labels))
        self.kept_mask = torch.ones(len(labels), dtype=torch.bool)
        self.kept_sizes = list(sizes)
        self.left = np.full(len(labels), -1, dtype=np.int32)
        self.history: list[list[int]] = []
        self.notes: list[Note] = []
        self.memory: dict[str, Any] = {}
        if empty := [k for k, size in enumerate(sizes) if size == 0]:
            self.note(f"{len(empty)} of {self.n_classes} classes have no samples (first: class {empty[0]})")

    def to(self, device: torch.device | str) -> None:
        """Move the tables; afterwards their storage never changes."""
        self.weights, self.kept_mask = self.weights.to(device), self.kept_mask.to(device)

    def mask(self) -> Mask:
        """Which samples train, as an array in main memory."""
        mask: Mask = self.kept_mask.cpu().numpy()
        return mask

    def members(self) -> Mask:
        """Which samples the pruned set holds: those that train, unless batches are fixed."""
        found: Mask = self.left < 0 if self.fixed else self.mask()
        return found

    def member_sizes(self) -> list[int]:
        """Class sizes of the pruned set."""
        return self._count(self.members()) if self.fixed else self.kept_sizes

    def train_on(self, stay: Mask, weights: NDArray[np.float32] | None = None) -> None:
        """Set in place which samples train in the coming epoch; the weight of all others becomes 0."""
        if self.fixed:
            return
        self.kept_mask.copy_(torch.from_numpy(stay))
        self.weights.copy_(self.kept_mask if weights is None else torch.from_numpy(weights))
        self.kept_sizes = self._count(stay)

    def note_leaving(self, stay: Mask) -> None:
        """Record which samples leave now and which return; called before `train_on`."""
        before = self.members()
        self.left[before & ~stay] = self.epoch + 1
        self.left[stay & ~before] = -1

    def rested(self) -> int:
        """Samples that rested in the finished epochs and the one that just ended, together."""
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
        """Note where the class floor kept samples."""
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
        """Copies on the CPU, and plain values."""
        return {
            "weights": self.weights.cpu().clone(),
            "kept_mask": self.kept_mask.cpu().clone(),
            "left": torch.from_numpy(self.left.copy()),
            "history": torch.tensor(self.history, dtype=torch.int64).reshape(-1, self.n_classes),
            "epoch": self.epoch,
            "memory": dict(self.memory),
            "notes": [asdict(note) for note in self.notes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, in place."""
        self.weights.copy_(state["weights"])
        self.kept_mask.copy_(state["kept_mask"])
        self.left = state["left"].cpu().numpy().astype(np.int32, copy=True)
        self.history = state["history"].tolist()
        self.epoch = int(state["epoch"])
        self.memory = dict(state["memory"])
        self.notes = [Note(**note) for note in state["notes"]]
        self.kept_sizes = self._count(self.mask())
