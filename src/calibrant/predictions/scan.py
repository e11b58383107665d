"""One pass over the rows in cache-sized chunks: check them, and keep a few numbers a row.

NumPy in a few Python threads, not torch: torch joins its threads after every operation, which on a busy machine costs
milliseconds each time; here a thread takes whole chunks and waits for nobody.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.predictions.checks import SUM_TOLERANCE, Kind, Precision, refuse_scores

# Entries of a chunk. Half a million float64 are 4 MB: a chunk and its temporaries stay in the processor's cache, and
# memory beyond the input stays far below 50 MB whatever the number of classes.
CHUNK_ENTRIES = 2**19
_MOST_THREADS = 4


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
    """Some rows, contiguous; half precision, in which NumPy is slow, becomes float32."""
    chunk = np.ascontiguousarray(scores[part])
    return chunk.astype(np.float32) if chunk.dtype == np.float16 else chunk


def scan(scores: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision) -> Rows:
    """Check every row and compute its confidence, prediction and NLL."""
    rows, classes = scores.shape
    found = Rows.of(rows)

    def one(part: slice) -> None:
        scan_chunk(load_chunk(scores, part), targets, kind, precision, part, found)

    parts = list(chunks(rows, classes))
    # A thread is worth starting for about eight chunks.
    threads = min(torch.get_num_threads(), _MOST_THREADS, len(parts) // 8)
    if threads <= 1:
        for part in parts:
            one(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            # map gives results, and the first error, in the order of the rows.
            for _ in pool.map(one, parts):
                pass
    return found.frozen()


def scan_chunk(
    chunk: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision, part: slice, into: Rows
) -> None:
    """Check the rows of one chunk and fill in their numbers."""
    own = targets[part]
    if kind == "logits":
        into.confidence[part], into.predicted[part], into.nll[part] = _read_logits(chunk, own, part.start)
        return
    into.confidence[part], into.predicted[part] = read_probabilities(chunk, precision, part.start)
    with np.errstate(divide="ignore"):
        into.nll[part] = -np.log(np.minimum(chunk[np.arange(len(chunk)), own], 1.0).astype(np.float64))


def read_probabilities(
    chunk: NDArray[Any], precision: Precision, start: int = 0
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Check rows of probabilities; their confidence (in their own type) and prediction."""
    tolerance = SUM_TOLERANCE[precision]
    # NaN and infinity make the sum NaN or infinite, and every comparison with NaN is false. Nine tenths of the
    # tolerance: a float32 sum may be off by a little, the exact test in float64 decides.
    off = np.abs(np.einsum("ij->i", chunk) - 1.0).max()
    if not (off < 0.9 * tolerance and chunk.min() >= 0):
        refuse_scores("probabilities", chunk, start, tolerance)
    predicted = chunk.argmax(axis=1)
    # A float32 softmax may give 1.0000001: inside the tolerance, and it means 1.
    return np.minimum(chunk[np.arange(len(chunk)), predicted], 1.0), predicted


def _read_logits(
    chunk: NDArray[Any], targets: NDArray[np.int64], start: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    predicted = chunk.argmax(axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        powers = _minus_top(chunk, predicted)
        of_target = powers[np.arange(len(chunk)), targets]
        total = np.einsum("ij->i", np.exp(powers, out=powers))
    # A NaN or an infinity at the top makes the sum NaN; minus infinity does not, but it is the smallest.
    if not (np.isfinite(total).all() and np.isfinite(chunk.min())):
        refuse_scores("logits", chunk, start, None)
    return 1.0 / total, predicted, np.log(total) - of_target


def _minus_top(chunk: NDArray[Any], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Float64 logits minus the largest of their row, a new array."""
    wide = np.array(chunk, dtype=np.float64)
    wide -= wide[np.arange(len(wide)), predicted][:, None]
    return wide


def probabilities_of(chunk: NDArray[Any], kind: Kind) -> NDArray[np.float64]:
    """Float64 probabilities of some rows; a fresh array that the caller may write to."""
    if kind == "probabilities":
        return np.array(chunk, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):
        powers = _minus_top(chunk, chunk.argmax(axis=1))
    np.exp(powers, out=powers)
    powers /= np.einsum("ij->i", powers)[:, None]
    return powers
