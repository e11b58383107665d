"""The table of scores: one row per sample, updated on the device while training goes on."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from calibrant.errors import invalid

BASE_COLUMNS = ("confidence", "excess", "count", "predicted")
"""Columns that every table has.

`confidence`: EMA of the top probability, the paper's score. `excess`: EMA of the top probability minus the probability
of the given label; it is zero if the model agrees with the label. `count`: number of batches that held the sample.
`predicted`: the class predicted last, of the first copy in the batch.
"""
LOSS = "loss"
"""A further column: negative log-probability of the label when the sample was last trained on."""
_AVERAGED = 2
_UNSEEN_LOSS = 3.0
"""Loss of a sample that was never observed: if all have it, none lies below the mean (Qin et al.'s public code)."""
_LARGEST_LOSS = 1e6
"""A label whose logit is minus infinity would have an infinite loss, and so would the mean over all samples."""
_FIXED_POINT = 2.0**40
"""Values are summed over the copies of a sample as 64-bit integers in this unit: integer sums do not depend on order.

A float32 of at least 2**-16 is a whole number of these units, so a sample without copies keeps its value exactly.
"""


class ScoreTable:
    """The scores of all samples. The EMA starts at zero, as the paper prints it.

    Args:
        labels: Shape (n,), int64.
        ema: Weight of the newest value, in (0, 1].
        extra: Columns beyond `BASE_COLUMNS`.
    """

    def __init__(self, labels: Tensor, *, ema: float, extra: tuple[str, ...] = ()) -> None:
        self.columns: tuple[str, ...] = BASE_COLUMNS
        if unknown := set(extra) - {*BASE_COLUMNS, LOSS, "label"}:
            raise invalid("columns", f"be among {', '.join(BASE_COLUMNS)}, {LOSS} and label", repr(unknown.pop()))
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
        self.rows = self.rows.to(device)
        self.labels = self.labels.to(device)
        self._slots = self._slots.to(device)
        self.shared_count = self.shared_count.to(device)

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
        sample that appears several times in the batch counts once, with the mean over its copies. A row whose
        probabilities are not finite (an overflow under mixed precision) is left as it was.

        Args:
            indices: Shape (b,), int64, on the table's device.
            logits: Shape (b, K), any floating type; the softmax is float32 whatever the autocast.
            ema: Weight of the new value, shape (b, 1) or one number. None: that of the table.
            epochs: What the count rises by, shape (b,) or one number.
        """
        if ema is None:
            ema = self.ema
        probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
        confidence, predicted = probabilities.max(dim=1)
        label = self.labels.index_select(0, indices).unsqueeze(1)
        measured = [confidence, confidence - probabilities.gather(1, label).squeeze(1)]
        if LOSS in self.columns:
            losses = -torch.log_softmax(logits, dim=1, dtype=torch.float32).gather(1, label).squeeze(1)
            measured.append(losses.clamp(0.0, _LARGEST_LOSS))
        first = _first_occurrence(self._slots, indices)
        sums = _sum_over_copies(measured, first)
        copies = sums[:, -1:]
        mean = sums[:, :-1] / copies
        old = self.rows.index_select(0, indices)
        averaged = ema * mean[:, :_AVERAGED] + (1 - ema) * old[:, :_AVERAGED]
        # A copy that overflowed predicts nothing.
        said = torch.where(torch.isnan(confidence), old[:, 3], predicted).index_select(0, first)
        fresh = [averaged, torch.stack([old[:, 2] + epochs, said], dim=1), mean[:, _AVERAGED:]]
        # Copies of a sample write the same row, so it does not matter which of them writes last.
        self.rows.index_put_((indices,), torch.where(copies > 0, torch.cat(fresh, dim=1), old))

    def catch_up(self, indices: Tensor, logits: Tensor, *, finished: int, anew: bool) -> None:
        """Catch up on samples that were not trained on, from a pass that was made for their scores alone.

        What the model says now counts for each of the epochs that a sample missed, so it has the weight
        `1 - (1 - ema)**missed` in the average.

        Args:
            indices: Shape (b,), each once.
            logits: Shape (b, K).
            finished: Number of epochs so far.
            anew: Forget the average: the score is what the model says now.
        """
        count = self.counts.index_select(0, indices)
        if anew:
            missed = (finished - count).clamp(min=0)
            weight = torch.ones_like(missed)
        else:
            missed = (finished - count).clamp(min=1)
            weight = (1 - (1 - self.ema) ** missed.double()).float()
        self.observe(indices, logits, ema=weight.unsqueeze(1), epochs=missed)
        # The count alone does not say that these rows are new, and other ranks must learn of them.
        self.shared_count.index_fill_(0, indices, -1)

    def share(self, rank: int) -> None:
        """Give all ranks what any of them observed since the last time."""
        _merge_rows(self.rows, self.counts != self.shared_count, rank)
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


def _sum_over_copies(values: list[Tensor], first: Tensor) -> Tensor:
    """Return sums over the finite copies of each sample, and their number in the last column, in fixed-point units."""
    finite = (values[0] == values[0]).to(values[0].dtype)
    units = (torch.stack([*values, finite], dim=1) * _FIXED_POINT).nan_to_num(0.0).long()
    return torch.zeros_like(units).index_add_(0, first, units).index_select(0, first).float()


@torch.no_grad()
def _merge_rows(rows: Tensor, updated: Tensor, rank: int) -> None:
    """Give all ranks the rows that any rank updated, in place; exact.

    A row is taken whole from the lowest rank that updated it (with the pruner's own order only one rank did, padding
    apart: a repeated sample was first met on a lower rank). All others add zeros to a sum, and `x + 0` is `x`.
    """
    away = collective_device(rows.device)
    no_rank = torch.iinfo(torch.int32).max
    owner = torch.where(updated, rank, no_rank).to(away, torch.int32)
    dist.all_reduce(owner, op=dist.ReduceOp.MIN)
    owner = owner.to(rows.device).unsqueeze(1)
    theirs = torch.where(owner == rank, rows, 0).to(away)
    dist.all_reduce(theirs)
    rows.copy_(torch.where(owner == no_rank, rows, theirs.to(rows.device)))


def collective_device(device: torch.device) -> torch.device:
    """Return where a collective may run: NCCL cannot reduce tensors in main memory."""
    if dist.get_backend() == "nccl" and device.type == "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return device
