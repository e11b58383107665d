"""Small batches on the CPU, set aside until they are worth a pass: for 1024 rows the calls cost more than the sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.predictions.checks import Kind, Precision

# Entries that wait at most, whatever the number of batches, and entries of a batch that is worth a pass of its own.
_MOST_WAITING = 2**19
_SMALL = 2**16
# Half precision goes the direct way: NumPy is slow in it.
_PRECISIONS: dict[torch.dtype, Precision] = {torch.float32: "float32", torch.float64: "float64"}
# Unsigned integers of the same size, and what they show of 1.0001: the largest probability that the tolerance allows.
_BITS: dict[torch.dtype, tuple[Any, Any]] = {
    torch.float32: (np.uint32, np.float32(1.0001).view(np.uint32)),
    torch.float64: (np.uint64, np.float64(1.0001).view(np.uint64)),
}


@dataclass(frozen=True)
class Waiting:
    """Batches that waited, one after the other.

    Attributes:
        scores: Shape (n, K).
        targets: Shape (n,), in 0..K-1.
        precision: Type of the scores.
        cuts: Where the second and later batches begin.
    """

    scores: NDArray[Any]
    targets: NDArray[np.int64]
    precision: Precision
    cuts: list[int]


class Pending:
    """A buffer of constant size for batches of one type and number of classes."""

    def __init__(self, kind: Kind, classes: int | None = None) -> None:
        self.kind, self.classes = kind, classes
        self.rows = 0
        self._ends: list[int] = []
        self._dtype = torch.float32
        self._scores = np.empty((0, 0), dtype=np.float32)
        self._targets = np.empty(0, dtype=np.int64)

    def take(self, scores: Tensor, targets: Tensor) -> bool:
        """Copy a batch; False, and nothing is kept, where it is large, does not fit or may break a rule."""
        if type(scores) is not Tensor or type(targets) is not Tensor or not (scores.is_cpu and targets.is_cpu):
            return False
        if scores.dtype not in _PRECISIONS or targets.dtype != torch.int64:
            return False
        values, labels = (scores.detach() if scores.requires_grad else scores).numpy(), targets.numpy()
        if values.ndim != 2 or not 0 < values.size <= _SMALL or labels.shape != values.shape[:1]:
            return False
        start, end = self.rows, self.rows + len(values)
        if end > len(self._scores) or values.shape[1] != self._scores.shape[1] or scores.dtype != self._dtype:
            if start or self.classes not in (None, values.shape[1]):
                return False
            self._make_room(scores.dtype, values)
        if not self._seem_fine(values, labels):
            return False
        self._scores[start:end] = values
        self._targets[start:end] = labels
        self.rows = end
        self._ends.append(end)
        return True

    def _make_room(self, dtype: torch.dtype, values: NDArray[Any]) -> None:
        classes = values.shape[1]
        self._dtype, self._scores = dtype, np.empty((_MOST_WAITING // classes, classes), dtype=values.dtype)
        self._targets = np.empty(len(self._scores), dtype=np.int64)

    def _seem_fine(self, values: NDArray[Any], labels: NDArray[np.int64]) -> bool:
        """Check all but the sums of rows of probabilities; False may also mean "look closer"."""
        # Seen as unsigned, a negative label is a very large one: one maximum finds both.
        if not np.maximum.reduce(labels.view(np.uint64)) < values.shape[1]:
            return False
        if self.kind == "logits":
            # NaN where there is one, and then no comparison holds.
            smallest, largest = np.minimum.reduce(values, axis=None), np.maximum.reduce(values, axis=None)
            return bool(smallest > -np.inf and largest < np.inf)
        # The bits of numbers in [0, 1], seen as integers, are in order; those of negative ones and NaN are larger.
        whole, top = _BITS[self._dtype]
        return bool(np.maximum.reduce(values.view(whole), axis=None) <= top)

    def drain(self) -> Waiting:
        """All that waits, to be used before the next `take`; nothing waits any more."""
        rows, cuts = self.rows, self._ends[:-1]
        self.drop()
        return Waiting(self._scores[:rows], self._targets[:rows], _PRECISIONS[self._dtype], cuts)

    def drop(self) -> None:
        """Forget all that waits."""
        self.rows = 0
        self._ends.clear()
