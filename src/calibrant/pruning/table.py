"""The table of scores: one row per sample, updated on the device while training goes on."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.pruning.ranks import merge_rows_

BASE_COLUMNS = ("confidence", "excess", "count", "predicted")
"""Columns that every table has.

`confidence`: EMA of the top probability, the paper's score. `excess`: EMA of the top probability minus the probability
of the given label; it is zero wherever the model agrees with the label. `count`: number of batches that held the
sample. `predicted`: the class predicted last, of the first copy in the batch.
"""
ERROR_COLUMNS = ("error",)
"""EMA of the L2 norm of (probabilities - one-hot label): EL2N, Paul et al. 2021."""
FORGETTING_COLUMNS = ("forgotten", "right")
"""Times the sample went from right to wrong (Toneva et al. 2019; -1 while never right); whether it was right last."""
LOSS_COLUMNS = ("loss",)
"""Negative log-probability of the label when the sample was last trained on, whatever loss is minimised."""

_LAYOUT = ("confidence", "excess", "error", "count", "predicted", "forgotten", "right", "loss")
"""Order of the columns; the averaged ones come first and are updated as one block."""
_UNSEEN_LOSS = 3.0
"""Loss of a sample that was never observed: where all have it, none lies below the mean (Qin et al.'s public code)."""
_LARGEST_LOSS = 1e6
"""A label whose logit is minus infinity would have an infinite loss, and so would the mean over all samples."""
_FIXED_POINT = 2.0**40
"""Values are summed over the copies of a sample as 64-bit integers in this unit: integer sums do not depend on order.

A float32 of at least 2**-16 is a whole number of these units, so a sample without copies keeps its value exactly.
"""


def new_table(rows: int, columns: tuple[str, ...]) -> Tensor:
    """A table as it stands before training: the EMA starts at zero, as the paper prints it."""
    table = torch.zeros(rows, len(columns))
    for name in {"predicted", "forgotten"} & set(columns):
        table[:, columns.index(name)] = -1
    if "loss" in columns:
        table[:, columns.index("loss")] = _UNSEEN_LOSS
    return table


@torch.no_grad()
def observe_(
    table: Tensor,
    slots: Tensor,
    labels: Tensor,
    indices: Tensor,
    logits: Tensor,
    *,
    ema: float | Tensor,
    columns: tuple[str, ...],
    epochs: int | Tensor = 1,
) -> None:
    """Update the rows of a batch in place: `e <- ema * c + (1 - ema) * e`.

    Only in-place tensor operations of fixed shape and no host synchronisation, so that a CUDA graph can hold it. A
    sample that appears several times in the batch counts once, with the mean over its copies. A row whose probabilities
    are not finite (an overflow under mixed precision) is left as it was.

    Args:
        table: Shape (n, columns), float32.
        slots: Scratch, shape (n,), int32.
        labels: Of the whole set, shape (n,), int64.
        indices: Shape (b,), int64, on the table's device.
        logits: Shape (b, K), any floating type; the softmax is float32 whatever the autocast.
        ema: Weight of the new value, in (0, 1]; of all rows, or shape (b, 1).
        columns: Names of the table's columns, in the order of the layout.
        epochs: What the count rises by; of all rows, or shape (b,).
    """
    probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
    confidence, predicted = probabilities.max(dim=1)
    label = labels.index_select(0, indices).unsqueeze(1)
    measured = _averaged(probabilities, confidence, label, columns)
    averaged_columns = len(measured)
    if "loss" in columns:
        losses = -torch.log_softmax(logits, dim=1, dtype=torch.float32).gather(1, label).squeeze(1)
        measured.append(losses.clamp(0.0, _LARGEST_LOSS))
    first = _first_occurrence(slots, indices)
    sums = _sum_over_copies(measured, first)
    copies = sums[:, -1:]
    mean = sums[:, :-1] / copies

    old = table.index_select(0, indices)
    at = {name: old[:, column] for column, name in enumerate(columns)}
    # A copy that overflowed predicts nothing.
    said = torch.where(torch.isnan(confidence), at["predicted"], predicted).index_select(0, first)
    averaged = ema * mean[:, :averaged_columns] + (1 - ema) * old[:, :averaged_columns]
    fresh = [averaged, torch.stack([at["count"] + epochs, said], dim=1)]
    if "forgotten" in columns:
        fresh.append(_forgetting(at["forgotten"], at["right"], right=mean[:, 1] == 0))
    if "loss" in columns:
        fresh.append(mean[:, averaged_columns:])
    # Copies of a sample write the same row, so it does not matter which of them writes last.
    table.index_put_((indices,), torch.where(copies > 0, torch.cat(fresh, dim=1), old))


def _averaged(probabilities: Tensor, confidence: Tensor, label: Tensor, columns: tuple[str, ...]) -> list[Tensor]:
    """What is averaged over the epochs: confidence, by how much it exceeds the label's, and the error if asked for."""
    measured = [confidence, confidence - probabilities.gather(1, label).squeeze(1)]
    if "error" in columns:
        # 1 - p_y as the sum of the others: a difference would lose the digits that rank the well-learned.
        others = probabilities.scatter(1, label, 0.0)
        measured.append((others.square().sum(1) + others.sum(1).square()).sqrt())
    return measured


def _first_occurrence(slots: Tensor, indices: Tensor) -> Tensor:
    """For each position of the batch, the first position that holds the same sample."""
    positions = torch.arange(len(indices), dtype=slots.dtype, device=slots.device)
    slots.scatter_reduce_(0, indices, positions, "amin", include_self=False)
    return slots.index_select(0, indices)


def _sum_over_copies(values: list[Tensor], first: Tensor) -> Tensor:
    """Sums over the finite copies of each sample, and their number in the last column; all in fixed-point units."""
    finite = (values[0] == values[0]).to(values[0].dtype)
    units = (torch.stack([*values, finite], dim=1) * _FIXED_POINT).nan_to_num(0.0).long()
    return torch.zeros_like(units).index_add_(0, first, units).index_select(0, first).float()


def _forgetting(forgotten: Tensor, was_right: Tensor, *, right: Tensor) -> Tensor:
    """The columns `forgotten` and `right` after this batch."""
    learned_now = right & (forgotten < 0)
    forgotten_now = ~right & (was_right > 0)
    count = torch.where(learned_now, 0.0, forgotten) + forgotten_now.to(forgotten.dtype)
    return torch.stack([count, right.to(count.dtype)], dim=1)


class ScoreTable:
    """The scores of all samples, and what they are computed from.

    Args:
        labels: Shape (n,), int64.
        ema: Weight of the newest value.
        bias_correction: Whether `confidence` makes up for the zero start.
        extra: Columns beyond `BASE_COLUMNS`.
    """

    def __init__(self, labels: Tensor, *, ema: float, bias_correction: bool, extra: tuple[str, ...] = ()) -> None:
        self.columns = tuple(name for name in _LAYOUT if name in (*BASE_COLUMNS, *extra))
        self.ema, self.bias_correction = ema, bias_correction
        self.rows = new_table(len(labels), self.columns)
        self.labels = labels
        self._slots = torch.zeros(len(labels), dtype=torch.int32)
        # Where a row's count differs from this, the row was updated since the ranks last shared their rows.
        self.shared_count = torch.zeros(len(labels))

    def to(self, device: torch.device | str) -> None:
        """Move everything; afterwards the storage never changes."""
        self.rows, self.labels = self.rows.to(device), self.labels.to(device)
        self._slots, self.shared_count = self._slots.to(device), self.shared_count.to(device)

    def observe(self, indices: Tensor, logits: Tensor) -> None:
        """See `observe_`."""
        observe_(self.rows, self._slots, self.labels, indices, logits, ema=self.ema, columns=self.columns)

    def catch_up(self, indices: Tensor, logits: Tensor, *, finished: int, anew: bool) -> None:
        """Catch up on samples that were not trained on, from a pass that was made for their scores alone.

        What the model says now counts for each of the epochs that a sample missed, so its average has the weight
        `1 - (1 - ema)**missed` on it, and stands for as many epochs as that of a sample that was always trained on.

        Args:
            indices: Shape (b,), each once.
            logits: Shape (b, K).
            finished: Number of epochs so far.
            anew: Forget the average: the score is what the model says now.
        """
        count = self.rows[:, self.columns.index("count")].index_select(0, indices)
        missed = (finished - count).clamp(min=0 if anew else 1)
        weight = torch.ones_like(missed) if anew else (1 - (1 - self.ema) ** missed.double()).float()
        observe_(
            *(self.rows, self._slots, self.labels, indices, logits),
            ema=weight.unsqueeze(1),
            columns=self.columns,
            epochs=missed,
        )
        # The count alone does not say that these rows are new, and other ranks must learn of them.
        self.shared_count.index_fill_(0, indices, -1)

    def share(self, rank: int) -> None:
        """Give all ranks what any of them observed since the last time."""
        count = self.columns.index("count")
        merge_rows_(self.rows, self.rows[:, count] != self.shared_count, rank)
        self.shared_count.copy_(self.rows[:, count])

    def column(self, name: str) -> NDArray[np.float32]:
        """A column in main memory."""
        values: NDArray[np.float32] = self.rows[:, self.columns.index(name)].cpu().contiguous().numpy()
        return values

    def score(self, name: str) -> NDArray[np.float32]:
        """What a policy sees under that name: a column, the paper's score, or "label".

        "label" is the EMA of the label's probability, bias-corrected, so that it means the same in every epoch.
        """
        if name == "label":
            return self.corrected("confidence") - self.corrected("excess")
        return self.confidence() if name == "confidence" else self.column(name)

    def confidence(self) -> NDArray[np.float32]:
        """The paper's score, bias-corrected where asked."""
        return self.corrected("confidence") if self.bias_correction else self.column("confidence")

    def corrected(self, name: str) -> NDArray[np.float32]:
        """An EMA column divided by `1 - (1 - ema)**count`, the weight of all observations in it; 0 without any."""
        weight = 1 - (1 - self.ema) ** self.column("count").astype(np.float64)
        return np.divide(self.column(name), weight, out=np.zeros_like(weight), where=weight > 0).astype(np.float32)
