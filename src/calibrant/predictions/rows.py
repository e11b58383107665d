"""Scores: the rules for them, and the confidence, prediction and NLL of every row, in cache-sized chunks.

Chunks are shared by a few Python threads. A thread takes whole chunks, so that threads do not wait for each other after
every operation.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from tempfile import TemporaryFile
from typing import IO, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, is_bfloat16
from calibrant.defaults import Kind
from calibrant.errors import CalibrantWarning, InvalidInput, invalid

_Result = TypeVar("_Result")
Precision = Literal["float16", "bfloat16", "float32", "float64"]

PRECISIONS: dict[int, Precision] = {2: "float16", 4: "float32", 8: "float64"}
# How far from 1 the sum of a row of probabilities may be. Half precision rounds each entry by up to 2^-11 (float16) or
# 2^-9 (bfloat16) of its value, so a correct row can be off by that much.
SUM_TOLERANCE: dict[Precision, float] = {"float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-4, "float64": 1e-4}
# Fewer rows than this may look like probabilities by chance.
_FEWEST_TO_WARN = 10
# Sums of decimals, computed in binary, may be beyond a limit by this much of it: 1.0001 becomes 1.0001000000000002.
_SUM_SLACK = 1.0 + 1e-6
# A row of a hundred probabilities with three digits can miss 1 by this much. Beyond it, mass may be missing.
_ROUNDED = 0.05
# Numbers with more decimals are not rounded in a way that matters for sums.
_MOST_DECIMALS = 9
# Bytes of a chunk in float64. It stays in the cache of one core from one pass over it to the next, and its temporary
# arrays reuse the memory of the last chunk's: with larger ones, page faults took more time than the computation.
CHUNK_BYTES = 2**20
# Entries of probabilities that are checked at once. A check has few steps, so small chunks cost more than they save.
CHUNK_ENTRIES = 2**20
# Up to this many classes, and from this many rows on, sweeps over whole columns are faster than NumPy's reductions
# along short rows: four times as fast for ten classes and 8,192 rows.
FEW_CLASSES = 32
_ROWS_TO_SWEEP = 512
_MOST_THREADS = 4
# A thread pays off from about so many entries, which take 4 milliseconds: on a busy machine it starts late.
ENTRIES_PER_THREAD = 2**22

# The smallest number that each precision can hold. It replaces a probability of 0 if its logarithm is needed.
_SMALLEST: dict[Precision, float] = {"float16": 6e-8, "bfloat16": 1e-38, "float32": 1e-45, "float64": 5e-324}


def as_scores(values: Any, kind: Kind) -> tuple[NDArray[Any], Precision]:
    """Convert scores to an (n, K) array of floats, without a copy if possible; return it and its precision."""
    precision: Precision | None = "bfloat16" if is_bfloat16(values) else None
    array = as_array(kind, values)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    check_shape(array.shape, array.dtype, kind)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array, precision or PRECISIONS[array.dtype.itemsize]


def both_classes(scores: Any, kind: Kind, first_row: int = 0) -> NDArray[Any]:
    """Compute the scores of two classes, shape (n, 2), from those of class 1 alone."""
    values = as_array("scores", scores)
    if kind not in ("logits", "probabilities"):
        raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind != "f":
        hint = ""
        if values.ndim == 2:
            hint = "For two columns use from_logits or from_probabilities."
        raise invalid("scores", "be one floating-point number per row", f"{values.dtype} of {values.shape}", hint)
    if kind == "logits":
        return np.stack([np.zeros_like(values), values], axis=1)
    _refuse_outside("scores", values, first_row, "For logits say kind='logits'.")
    # In float64, because 1 - p of a small float32 p is 1, and then p would be lost in the sum.
    wide = values.astype(np.float64)
    return np.stack([1.0 - wide, wide], axis=1)


def as_top_scores(confidence: Any, kind: Kind, rows: int) -> tuple[NDArray[Any], Precision]:
    """Check one score per row: finite, and a confidence in 0..1."""
    values = as_array(kind, confidence)
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype.kind != "f" or values.dtype.itemsize > 8 or values.shape != (rows,) or not rows:
        raise invalid(kind, f"hold {rows} floating-point numbers, one per row", f"{values.dtype} of {values.shape}")
    if kind == "confidence":
        _refuse_outside(kind, values, 0, "For numbers that are only ranked say kind='score' (--kind score).")
    else:
        refuse_scores(kind, values[:, None], 0, None)
    return values, PRECISIONS[values.dtype.itemsize]


def _refuse_outside(name: str, values: NDArray[Any], first_row: int, hint: str) -> None:
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        row = int(np.argmax(bad))
        if (values[bad] > 1).all() and values.max() <= 100:
            hint = f"If these are percentages, divide them by 100. {hint}"
        raise invalid(name, "lie in 0..1", f"{values[row]:g} in row {first_row + row}", hint)


def check_shape(shape: tuple[int, ...], dtype: np.dtype[Any], kind: Kind) -> None:
    """Refuse scores that are not (n, K) floating-point numbers with at least one row and two classes."""
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise invalid(kind, "hold floating-point numbers", f"dtype {dtype}")
    if kind in ("confidence", "score"):
        if 0 in shape:
            raise invalid(kind, "have at least one row", f"shape {shape}")
        return
    hint = ""
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1 and shape[0]):
        hint = f"For one column, that of class 1 of two, use Predictions.from_binary(..., kind='{kind}')."
    if len(shape) != 2:
        raise invalid(kind, "have shape (n, K)", f"shape {shape}", hint)
    if 0 in shape or shape[1] == 1:
        raise invalid(kind, "have at least one row and two classes", f"shape {shape}", hint)


def warn_if_probabilities(logits: NDArray[Any], *, stacklevel: int) -> None:
    """Warn if values passed as logits look like probabilities. Nothing is changed."""
    head = logits[:256]
    # Rows of 0 and 1 are examples that somebody wrote by hand.
    if len(head) < _FEWEST_TO_WARN or (head < 0).any() or (head > 2).any() or (head == head.round()).all():
        return
    if np.allclose(head.sum(axis=1, dtype=np.float64), 1.0, atol=SUM_TOLERANCE["bfloat16"]):
        warnings.warn(
            "logits: every row is non-negative and sums to 1, as probabilities do. They were taken as logits. If they "
            "are probabilities, use Predictions.from_probabilities (--kind probabilities); in a file, the key "
            "probabilities or the columns probability_CLASS.",
            CalibrantWarning,
            stacklevel=stacklevel,
        )


def refuse_scores(name: str, scores: NDArray[Any], first_row: int, tolerance: float | None) -> None:
    """Raise an error for the first bad row of a chunk that failed the fast test; return if all rows are correct.

    `tolerance` says how far a row's sum may be from 1; None for logits.
    """
    wide = scores.astype(np.float64)
    _refuse_cells(name, "be finite", wide, ~np.isfinite(wide), first_row, "Leave such rows out or find their cause.")
    if tolerance is None:
        return
    _refuse_cells(name, "not be negative", wide, wide < 0, first_row, "For logits use from_logits (--kind logits).")
    total = wide.sum(axis=1)
    off = sums_beyond(total, tolerance)
    if off.any():
        row = int(np.argmax(off))
        hint = "Divide each row by its sum. For logits use from_logits (--kind logits)."
        if abs(total[row] - 1) < _ROUNDED:
            hint = "If they were rounded, write more digits or divide each row by its sum."
        if abs(total[row] - 100) < 1:
            hint = "These look like percentages: divide them by 100."
        rule = f"sum to 1 within {tolerance:g} in every row"
        raise invalid(name, rule, f"{total[row]:.6g} in row {first_row + row}", hint)


def sums_beyond(totals: NDArray[np.float64], tolerance: float) -> NDArray[np.bool_]:
    """Tell which sums of rows miss 1 by more than the tolerance."""
    return np.asarray(np.abs(totals - 1.0) > tolerance * _SUM_SLACK)


def decimals_of(values: NDArray[np.float64], least: int = 0) -> int:
    """Return the fewest decimals, `least` or more, with which all values can be written; ten if nine do not suffice."""
    for decimals in range(least, _MOST_DECIMALS + 1):
        scale = 10.0**decimals
        # A quotient of whole numbers is the same float as the decimal that a file has.
        if (np.rint(values * scale) / scale == values).all():
            return decimals
    return _MOST_DECIMALS + 1


def tolerance_of_decimals(decimals: int, classes: int) -> float:
    """Return how far from 1 a row's sum may be if each of its probabilities was rounded to so many decimals."""
    tolerance = SUM_TOLERANCE["float64"]
    if decimals > _MOST_DECIMALS:
        return tolerance
    return tolerance + min(classes * 0.5 * 10.0**-decimals, _ROUNDED)


def _refuse_cells(
    name: str, rule: str, scores: NDArray[Any], bad: NDArray[np.bool_], first_row: int, hint: str
) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise invalid(name, rule, f"{scores[row, column]:g} in row {first_row + row}, column {column}", hint)


@dataclass(frozen=True)
class Rows:
    """The numbers that are kept for each row."""

    kind: Kind
    confidence: NDArray[np.float64]  # top probability
    predicted: NDArray[np.int64]  # first class that has it
    # The NLL for logits, the probability of the target for probabilities: many metrics do not need the NLL, and the
    # logarithm costs as much as everything else.
    of_target: NDArray[np.float64]

    @cached_property
    def nll(self) -> NDArray[np.float64]:
        """Minus the log probability of the target, float64, infinite if that probability is 0; read-only."""
        if self.kind == "logits":
            return self.of_target
        nll = np.minimum(self.of_target, 1.0, dtype=np.float64)
        with np.errstate(divide="ignore"):
            np.log(nll, out=nll)
        np.negative(nll, out=nll)
        nll.flags.writeable = False
        return nll

    def subset(self, rows: NDArray[Any] | slice) -> Self:
        """Select some rows."""
        return type(self)(self.kind, self.confidence[rows], self.predicted[rows], self.of_target[rows])

    def frozen(self) -> Self:
        """Make all arrays read-only and return self."""
        for array in (self.confidence, self.predicted, self.of_target):
            array.flags.writeable = False
        return self


def map_in_threads(one: Callable[[slice], _Result], parts: Sequence[slice], entries: int) -> list[_Result]:
    """Call `one` for every part, in a few threads if there are many entries, and return the results in order.

    If calls fail, the error of the first part in order is raised, whichever thread met it first.
    """
    threads = min(entries // ENTRIES_PER_THREAD, _MOST_THREADS)
    if threads > 1:
        threads = min(threads, _available_threads())
    if threads <= 1:
        return [one(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, parts))


def _available_threads() -> int:
    """Return OMP_NUM_THREADS, which numerical libraries obey too, else the number of cores of this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isascii() and wanted.isdigit():
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Yield slices of rows that stay in the cache and cover all rows in order."""
    entries = classes + 10  # a row has about ten numbers besides its scores
    return _slices(rows, CHUNK_BYTES // (8 * entries))


def _slices(rows: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def load_chunk(scores: "NDArray[Any] | OnDisk", part: slice) -> NDArray[Any]:
    """Load some rows as a contiguous array. float16 becomes float32, because NumPy is slow in half precision."""
    chunk = scores[part]
    if not _by_columns(chunk):
        chunk = np.ascontiguousarray(chunk)
    if chunk.dtype == np.float16:
        chunk = chunk.astype(np.float32)
    return chunk


def check_rows(scores: "NDArray[Any] | OnDisk", targets: NDArray[np.int64], kind: Kind, precision: Precision) -> Rows:
    """Check every row and compute the numbers of `Rows`."""

    def one(part: slice) -> Rows:
        return read_chunk(load_chunk(scores, part), targets, kind, precision, part)

    n_rows, n_classes = scores.shape
    parts = chunks(n_rows, n_classes)
    if kind == "probabilities" and n_classes > FEW_CLASSES:
        parts = _slices(n_rows, CHUNK_ENTRIES // n_classes)
    checked_parts = map_in_threads(one, list(parts), n_rows * n_classes)
    return Rows(
        kind,
        np.concatenate([rows.confidence for rows in checked_parts], dtype=np.float64),
        np.concatenate([rows.predicted for rows in checked_parts], dtype=np.int64),
        np.concatenate([rows.of_target for rows in checked_parts], dtype=np.float64),
    ).frozen()


def read_chunk(chunk: NDArray[Any], targets: NDArray[np.int64], kind: Kind, precision: Precision, part: slice) -> Rows:
    """Check the rows of one chunk and compute their numbers, in the narrow types of the computation."""
    if kind == "logits":
        return Rows(kind, *read_logits(chunk, targets[part], part.start))
    return Rows(kind, *read_probabilities(chunk, precision, part.start), _pick(chunk, targets[part]))


def read_probabilities(chunk: NDArray[Any], precision: Precision, start: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check rows of probabilities; return their confidence (in their own type) and prediction."""
    tolerance = SUM_TOLERANCE[precision]
    top, predicted, total = _top_and_sum(chunk)
    one, limit = _limits(chunk.dtype, tolerance)
    largest = np.maximum.reduce(top)  # the methods of arrays cost twice as much on a small batch
    # Nine tenths of the tolerance: a float32 sum may be off by a little, and then the exact test in float64 decides.
    # Sums are compared last: if no score is beyond the limit, none is NaN.
    off = 0.9 * tolerance
    if not (largest <= limit and np.minimum.reduce(total) > 1.0 - off and np.maximum.reduce(total) < 1.0 + off):
        refuse_scores("probabilities", chunk, start, tolerance)
        # Rows that pass the exact test may hold a minus zero, which is zero.
        top, predicted, _ = _top_and_sum(np.abs(chunk))
        largest = np.maximum.reduce(top)
    confidence = top.view(chunk.dtype)
    if largest > one:
        # A float32 softmax may give 1.0000001: inside the tolerance, and it means 1.
        confidence = np.minimum(confidence, 1.0)
    return confidence, predicted


@lru_cache
def _limits(dtype: np.dtype[Any], tolerance: float) -> tuple[Any, Any]:
    """The bits of 1 and of the largest probability that is allowed."""
    one, limit = np.asarray([1.0, 1.0 + tolerance], dtype=dtype).view(f"u{dtype.itemsize}")
    return one, limit


def _top_and_sum(chunk: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return for each row the bits of the largest score, the first class that has it, and the sum.

    Read as unsigned integers, the bits of non-negative numbers have the same order as the numbers, and the bits of
    negative numbers and NaN are larger than all of them. So one pass finds the confidence and every invalid score.
    """
    bits = chunk.view(f"u{chunk.itemsize}")
    columns = _columns(bits)
    if columns is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            return *_top(bits, columns), columns.view(chunk.dtype).sum(axis=0)
    if chunk.nbytes <= CHUNK_BYTES:
        return *_top(bits, None), np.einsum("ij->i", chunk)
    predicted, total = np.empty(len(chunk), dtype=np.intp), np.empty(len(chunk), dtype=chunk.dtype)
    for block in chunks(*chunk.shape):
        bits[block].argmax(axis=1, out=predicted[block])
        np.einsum("ij->i", chunk[block], out=total[block])
    return _pick(bits, predicted), predicted, total


def read_logits(
    chunk: NDArray[Any], targets: NDArray[np.int64], start: int
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
    """Check rows of logits; return their confidence, prediction and NLL."""
    top, predicted = _top(chunk, _columns(chunk))
    with np.errstate(invalid="ignore", over="ignore"):
        powers = _minus_top(chunk, top)
        of_target = _pick(powers, targets)
        total = np.einsum("ij->i", np.exp(powers, out=powers))
    # A NaN or an infinity at the top makes the sum NaN. Minus infinity does not, but it is the smallest score.
    if not (np.isfinite(total).all() and np.isfinite(chunk.min())):
        refuse_scores("logits", chunk, start, None)
    return 1.0 / total, predicted, np.log(total) - of_target


def _by_columns(chunk: NDArray[Any]) -> bool:
    """Whether each class is contiguous in memory, which is best for few classes."""
    return chunk.shape[1] <= FEW_CLASSES and chunk.strides[0] == chunk.itemsize


def _columns(chunk: NDArray[Any]) -> NDArray[Any] | None:
    """Return the chunk class by class, shape (K, n), or None if that is not faster."""
    if chunk.shape[1] > FEW_CLASSES or len(chunk) < _ROWS_TO_SWEEP:
        return None
    if _by_columns(chunk):
        return chunk.T
    return np.ascontiguousarray(chunk.T)


def _top(chunk: NDArray[Any], columns: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the largest score of each row and the first class that has it."""
    if columns is None:
        predicted = chunk.argmax(axis=1)
        return _pick(chunk, predicted), predicted
    top = columns.max(axis=0)
    # Of the classes that have it, the first counts most. In bytes this is much faster than `argmax` along columns.
    classes = len(columns)
    descending = np.arange(classes, 0, -1, dtype=np.uint8)[:, None]
    return top, classes - ((columns == top) * descending).max(axis=0)


def _pick(chunk: NDArray[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """Return the score of one class in each row."""
    scores: NDArray[Any] = chunk.reshape(-1).take(np.arange(0, chunk.size, chunk.shape[1]) + classes)
    return scores


def _minus_top(chunk: NDArray[Any], top: NDArray[Any]) -> NDArray[np.float64]:
    """Return float64 logits minus the largest of their row, as a new array."""
    wide = np.array(chunk, dtype=np.float64, order="C")
    wide -= top[:, None]
    return wide


def probabilities_of(chunk: NDArray[Any], kind: Kind) -> NDArray[np.float64]:
    """Return float64 probabilities of some rows, as a new array that the caller may write to."""
    if kind == "probabilities":
        return np.array(chunk, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):
        powers = _minus_top(chunk, _top(chunk, _columns(chunk))[0])
    np.exp(powers, out=powers)
    powers /= np.einsum("ij->i", powers)[:, None]
    return powers


def logits_of(scores: NDArray[Any], kind: Kind, precision: Precision) -> NDArray[Any]:
    """Return logits unchanged, or log probabilities, with 0 replaced by the smallest number of `precision`."""
    if kind == "logits":
        return scores
    return np.asarray(np.log(np.maximum(np.asarray(scores, dtype=np.float64), _SMALLEST[precision])))


def stands_for_zero(logits: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which logits are the ones that `logits_of` returns for a probability of 0. No network gives these numbers.

    >>> stands_for_zero(logits_of(np.array([[1.0, 0.0]]), "probabilities", "float64")).tolist()
    [[False, True]]
    """
    return np.isin(logits, np.log(list(_SMALLEST.values())))


class OnDisk:
    """An (n, K) array in a file. Indexing with a slice or with row numbers reads these rows.

    The file is read, not mapped: if another program cuts it off, a read fails with a message, whereas a mapped file
    would end the process. Pages of a mapped file would also count as memory of this process. The file may be closed or
    removed after the array was made.
    """

    def __init__(
        self,
        handle: IO[bytes],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        *,
        offset: int = 0,
        where: str = "a temporary file",
    ) -> None:
        self._file = os.fdopen(os.dup(handle.fileno()), "rb", buffering=0)
        self._lock = threading.Lock()  # several threads read, and the file has one position
        weakref.finalize(self, self._file.close)
        self.shape = shape
        self.dtype = dtype
        self._offset = offset
        self._where = where

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            return self._read(start, max(start, stop))
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        order = np.argsort(rows, kind="stable")
        for part in chunks(*self.shape):
            first, last = np.searchsorted(rows, [part.start, part.stop], sorter=order)
            if first < last:
                chosen = order[first:last]
                result[chosen] = self._read(part.start, part.stop)[rows[chosen] - part.start]
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """Reach another process as a plain array."""
        return np.asarray, (self[:],)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        result = np.empty((stop - start, self.shape[1]), self.dtype)
        content = result.reshape(-1).view(np.uint8)
        place = self._offset + start * self.shape[1] * self.dtype.itemsize
        while content.size:
            try:
                with self._lock:
                    self._file.seek(place)
                    count = self._file.readinto(content.data)
            except OSError as error:
                raise InvalidInput(f"{self._where} cannot be read: {error.strerror or error}.") from error
            if not count:
                raise InvalidInput(f"{self._where} was cut off while it was read. Write it again, then start again.")
            content = content[count:]
            place += count
        return result


def spool(blocks: Iterable[NDArray[Any]], columns: int, dtype: np.dtype[Any]) -> OnDisk:
    """Write blocks of rows to a temporary file, which is removed with the array or when the process ends."""
    rows = 0
    with TemporaryFile(prefix="calibrant-") as handle:
        for block in blocks:
            rows += len(block)
            handle.write(np.ascontiguousarray(block, dtype).data)
        handle.flush()
        return OnDisk(handle, (rows, columns), dtype)
