"""Meters for training loops: torchmetrics `Metric`s of constant size that merge by addition.

Counts are int64 and sums float64, so a meter is exact however many batches and ranks feed it. Every batch is added on
the device that holds it, with fixed shapes. On a GPU nothing waits for the device.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.checks import fraction, labels, require_tensor, whole
from calibrant.defaults import DEFAULT_N_BINS, Kind
from calibrant.errors import InvalidInput, importing, invalid
from calibrant.integrations.on_device import accumulate_bins, device_edges
from calibrant.metrics.binning import Floats, bin_edges, rounded, wrong_and_right_sums
from calibrant.metrics.functions import class_gaps, squared_distance
from calibrant.metrics.metric import Chunk, weighted_sum
from calibrant.predictions.rows import (
    CHUNK_ENTRIES,
    SUM_TOLERANCE,
    Precision,
    Rows,
    check_rows,
    chunks,
    probabilities_of,
    read_chunk,
    read_probabilities,
)

with importing("a meter", "torchmetrics", "train"):
    from torchmetrics import Metric

_PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


class Meter(Metric):
    """The kind of scores, the rules for a batch, and the count of rows on a device that broke them.

    Args:
        kind: What `update` is given: "logits" or "probabilities". It is never guessed.
        weighted: Whether `update` is given importance weights too; then counts of rows are sums of weights in float64.
        kwargs: For torchmetrics, such as `process_group` or `sync_on_compute`.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    refused: Tensor

    def __init__(self, *, kind: Kind, weighted: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if kind not in ("logits", "probabilities"):
            raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
        self.kind, self.weighted = kind, weighted
        self._counted = torch.float64 if weighted else torch.int64
        self._add("refused", dtype=torch.int64)
        if weighted:
            self._set_apart("counts_weight")

    def _add(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _set_apart(self, what: str) -> None:
        """Keep a `MetricCollection` from sharing this meter's states with another one.

        It lets meters share states whose names agree and whose values agree after the first batch: two thresholds that
        no row has reached yet would be one from then on. So one more state, always 0, has a name that differs.
        """
        self._add(re.sub(r"\W", "_", what), dtype=torch.int64)

    def update(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch.

        On the CPU a batch that breaks a rule is refused and nothing of it is added. On another device its bad rows are
        counted instead, and `compute` refuses: looking at them here would make the host wait for the device.

        Args:
            scores: Shape (n, K), of the kind that the constructor names.
            targets: Shape (n,), integers in 0..K-1.
            weights: Shape (n,), finite and not negative; for a meter with `weighted=True` only. Only their ratios
                matter.
        """
        _check_form(scores, targets, self.kind)
        if scores.requires_grad:
            scores = scores.detach()
        row_weights = self._check_weights(weights, targets)
        if scores.device.type == "cpu":
            # In NumPy: each step on a small batch costs a fraction of what it costs in torch.
            self._add_host_batch(_read_host_batch(scores, targets, row_weights, self.kind))
            return
        bad = bad_rows(scores, targets, self.kind)
        if row_weights is not None:
            bad = bad | ~_fine_weights(row_weights)
        self.refused += bad.sum()
        self._add_batch(scores, targets, row_weights)

    def _check_weights(self, weights: Tensor | None, targets: Tensor) -> Tensor | None:
        """Weights in float64; checks what is known without waiting for the device."""
        if self.weighted != (weights is not None):
            rule = "be given to every update of a meter with weighted=True, and to no other"
            raise invalid("weights", rule, "none" if weights is None else "some")
        if weights is None:
            return None
        require_tensor("weights", weights)
        if weights.shape != targets.shape:
            raise invalid("weights", f"have shape {tuple(targets.shape)}, one per row", f"shape {tuple(weights.shape)}")
        return weights.detach().to(torch.float64)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Follow the network to another device, but keep int64 and float64 if it is cast.

        torchmetrics takes care of `half()` and the like, but not of `to(dtype)`, which Lightning's bf16-true calls.
        """

        def moved(value: Tensor) -> Tensor:
            result = fn(value)
            return result if result.dtype == value.dtype else value.to(result.device)

        super()._apply(moved, exclude_state)
        return self

    def compute(self) -> Tensor:
        """The metric over all batches, a float64 scalar; NaN before the first row."""
        if self.refused > 0:
            rules = "finite scores, probabilities that sum to 1, labels in 0..K-1, weights that are not negative"
            raise InvalidInput(f"{self.kind} must obey the rules ({rules}), got {int(self.refused)} rows that do not.")
        return self._result()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; those that torchmetrics counts updates with take the short way.

        The way through `nn.Module` takes a fifth of the time of an update of 128 rows.
        """
        if name in ("_computed", "_update_count"):
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def _add_host_batch(self, batch: "_HostBatch") -> None:
        """Add a batch on the CPU; nothing of it if one of its scores breaks a rule."""
        raise NotImplementedError

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Add a batch on its own device: fixed shapes, no synchronisation, the same bits on every run."""
        raise NotImplementedError

    def _result(self) -> Tensor:
        raise NotImplementedError


@dataclass
class _HostBatch:
    """A batch on the CPU. Its scores are checked when `tops` or `rows` reads them, before anything is added."""

    kind: Kind
    scores: NDArray[Any]
    targets: NDArray[np.int64]
    precision: Precision  # of confidences: that of given probabilities, or float64 if a softmax computes them
    weights: Floats | None

    @property
    def size(self) -> float:
        """Number of rows, or the sum of their weights."""
        if self.weights is None:
            return len(self.targets)
        return float(self.weights.sum())

    def tops(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Confidence and prediction of each row."""
        if self.kind == "probabilities" and self.scores.size <= CHUNK_ENTRIES:
            return read_probabilities(self.scores, self.precision, 0)
        rows = self.rows()
        return rows.confidence, rows.predicted

    def rows(self) -> Rows:
        """The same and the NLL."""
        if self.scores.size > CHUNK_ENTRIES:
            return check_rows(self.scores, self.targets, self.kind, self.precision)
        return read_chunk(self.scores, self.targets, self.kind, self.precision, slice(0, len(self.targets)))

    def chunks(self, n_bins: int = 1) -> Iterator[Chunk]:
        """Chunks of rows as metrics read them."""
        rows, edges = self.rows(), bin_edges(n_bins, self.precision)
        for part in chunks(*self.scores.shape):
            weights = None
            if self.weights is not None:
                weights = self.weights[part]
            probabilities = probabilities_of(self.scores[part], self.kind)
            yield Chunk(probabilities, self.targets[part], rows.subset(part), edges, weights)


def _add(state: Tensor, added: Any) -> None:
    """Add to a state on the CPU in place: as arrays it costs a third of what it costs in torch."""
    array = state.numpy()
    array += added


class CalibrationError(Meter):
    """Expected (or maximum) calibration error over equal-width bins of confidence.

    Args:
        n_bins: Number of bins on [0, 1].
        kind: "logits" or "probabilities".
        norm: "expected" for the ECE, "maximum" for the MCE.
        kwargs: See `Meter`.

    >>> meter = CalibrationError(10, kind="probabilities")
    >>> meter.update(torch.tensor([[0.95, 0.05], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(meter.compute().item(), 6)
    0.475
    """

    counts: Tensor
    confidence_sums: Tensor
    correct_sums: Tensor

    def __init__(
        self,
        n_bins: int = DEFAULT_N_BINS,
        *,
        kind: Kind,
        norm: Literal["expected", "maximum"] = "expected",
        **kwargs: Any,
    ) -> None:
        super().__init__(kind=kind, **kwargs)
        if norm not in ("expected", "maximum"):
            raise invalid("norm", "be 'expected' or 'maximum'", repr(norm))
        self.n_bins, self.norm = whole("n_bins", n_bins, 1), norm
        self._add("counts", self.n_bins, dtype=self._counted)
        self._add("confidence_sums", self.n_bins, dtype=torch.float64)
        self._add("correct_sums", self.n_bins, dtype=self._counted)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        confidence, correct = read_batch(scores, targets, self.kind)
        self._add_bins(*accumulate_bins(confidence, correct, self.n_bins, weights))

    def _add_host_batch(self, batch: _HostBatch) -> None:
        confidence, predicted = batch.tops()
        self._add_tops(confidence, predicted == batch.targets, batch.weights, batch.precision)

    def _add_tops(
        self, confidence: NDArray[Any], correct: NDArray[np.bool_], weights: Floats | None, precision: Precision
    ) -> None:
        edges = bin_edges(self.n_bins, precision)
        counts, sums, *_ = wrong_and_right_sums(confidence, correct, edges, weights)
        right = counts[1::2]
        _add(self.counts, counts[::2] + right)
        _add(self.confidence_sums, sums[::2] + sums[1::2])
        _add(self.correct_sums, right)

    def _add_bins(self, counts: Tensor, confidence_sums: Tensor, correct_sums: Tensor) -> None:
        # In place: to set an attribute of a module costs as much as all of these additions.
        self.counts.add_(counts)
        self.confidence_sums.add_(confidence_sums)
        self.correct_sums.add_(correct_sums)

    def _result(self) -> Tensor:
        gaps = (self.confidence_sums - self.correct_sums).abs()
        if self.norm == "expected":
            return gaps.sum() / self.counts.sum()
        largest = (gaps / torch.where(self.counts > 0, self.counts, 1)).amax()
        return torch.where(self.counts.sum() > 0, largest, torch.nan)


class ConfidentSetMeter(CalibrationError):
    """The paper's high-confidence set S: rows with confidence >= threshold.

    Args:
        threshold: Least confidence of the set.
        what: "share" (|S| / n), "accuracy" of S, or "ece" of S over equal-width bins on [0, 1].
        n_bins: Number of bins of the ECE.
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    higher_is_better = None  # it depends on `what`, and torchmetrics wants one answer per class
    rows: Tensor

    def __init__(
        self,
        threshold: float = 0.95,
        what: Literal["share", "accuracy", "ece"] = "share",
        *,
        kind: Kind,
        n_bins: int = DEFAULT_N_BINS,
        **kwargs: Any,
    ) -> None:
        super().__init__(n_bins, kind=kind, **kwargs)
        if what not in ("share", "accuracy", "ece"):
            raise invalid("what", "be 'share', 'accuracy' or 'ece'", repr(what))
        self.threshold, self.what = fraction("thresholds", threshold, ends=True), what
        self._add("rows", dtype=self._counted)
        self._set_apart(f"above_{self.threshold!r}")

    def _add_host_batch(self, batch: _HostBatch) -> None:
        confidence, predicted = batch.tops()
        inside = confidence >= rounded(np.asarray([self.threshold]), batch.precision)
        correct, weights = predicted == batch.targets, batch.weights
        if weights is not None:
            weights = weights[inside]
        self._add_tops(confidence[inside], correct[inside], weights, batch.precision)
        _add(self.rows, batch.size)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        confidence, correct = read_batch(scores, targets, self.kind)
        self.rows += _size(targets, weights)
        inside = confidence >= torch.full_like(confidence, self.threshold)
        if weights is not None:
            inside_weights = torch.where(inside, weights, 0.0)
            self._add_bins(*accumulate_bins(confidence, correct, self.n_bins, inside_weights))
            return
        # A fixed shape: rows outside the set go into the first bin with confidence 0, and out of its count again.
        kept = torch.where(inside, confidence, 0)
        counts, confidence_sums, correct_sums = accumulate_bins(kept, correct & inside, self.n_bins)
        counts[0] -= (~inside).sum()
        self._add_bins(counts, confidence_sums, correct_sums)

    def _result(self) -> Tensor:
        if self.what == "share":
            return self.counts.sum().to(torch.float64) / self.rows
        if self.what == "accuracy":
            return self.correct_sums.sum().to(torch.float64) / self.counts.sum()
        return super()._result()


class ClasswiseCalibrationError(Meter):
    """Class-wise ECE: the mean over `n_classes` classes of the ECE of that class's probability; see `Meter`."""

    rows: Tensor
    gap_sums: Tensor

    def __init__(self, n_classes: int, n_bins: int = DEFAULT_N_BINS, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self.n_classes, self.n_bins = whole("n_classes", n_classes, 1), whole("n_bins", n_bins, 1)
        self._add("rows", dtype=self._counted)
        self._add("gap_sums", self.n_bins, self.n_classes, dtype=torch.float64)

    def update(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch; see `Meter.update`."""
        _check_form(scores, targets, self.kind)
        if scores.shape[1] != self.n_classes:
            raise invalid(self.kind, f"have {self.n_classes} columns", f"shape {tuple(scores.shape)}")
        super().update(scores, targets, weights)

    def _add_host_batch(self, batch: _HostBatch) -> None:
        for chunk in batch.chunks(self.n_bins):
            _add(self.gap_sums, class_gaps(chunk))
        _add(self.rows, batch.size)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        probabilities = _probabilities(scores, self.kind)
        gaps = _minus_target(probabilities, targets)
        if weights is not None:
            gaps = gaps * weights.unsqueeze(1)
        precision = torch.float64 if self.kind == "logits" else scores.dtype
        self.gap_sums += add_bin_by_bin(probabilities, gaps, device_edges(self.n_bins, precision, scores.device))
        self.rows += _size(targets, weights)

    def _result(self) -> Tensor:
        return self.gap_sums.abs().sum() / (self.rows * self.n_classes)


class _MeanOfRows(Meter):
    """The mean of a value per row; arguments as for `Meter`."""

    rows: Tensor
    total: Tensor

    def __init__(self, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self._add("rows", dtype=self._counted)
        self._add("total", dtype=torch.float64)
        self._set_apart(f"of_{type(self).__name__}")

    def _result(self) -> Tensor:
        return self.total / self.rows


class NegativeLogLikelihood(_MeanOfRows):
    """Mean of minus the log probability of the target, in nats; arguments as for `Meter`."""

    def _add_host_batch(self, batch: _HostBatch) -> None:
        _add(self.total, weighted_sum(batch.rows().nll, batch.weights))
        _add(self.rows, batch.size)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        # A wrong label on a device was counted as refused; here it only must not index out of bounds.
        inside = targets.to(torch.int64).clamp(0, scores.shape[1] - 1).unsqueeze(1)
        of_target = scores.gather(1, inside).squeeze(1).to(torch.float64)
        if self.kind == "logits":
            of_target = of_target - scores.to(torch.float64).logsumexp(dim=1)
        else:
            of_target = of_target.clamp(max=1.0).log()
        if weights is not None:  # minus infinity times a weight of 0 would be NaN
            of_target = torch.where(weights > 0, of_target, 0.0) * weights
        self.total -= of_target.sum()
        self.rows += _size(targets, weights)


class BrierScore(_MeanOfRows):
    """Mean over rows of the squared distance to the one-hot target, summed over classes; arguments as for `Meter`."""

    def _add_host_batch(self, batch: _HostBatch) -> None:
        for chunk in batch.chunks():
            _add(self.total, weighted_sum(squared_distance(chunk), chunk.weights))
        _add(self.rows, batch.size)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        squares = _minus_target(_probabilities(scores, self.kind), targets).square()
        if weights is not None:
            squares = squares.sum(dim=1) * weights
        self.total += squares.sum()
        self.rows += _size(targets, weights)


def _size(targets: Tensor, weights: Tensor | None) -> int | Tensor:
    return len(targets) if weights is None else weights.sum()


def read_batch(scores: Tensor, targets: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of a batch on its device; logits are taken through a float64 softmax.

    Probabilities keep their type, so that the edges of bins and thresholds can be rounded to it.
    """
    top, predicted = scores.max(dim=1)
    correct = predicted == targets
    if kind == "probabilities":
        return top.clamp(max=1.0), correct
    powers = (scores.to(torch.float64) - top.to(torch.float64).unsqueeze(1)).exp_()
    return powers.sum(dim=1).reciprocal_(), correct


def _probabilities(scores: Tensor, kind: Kind) -> Tensor:
    wide = scores.to(torch.float64)
    return wide.softmax(dim=1) if kind == "logits" else wide


def _minus_target(probabilities: Tensor, targets: Tensor) -> Tensor:
    classes = torch.arange(probabilities.shape[1], device=probabilities.device)
    return probabilities - (targets.unsqueeze(1) == classes).to(torch.float64)


def add_bin_by_bin(probabilities: Tensor, gaps: Tensor, edges: Tensor) -> Tensor:
    """Sums of the gaps of each class over bins, shape (n_bins, K).

    It takes as many passes as bins, with fixed shapes and the same order of additions on every run.
    """
    sums, low = [], edges.new_full((), -1.0)
    for high in [*edges, edges.new_full((), torch.inf)]:
        sums.append(torch.where((probabilities > low) & (probabilities <= high), gaps, 0.0).sum(dim=0))
        low = high
    return torch.stack(sums)


def _fine_weights(weights: Tensor) -> Tensor:
    """Which weights are finite and not negative, on their device."""
    return torch.isfinite(weights) & (weights >= 0)


def _check_form(scores: Tensor, targets: Tensor, kind: Kind) -> None:
    """Check shapes and types, which are known without waiting for the device."""
    if (
        isinstance(scores, Tensor)
        and isinstance(targets, Tensor)
        and scores.layout == targets.layout == torch.strided
        and scores.ndim == 2
        and scores.shape[0] > 0
        and scores.shape[1] > 1
        and scores.dtype in _PRECISIONS
        and targets.dtype == torch.int64
        and targets.shape == scores.shape[:1]
    ):
        return
    require_tensor(kind, scores)
    require_tensor("targets", targets)
    if scores.ndim != 2 or len(scores) == 0 or scores.shape[1] < 2:
        rule = "have shape (n, K) with at least one row and two classes"
        raise invalid(kind, rule, f"shape {tuple(scores.shape)}", _as_rows(scores.shape, targets.shape, kind))
    if scores.dtype not in _PRECISIONS:
        raise invalid(kind, "hold floating-point numbers", f"dtype {scores.dtype}")
    labels("targets", targets, rows=len(scores))


def _as_rows(scores: torch.Size, targets: torch.Size, kind: Kind) -> str:
    """How to get one row per prediction from scores of another shape; empty if that is not known."""
    if scores in (targets, (*targets, 1)) and len(targets) == 1:
        first = "1 - p, p" if kind == "probabilities" else "torch.zeros_like(z), z"
        return f"Of two classes give both: torch.stack([{first}], dim=1), each of shape (n,)."
    if len(scores) < 3:
        return ""
    if targets == (scores[0], *scores[2:]):
        return f"One row per pixel: {kind}.movedim(1, -1).flatten(0, -2) and targets.flatten()."
    if targets == scores[:-1]:
        return f"One row per position: {kind}.flatten(0, -2) and targets.flatten()."
    return ""


def _read_host_batch(scores: Tensor, targets: Tensor, weights: Tensor | None, kind: Kind) -> _HostBatch:
    """Read a batch on the CPU; bad labels and weights are refused."""
    own_weights = None
    if weights is not None:
        if not _fine_weights(weights).all():
            raise invalid("weights", "be finite and not negative", f"{weights.min():g} to {weights.max():g}")
        own_weights = weights.numpy()
    classes, precision = targets.numpy(), _PRECISIONS[scores.dtype]
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()  # NumPy lacks bfloat16 and is slow in float16
    values = scores.contiguous().numpy()
    # Seen without its sign, a negative number is a very large one.
    if np.maximum.reduce(classes.view(np.uint64)) >= values.shape[1]:
        labels("targets", classes, n_classes=values.shape[1])
    if kind == "logits":
        precision = "float64"
    return _HostBatch(kind, values, classes, precision, own_weights)


def bad_rows(scores: Tensor, targets: Tensor, kind: Kind) -> Tensor:
    """Which rows break a rule, on the device."""
    total = scores.sum(dim=1, dtype=torch.float64)
    if kind == "logits":
        fine = torch.isfinite(total)
    else:
        fine = ((total - 1.0).abs() <= SUM_TOLERANCE[_PRECISIONS[scores.dtype]]) & (scores.amin(dim=1) >= 0)
    return ~fine | (targets < 0) | (targets >= scores.shape[1])
