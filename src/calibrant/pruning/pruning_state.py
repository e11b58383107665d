"""The state of pruning: the table of scores, which samples train in the coming epoch, and what was refused."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from calibrant.errors import invalid
from calibrant.losses import distributed
from calibrant.pruning.quotas import Mask
from calibrant.tables import Displayed, ShownFields, Table

_log = logging.getLogger("calibrant.pruning")
_STATE = ("rows", "weights", "kept_mask", "left", "history", "epoch", "notes", "settings")
BASE_COLUMNS = ("confidence", "excess", "count", "predicted")
"""Columns that every table has.

`confidence`: EMA of the top probability, the paper's score. `excess`: EMA of the top probability minus the probability
of the given label; it is zero if the model agrees with the label. `count`: number of batches that held the sample.
`predicted`: the class predicted last.
"""
LOSS = "loss"
"""A further column: negative log-probability of the label when the sample was last trained on."""
_AVERAGED = 2
_UNSEEN_LOSS = 3.0
"""Loss of a sample that was never observed: if all have it, none lies below the mean (Qin et al.'s public code)."""
_LARGEST_LOSS = 1e6
"""A label whose logit is minus infinity would have an infinite loss, and so would the mean over all samples."""


class ScoreTable:
    """The scores of all samples, in `BASE_COLUMNS` and `extra` ones. The EMA starts at zero, as the paper has it."""

    def __init__(self, labels: Tensor, *, ema: float, extra: tuple[str, ...] = ()) -> None:
        if unknown := set(extra) - {*BASE_COLUMNS, LOSS, "label"}:
            raise invalid("columns", f"be among {', '.join(BASE_COLUMNS)}, {LOSS} and label", repr(unknown.pop()))
        self.columns: tuple[str, ...] = BASE_COLUMNS
        if LOSS in extra:
            self.columns = (*BASE_COLUMNS, LOSS)
        self.ema = ema
        self.rows = torch.zeros(len(labels), len(self.columns))
        self.rows[:, BASE_COLUMNS.index("predicted")] = -1
        self.rows[:, len(BASE_COLUMNS) :] = _UNSEEN_LOSS
        self.labels = labels
        self._slots = torch.zeros(len(labels), dtype=torch.int32)
        # If a row's count differs from this, the row was updated since the ranks last shared their rows.
        self.shared_count = torch.zeros(len(labels))

    def to(self, device: torch.device | str) -> None:
        """Move everything; afterwards the storage never changes."""
        for name in ("rows", "labels", "_slots", "shared_count"):
            setattr(self, name, getattr(self, name).to(device))

    @property
    def counts(self) -> Tensor:
        """The column `count`, on the device."""
        return self.rows[:, BASE_COLUMNS.index("count")]

    @torch.no_grad()
    def observe(
        self, indices: Tensor, logits: Tensor, *, ema: float | Tensor | None = None, epochs: int | Tensor = 1
    ) -> None:
        """Update the rows of a batch in place: `e <- ema * c + (1 - ema) * e`.

        Only in-place tensor operations of fixed shape and no host synchronisation, so that a CUDA graph can hold it. A
        sample that appears several times in the batch counts once, by its first copy. A row whose probabilities are not
        finite (an overflow under mixed precision) is left as it was. `ema` is the weight of the new value, by default
        that of the table; the count rises by `epochs`. Both may differ from row to row.
        """
        if ema is None:
            ema = self.ema
        logits = logits.index_select(0, _first_occurrence(self._slots, indices))
        probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
        confidence, predicted = probabilities.max(dim=1)
        label = self.labels.index_select(0, indices).unsqueeze(1)
        excess = confidence - probabilities.gather(1, label).squeeze(1)
        old = self.rows.index_select(0, indices)
        averaged = ema * torch.stack([confidence, excess], dim=1) + (1 - ema) * old[:, :_AVERAGED]
        fresh = [averaged, torch.stack([old[:, 2] + epochs, predicted], dim=1)]
        if LOSS in self.columns:
            losses = -torch.log_softmax(logits, dim=1, dtype=torch.float32).gather(1, label)
            fresh.append(losses.clamp(0.0, _LARGEST_LOSS))
        finite = confidence.isfinite().unsqueeze(1)
        # Copies of a sample write the same row, so it does not matter which of them writes last.
        self.rows.index_put_((indices,), torch.where(finite, torch.cat(fresh, dim=1), old))

    def catch_up(self, indices: Tensor, logits: Tensor, *, finished: int) -> None:
        """Catch up on samples that were not trained on, from a pass that was made for their scores alone.

        What the model says now counts for each of the `finished` epochs that a sample missed, so it has the weight
        `1 - (1 - ema)**missed` in the average.
        """
        missed = (finished - self.counts.index_select(0, indices)).clamp(min=1)
        weight = (1 - (1 - self.ema) ** missed.double()).float()
        self.observe(indices, logits, ema=weight.unsqueeze(1), epochs=missed)
        # The count alone does not say that these rows are new, and other ranks must learn of them.
        self.shared_count.index_fill_(0, indices, -1)

    @torch.no_grad()
    def share(self) -> None:
        """Give all ranks, in place, the rows that any of them updated since the last time; exact. Collective.

        A row is taken whole from the lowest rank that updated it (with the pruner's own order only one rank did, apart
        from padding: a repeated sample was first met on a lower rank). All others add zeros to a sum.
        """
        if not distributed.is_distributed():
            return
        rows = self.rows
        rank = distributed.rank()
        away = collective_device(rows.device)
        no_rank = torch.iinfo(torch.int32).max
        owner = torch.where(self.counts != self.shared_count, rank, no_rank).to(away, torch.int32)
        dist.all_reduce(owner, op=dist.ReduceOp.MIN)
        owner = owner.to(rows.device).unsqueeze(1)
        theirs = torch.where(owner == rank, rows, 0).to(away)
        dist.all_reduce(theirs)
        rows.copy_(torch.where(owner == no_rank, rows, theirs.to(rows.device)))
        self.mark_shared()

    def mark_shared(self) -> None:
        """Note that all ranks hold these rows."""
        self.shared_count.copy_(self.counts)

    def column(self, name: str) -> NDArray[np.float32]:
        """Return a column in main memory."""
        values: NDArray[np.float32] = self.rows[:, self.columns.index(name)].cpu().contiguous().numpy()
        return values

    def score(self, name: str) -> NDArray[np.float32]:
        """Return what a policy sees under that name: a column, or "label".

        "label" is the EMA of the label's probability, bias-corrected, so that it means the same in every epoch.
        """
        if name == "label":
            return self.corrected("confidence") - self.corrected("excess")
        return self.column(name)

    def corrected(self, name: str) -> NDArray[np.float32]:
        """Return an EMA column divided by `1 - (1 - ema)**count`, the weight of its observations; 0 without any."""
        weight = 1 - (1 - self.ema) ** self.column("count").astype(np.float64)
        return np.divide(self.column(name), weight, out=np.zeros_like(weight), where=weight > 0).astype(np.float32)


def _first_occurrence(slots: Tensor, indices: Tensor) -> Tensor:
    """Return, for each position of the batch, the first position that holds the same sample."""
    positions = torch.arange(len(indices), dtype=slots.dtype, device=slots.device)
    slots.scatter_reduce_(0, indices, positions, "amin", include_self=False)
    return slots.index_select(0, indices)


def collective_device(device: torch.device) -> torch.device:
    """Return where a collective may run: NCCL cannot reduce tensors in main memory."""
    if dist.get_backend() == "nccl" and device.type == "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return device


@dataclass(frozen=True)
class Note(ShownFields):
    """Something the pruner refused or could not do, and the epoch when it first happened."""

    epoch: int
    text: str


@dataclass(frozen=True)
class Suspect(ShownFields):
    """A sample whose label may be wrong: the model keeps predicting another class."""

    index: int
    target: int
    predicted: int  # last
    excess: float  # EMA (bias-corrected) of the top probability minus the label's, in [0, 1]
    confidence: float  # EMA of the top probability


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
    """What pruning did so far."""

    samples: int
    epoch: int  # finished epochs
    class_sizes: list[int]
    class_kept: list[int]  # samples of each class that train in the coming epoch
    kept_by_epoch: list[int]
    seen: int  # sample updates so far, the sum of `kept_by_epoch`
    full: int  # sample updates that training on all data would have taken
    notes: list[Note]  # refusals and cuts without effect
    suspects: list[Suspect]  # likely wrong labels, the likeliest first

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


class PruningState:
    """What changes once per epoch."""

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

    def note(self, text: str, *, topic: str | None = None) -> None:
        """Log what was refused or could not be done, once; `topic` is the part of the text that makes it the same."""
        if not any((topic or text) in note.text for note in self.notes):
            self.notes.append(Note(self.epoch + 1, text))
            _log.warning("epoch %d: %s", self.epoch + 1, text)

    def note_refusals(self, left: Sequence[int], wanted: Sequence[int], minimum: int) -> None:
        """Note if the class floor kept samples."""
        refused = [k for k in range(self.n_classes) if left[k] < wanted[k]]
        if refused:
            k = refused[0]
            self.note(
                f"refused to prune below minimum_per_class={minimum} in {len(refused)} of {self.n_classes} classes "
                f"(first: class {k}, {wanted[k]} should leave, {left[k]} did)"
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


def check_state(state: object, mine: Mapping[str, Any]) -> None:
    """Raise if a saved state belongs to other data or other settings."""
    if not isinstance(state, Mapping) or not all(name in state for name in _STATE):
        raise invalid("state", "be what state_dict gave", type(state).__name__)
    theirs = state["settings"]
    differs = [name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)]
    if differs:
        found = ", ".join(f"{name} ({theirs.get(name)} there, {mine.get(name)} here)" for name in differs)
        raise invalid("state", "come from a pruner with the same targets and settings", f"another {found}")
