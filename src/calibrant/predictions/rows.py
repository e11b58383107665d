"""One pass over the rows in cache-sized chunks: check them, and keep a few numbers a row.

NumPy in a few Python threads, not torch: torch joins its threads after every operation, which on a busy machine costs
milliseconds each time; here a thread takes whole chunks and waits for nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import Kind
from calibrant.predictions.checks import SUM_TOLERANCE, Precision, refuse_scores
from calibrant.predictions.threads import share

if TYPE_CHECKING:
    from calibrant.predictions.on_disk import OnDisk

# Entries of a chunk. Half a million float64 are 4 MB: a chunk and its temporaries stay in the processor's cache, and
# memory beyond the input stays far below 50 MB whatever the number of classes.
CHUNK_ENTRIES = 2**19
# Up to so many classes, sweeps over whole columns beat NumPy's reductions along short rows: fourfold for ten classes.
FEW_CLASSES = 32

# The smallest number that each precision can hold: what stands for a probability of 0 where its logarithm is needed.
_SMALLEST: dict[Precision, float] = {"float16": 6e-8, "bfloat16": 1e-38, "float32": 1e-45, "float64": 5e-324}


@dataclass(frozen=True)
class Rows:
    """What is kept of each row.

    Attributes:
        kind: What the scores were.
        confidence: Top probability, float64.
        predicted: First class that has it, int64.
        of_target: Of logits the NLL, of probabilities the target's probability, float64: many metrics do without the
            NLL, and a logarithm costs as much as all the rest.
    """

    kind: Kind
    confidence: NDArray[np.float64]
    predicted: NDArray[np.int64]
    of_target: NDArray[np.float64]

    @classmethod
    def of(cls, kind: Kind, rows: int) -> Self:
        """Room for some rows, to be filled."""
        return cls(kind, np.empty(rows), np.empty(rows, dtype=np.int64), np.empty(rows))

    @cached_property
    def nll(self) -> NDArray[np.float64]:
        """Minus the log probability of the target, float64, infinite where that probability is 0; read-only."""
        if self.kind == "logits":
            return self.of_target
        nll = np.minimum(self.of_target, 1.0, dtype=np.float64)
        with np.errstate(divide="ignore"):
            np.log(nll, out=nll)
        np.negative(nll, out=nll)
        nll.flags.writeable = False
        return nll

    def fill(self, part: slice, found: "Rows") -> None:
        """Put in what was found of some rows."""
        self.confidence[part], self.predicted[part] = found.confidence, found.predicted
        self.of_target[part] = found.of_target

    def subset(self, rows: NDArray[Any] | slice) -> Self:
        """The same of some rows only."""
        return type(self)(self.kind, self.confidence[rows], self.predicted[rows], self.of_target[rows])

    def frozen(self) -> Self:
        """The same, read-only from now on."""
        for array in (self.confidence, self.predicted, self.of_target):
            array.flags.writeable = False
        return self


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Slices of about `CHUNK_ENTRIES` entries that cover all rows in order."""
    step = max(1, CHUNK_ENTRIES // classes)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def load_chunk(scores: "NDArray[Any] | OnDisk", part: slice) -> NDArray[Any]:
    """Some rows in one piece, by rows or by columns; half precision, in which NumPy is slow, becomes float32."""
    chunk = scores[part]
    if not _by_columns(chunk):
        chunk = np.ascontiguousarray(chunk)
    return chunk.astype(np.float32) if chunk.dtype == np.float16 else chunk


def check_rows(scores: "NDArray[Any] | OnDisk", targets: NDArray[np.int64], kind: Kind, precision: Precision) -> Rows:
    """Check every row and compute its confidence, prediction and what its NLL is made of."""
    rows, classes = scores.shape
    found = Rows.of(kind, rows)

    def one(part: slice) -> None:
        found.fill(part, read_chunk(load_chunk(scores, part), targets, kind, precision, part))

    share(one, list(chunks(rows, classes)))
    return found.frozen()


def check_tops(
    scores: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check every row; its confidence and prediction alone, in the narrow types in which they are found."""
    found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def one(part: slice) -> None:
        chunk = load_chunk(scores, part)
        if kind == "logits":
            found[part.start] = _read_logits(chunk, targets[part], part.start)[:2]
        else:
            found[part.start] = _read_probabilities(chunk, precision, part.start)

    share(one, list(chunks(*scores.shape)))
    if len(found) > 1:
        in_order = [found[start] for start in sorted(found)]
        return np.concatenate([top for top, _ in in_order]), np.concatenate([first for _, first in in_order])
    return found[0]


def read_chunk(chunk: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision, part: slice) -> Rows:
    """Check the rows of one chunk; their numbers in the narrow types in which they are found."""
    if kind == "logits":
        return Rows(kind, *_read_logits(chunk, targets[part], part.start))
    return Rows(kind, *_read_probabilities(chunk, precision, part.start), _pick(chunk, targets[part]))


def _read_probabilities(chunk: NDArray[Any], precision: Precision, start: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check rows of probabilities; their confidence (in their own type) and prediction."""
    tolerance = SUM_TOLERANCE[precision]
    top, predicted, total = _top_and_sum(chunk)
    one, limit = np.asarray([1.0, 1.0 + tolerance], dtype=chunk.dtype).view(top.dtype)
    largest = top.max()
    # Nine tenths of the tolerance: a float32 sum may be off by a little, the exact test in float64 decides. Sums are
    # looked at last: with no score beyond the limit none is NaN.
    off = 0.9 * tolerance
    if not (largest <= limit and total.min() > 1.0 - off and total.max() < 1.0 + off):
        refuse_scores("probabilities", chunk, start, tolerance)
        # What the exact test lets pass may hold a minus zero, which is zero.
        top, predicted, _ = _top_and_sum(np.abs(chunk))
        largest = top.max()
    confidence = top.view(chunk.dtype)
    # A float32 softmax may give 1.0000001: inside the tolerance, and it means 1.
    return np.minimum(confidence, 1.0) if largest > one else confidence, predicted


def _top_and_sum(chunk: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of each row the bits of the largest score, the first class that has it, and the sum.

    The bits of numbers that are not negative, seen as unsigned integers, are in the order of the numbers, and those of
    negative ones and NaN lie above them all. So a row that has one of these shows it as its largest: one pass finds
    both the confidence and what must not be there.
    """
    bits = chunk.view(np.uint32 if chunk.dtype == np.float32 else np.uint64)
    columns = _columns(bits)
    top, predicted = _top(bits, columns)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.einsum("ij->i", chunk) if columns is None else columns.view(chunk.dtype).sum(axis=0)
    return top, predicted, total


def _read_logits(
    chunk: NDArray[Any], targets: NDArray[np.int64], start: int
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
    top, predicted = _top(chunk, _columns(chunk))
    with np.errstate(invalid="ignore", over="ignore"):
        powers = _minus_top(chunk, top)
        of_target = _pick(powers, targets)
        total = np.einsum("ij->i", np.exp(powers, out=powers))
    # A NaN or an infinity at the top makes the sum NaN; minus infinity does not, but it is the smallest.
    if not (np.isfinite(total).all() and np.isfinite(chunk.min())):
        refuse_scores("logits", chunk, start, None)
    return 1.0 / total, predicted, np.log(total) - of_target


def _by_columns(chunk: NDArray[Any]) -> bool:
    """Whether each class lies in one piece, which is best for few classes."""
    return chunk.shape[1] <= FEW_CLASSES and chunk.strides[0] == chunk.itemsize


def _columns(chunk: NDArray[Any]) -> NDArray[Any] | None:
    """The chunk class by class, shape (K, n), where that pays."""
    if chunk.shape[1] > FEW_CLASSES:
        return None
    return chunk.T if _by_columns(chunk) else np.ascontiguousarray(chunk.T)


def _top(chunk: NDArray[Any], columns: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Largest score of each row and the first class that has it."""
    if columns is None:
        predicted = chunk.argmax(axis=1)
        return _pick(chunk, predicted), predicted
    top = columns.max(axis=0)
    # The first class that has it is the number of classes before it. Sums of bytes, not masked writes: which class wins
    # cannot be foretold, and a wrong guess of the processor costs more than a sweep.
    missed = columns[:-1] != top
    for so_far, here in pairwise(missed):
        np.logical_and(here, so_far, out=here)
    return top, missed.view(np.uint8).sum(axis=0, dtype=np.uint8)


def _pick(chunk: NDArray[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """The score of one class in each row."""
    found: NDArray[Any] = chunk.reshape(-1).take(np.arange(0, chunk.size, chunk.shape[1]) + classes)
    return found


def _minus_top(chunk: NDArray[Any], top: NDArray[Any]) -> NDArray[np.float64]:
    """Float64 logits minus the largest of their row, a new array."""
    wide = np.array(chunk, dtype=np.float64, order="C")
    wide -= top[:, None]
    return wide


def probabilities_of(chunk: NDArray[Any], kind: Kind) -> NDArray[np.float64]:
    """Float64 probabilities of some rows; a fresh array that the caller may write to."""
    if kind == "probabilities":
        return np.array(chunk, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):
        powers = _minus_top(chunk, _top(chunk, _columns(chunk))[0])
    np.exp(powers, out=powers)
    powers /= np.einsum("ij->i", powers)[:, None]
    return powers


def logits_of(scores: NDArray[Any], kind: Kind, precision: Precision) -> NDArray[Any]:
    """Logits as they are, or the logarithm of probabilities with 0 raised to the smallest number of their precision."""
    if kind == "logits":
        return scores
    return np.asarray(np.log(np.maximum(np.asarray(scores, dtype=np.float64), _SMALLEST[precision])))


def stands_for_zero(logits: NDArray[Any]) -> NDArray[np.bool_]:
    """Which logits are what `logits_of` makes of a probability of 0; no network gives just these numbers.

    >>> stands_for_zero(logits_of(np.array([[1.0, 0.0]]), "probabilities", "float64")).tolist()
    [[False, True]]
    """
    return np.isin(logits, np.log(list(_SMALLEST.values())))
