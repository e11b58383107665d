"""One pass over the rows in cache-sized chunks: check them, and keep a few numbers a row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.predictions.checks import SUM_TOLERANCE, Kind, Precision, refuse_scores

# Entries of a chunk. Half a million float64 are 4 MB: a chunk and its temporaries stay in the processor's cache, and
# memory beyond the input stays far below 50 MB whatever the number of classes.
CHUNK_ENTRIES = 2**19
# From about this many classes NumPy's argmax along rows (vectorised) beats torch's; below it is the other way round.
_WIDE = 64


@dataclass(frozen=True)
class Rows:
    """What is kept of each row.

    Attributes:
        confidence: Top probability, float64.
        predicted: First class that has it, int64.
        nll: Minus the log probability of the target, float64, infinite where that probability is 0.
    """

    confidence: NDArray[np.float64]
    predicted: NDArray[np.int64]
    nll: NDArray[np.float64]

    @classmethod
    def of(cls, rows: int) -> Self:
        """Room for some rows, to be filled."""
        return cls(np.empty(rows), np.empty(rows, dtype=np.int64), np.empty(rows))

    def frozen(self) -> Self:
        """The same, read-only from now on."""
        for array in (self.confidence, self.predicted, self.nll):
            array.flags.writeable = False
        return self


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Slices of about `CHUNK_ENTRIES` entries that cover all rows in order."""
    step = max(1, CHUNK_ENTRIES // classes)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def load_chunk(scores: NDArray[Any], part: slice) -> NDArray[Any]:
    """Some rows, contiguous; a copy only where they are not, or where torch would warn that it may not write."""
    return np.require(scores[part], requirements=["C", "W"])


def scan(scores: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision) -> Rows:
    """Check every row and compute its confidence, prediction and NLL."""
    rows, classes = scores.shape
    found = Rows.of(rows)
    for part in chunks(rows, classes):
        scan_chunk(load_chunk(scores, part), targets, kind, precision, part, found)
    return found.frozen()


def scan_chunk(
    chunk: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision, part: slice, into: Rows
) -> None:
    """Check the rows of one chunk and fill in their numbers."""
    read = _read_logits if kind == "logits" else _read_probabilities
    into.confidence[part], into.predicted[part], into.nll[part] = read(chunk, targets[part], part.start, precision)


_Read = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]


def _read_probabilities(chunk: NDArray[Any], targets: NDArray[np.int64], start: int, precision: Precision) -> _Read:
    if chunk.dtype == np.float16:
        chunk = chunk.astype(np.float32)
    tensor = torch.from_numpy(chunk)
    tolerance = SUM_TOLERANCE[precision]
    # NaN and infinity make the sum NaN or infinite, and every comparison with NaN is false.
    sums = tensor.sum(dim=1)
    fine = (sums - 1.0).abs_().amax() < 0.9 * tolerance and tensor.amin() >= 0
    if not fine:
        # Nine tenths: float32 summation may be off by a little; the exact float64 test decides.
        refuse_scores("probabilities", chunk, start, tolerance)
    predicted = _argmax(chunk, tensor)
    index = np.arange(len(chunk))
    # A float32 softmax may give 1.0000001: inside the tolerance, and it means 1.
    confidence = np.minimum(chunk[index, predicted], 1.0)
    with np.errstate(divide="ignore"):
        nll = -np.log(np.minimum(chunk[index, targets], 1.0).astype(np.float64))
    return confidence, predicted, nll


def _read_logits(chunk: NDArray[Any], targets: NDArray[np.int64], start: int, precision: Precision) -> _Read:
    del precision
    wide = torch.from_numpy(chunk).to(torch.float64, copy=True)
    if not torch.isfinite(wide.sum()):
        refuse_scores("logits", chunk, start, None)
    predicted = _argmax(chunk, torch.from_numpy(chunk))
    top = wide.amax(dim=1, keepdim=True)
    wide.sub_(top)
    of_target = wide.numpy()[np.arange(len(chunk)), targets]
    total = wide.exp_().sum(dim=1).numpy()
    return 1.0 / total, predicted, np.log(total) - of_target


def _argmax(chunk: NDArray[Any], tensor: torch.Tensor) -> NDArray[np.int64]:
    if chunk.shape[1] >= _WIDE:
        return np.asarray(chunk.argmax(axis=1), dtype=np.int64)
    found: NDArray[np.int64] = tensor.max(dim=1).indices.numpy()
    return found


def probabilities_of(chunk: NDArray[Any], kind: Kind) -> NDArray[np.float64]:
    """Float64 probabilities of some rows; a fresh array that the caller may write to."""
    wide = torch.from_numpy(np.array(chunk, dtype=np.float64, order="C"))
    result: NDArray[np.float64] = (wide.softmax(dim=1) if kind == "logits" else wide).numpy()
    return result
