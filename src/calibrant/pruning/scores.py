"""The scores of all samples, which every batch updates."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from calibrant.errors import invalid
from calibrant.losses import distributed

BASE_COLUMNS = ("confidence", "excess", "count", "predicted")
"""Columns that every table has.

`confidence`: EMA of the top probability, the paper's score. `excess`: EMA of the top probability minus the probability
of the given label; it is zero if the model agrees with the label. `count`: number of batches that held the sample.
`predicted`: the class predicted last.
"""
LOSS = "loss"
"""A further column: negative log-probability of the label when the sample was last trained on."""
LABEL = "label"
"""Follows from the columns: EMA of the probability of the label, corrected for its zero start."""
_AVERAGED = 2
_UNSEEN_LOSS = 3.0
"""Loss of a sample that was never observed: if all have it, none lies below the mean (Qin et al.'s public code)."""
_LARGEST_LOSS = 1e6
"""A label whose logit is minus infinity would have an infinite loss, and so would the mean over all samples."""


class ScoreTable:
    """The scores of all samples, in `BASE_COLUMNS` and `extra` ones. The EMA starts at zero, as the paper has it."""

    def __init__(self, labels: Tensor, *, ema: float, extra: tuple[str, ...] = ()) -> None:
        if unknown := set(extra) - {*BASE_COLUMNS, LOSS, LABEL}:
            raise invalid("columns", f"be among {', '.join(BASE_COLUMNS)}, {LOSS} and {LABEL}", repr(unknown.pop()))
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
        self.shared_count.copy_(self.counts)

    def load(self, rows: Tensor) -> None:
        """Take over rows that all ranks hold, in place."""
        self.rows.copy_(rows)
        self.shared_count.copy_(self.counts)

    def column(self, name: str) -> NDArray[np.float32]:
        """Return a column in main memory, or `LABEL`."""
        values: NDArray[np.float32]
        if name == LABEL:
            weight = 1 - (1 - self.ema) ** self.column("count").astype(np.float64)
            average = self.column("confidence") - self.column("excess")
            values = np.divide(average, weight, out=np.zeros_like(weight), where=weight > 0).astype(np.float32)
        else:
            values = self.rows[:, self.columns.index(name)].cpu().contiguous().numpy()
        return values


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
