"""Small batches on the CPU, set aside until they are worth a pass: for 1024 rows the calls cost more than the sums."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.predictions import FEW_CLASSES, Kind, Precision

# Entries that wait at most, whatever the number of batches, and entries of a batch that is worth a pass of its own.
_MOST_WAITING = 2**19
_SMALL = 2**16
_UNSIGNED = np.dtype(np.uint64)
# Of each type its precision, the unsigned integers of its size, and what these show of 1.0001, the largest probability
# that the tolerance allows. Half precision goes the direct way: NumPy is slow in it.
_TYPES: dict[np.dtype[Any], tuple[Precision, np.dtype[Any], int]] = {
    np.dtype(np.float32): ("float32", np.dtype(np.uint32), int(np.float32(1.0001).view(np.uint32))),
    np.dtype(np.float64): ("float64", _UNSIGNED, int(np.float64(1.0001).view(np.uint64))),
}


def _largest(numbers: NDArray[Any]) -> int:
    # Half the time of `max`: a method in C, while `max` is a ufunc that first sorts out its arguments.
    largest: int = numbers.item(numbers.argmax())
    return largest


@dataclass(frozen=True)
class Waiting:
    """Batches that waited, one after the other.

    Attributes:
        scores: Shape (n, K).
        targets: Shape (n,), integers in 0..K-1.
        precision: Type of the scores.
        cuts: Where the second and later batches begin.
    """

    scores: NDArray[Any]
    targets: NDArray[Any]
    precision: Precision
    cuts: list[int]


class Pending:
    """A buffer of constant size for batches of one type and number of classes.

    Args:
        kind: What the scores are.
        tops_only: Only the largest score of each row will be asked for.
        classes: Their number, where only one is allowed.
    """

    def __init__(self, kind: Kind, *, tops_only: bool, classes: int | None = None) -> None:
        self.kind, self.tops_only, self.classes = kind, tops_only, classes
        self.rows = 0
        self._ends: list[int] = []
        self._precision, self._bits, self._limit = _TYPES[np.dtype(np.float32)]
        self._scores = np.empty((0, 0), dtype=np.float32)
        self._targets = np.empty(0, dtype=np.uint8)

    def take(self, scores: Tensor, targets: Tensor) -> bool:
        """Copy a batch; False, and nothing is kept, where it is large, does not fit or may break a rule."""
        if type(scores) is not Tensor or type(targets) is not Tensor or targets.dtype is not torch.int64:
            return False
        try:
            values, labels = (scores.detach() if scores.requires_grad else scores).numpy(), targets.numpy()
        except (TypeError, RuntimeError):  # on a device, or in a type that NumPy does not know
            return False
        fits = self._fits(values, labels) or (self._make_room(values) and self._fits(values, labels))
        if not (fits and self._seem_fine(values, labels)):
            return False
        start, end = self.rows, self.rows + len(labels)
        self._scores[start:end] = values
        self._targets[start:end] = labels
        self.rows = end
        self._ends.append(end)
        return True

    def _fits(self, values: NDArray[Any], labels: NDArray[np.int64]) -> bool:
        return (
            values.shape == (*labels.shape, self._scores.shape[1])
            and values.dtype == self._scores.dtype
            and 0 < values.size <= _SMALL
            and self.rows + len(labels) <= len(self._targets)
        )

    def _make_room(self, values: NDArray[Any]) -> bool:
        """A buffer for batches like this one; False while another kind waits, or where they go the direct way."""
        if self.rows or values.dtype not in _TYPES or values.ndim != 2 or not 0 < values.size <= _SMALL:
            return False
        classes = values.shape[1]
        if self.classes not in (None, classes):
            return False
        rows, few = _MOST_WAITING // classes, classes <= FEW_CLASSES
        # For their tops few classes are read class by class: turning them while they are copied is one copy less.
        order: Literal["F", "C"] = "F" if few and self.tops_only and self.kind == "probabilities" else "C"
        self._scores = np.empty((rows, classes), dtype=values.dtype, order=order)
        self._targets = np.empty(rows, dtype=np.uint8 if few else np.int64)  # bytes, as the predictions are
        self._precision, self._bits, self._limit = _TYPES[values.dtype]
        return True

    def _seem_fine(self, values: NDArray[Any], labels: NDArray[np.int64]) -> bool:
        """Check all but the sums of rows of probabilities; False may also mean "look closer"."""
        # Seen as unsigned, a negative label is a very large one: one maximum finds both.
        if _largest(labels.view(_UNSIGNED)) >= values.shape[1]:
            return False
        if self.kind == "logits":
            # NaN where there is one, and then no comparison holds.
            smallest, largest = np.minimum.reduce(values, axis=None), np.maximum.reduce(values, axis=None)
            return bool(smallest > -np.inf and largest < np.inf)
        # The bits of numbers in [0, 1], seen as integers, are in order; those of negative ones and NaN are larger.
        return _largest(values.view(self._bits)) <= self._limit

    def empty(self) -> "Pending":
        """One of the same kind in which nothing waits."""
        return Pending(self.kind, tops_only=self.tops_only, classes=self.classes)

    def drain(self) -> Waiting:
        """All that waits, to be used before the next `take`; nothing waits any more."""
        rows, cuts = self.rows, self._ends[:-1]
        self.drop()
        return Waiting(self._scores[:rows], self._targets[:rows], self._precision, cuts)

    def drop(self) -> None:
        """Forget all that waits."""
        self.rows = 0
        self._ends.clear()
