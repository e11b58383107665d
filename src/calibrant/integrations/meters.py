"""Meters for training loops: torchmetrics `Metric`s of constant size that merge by addition.

Counts are int64 and sums float64, so a meter is exact however many batches and ranks feed it. Every batch is added on
the device that holds it, with fixed shapes. On a GPU nothing waits for the device.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from calibrant.checks import fraction, whole
from calibrant.defaults import DEFAULT_N_BINS, Kind
from calibrant.errors import InvalidInput, importing, invalid
from calibrant.integrations.on_device import accumulate_bins, device_edges
from calibrant.losses.base import check_shapes
from calibrant.predictions import Predictions
from calibrant.predictions.rows import SUM_TOLERANCE, Precision

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
        if self.weighted != (weights is not None):
            rule = "be given to every update of a meter with weighted=True, and to no other"
            raise invalid("weights", rule, "none" if weights is None else "some")
        check_shapes(scores, targets, weights, name=self.kind)
        scores, targets = scores.detach(), targets.long()
        if weights is None:
            weights = torch.ones_like(targets)
        weights = weights.detach().double()
        bad = bad_rows(scores, targets, self.kind)
        bad_weights = ~(torch.isfinite(weights) & (weights >= 0))
        if scores.device.type != "cpu":
            self.refused += (bad | bad_weights).sum()
        elif bad_weights.any():
            raise invalid("weights", "be finite and not negative", f"{weights.min():g} to {weights.max():g}")
        elif bad.any():
            getattr(Predictions, f"from_{self.kind}")(scores, targets)  # names the row, the value and the way out
        self._add_batch(scores, targets, weights)

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

    def _count(self, weights: Tensor) -> Tensor:
        """The sum of weights; without weights, an exact number of rows."""
        return weights.sum().to(self._counted)

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add a batch on its own device: fixed shapes, no synchronisation, the same bits on every run."""
        raise NotImplementedError

    def _result(self) -> Tensor:
        raise NotImplementedError


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

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor) -> None:
        self._add_tops(*read_batch(scores, targets, self.kind), weights)

    def _add_tops(self, confidence: Tensor, correct: Tensor, weights: Tensor) -> None:
        counts, confidence_sums, correct_sums = accumulate_bins(confidence, correct, self.n_bins, weights)
        self.counts += counts.to(self._counted)
        self.confidence_sums += confidence_sums
        self.correct_sums += correct_sums.to(self._counted)

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

    def _add_tops(self, confidence: Tensor, correct: Tensor, weights: Tensor) -> None:
        self.rows += self._count(weights)
        # A fixed shape: rows outside the set weigh nothing.
        inside = confidence >= torch.full_like(confidence, self.threshold)
        super()._add_tops(confidence, correct, torch.where(inside, weights, 0.0))

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

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor) -> None:
        if scores.shape[1] != self.n_classes:
            raise invalid(self.kind, f"have {self.n_classes} columns", f"shape {tuple(scores.shape)}")
        probabilities = _probabilities(scores, self.kind)
        gaps = _minus_target(probabilities, targets) * weights.unsqueeze(1)
        precision = torch.float64 if self.kind == "logits" else scores.dtype
        self.gap_sums += sums_by_bin(probabilities, gaps, device_edges(self.n_bins, precision, scores.device))
        self.rows += self._count(weights)

    def _result(self) -> Tensor:
        return self.gap_sums.abs().sum() / (self.rows * self.n_classes)


class NegativeLogLikelihood(Meter):
    """Mean of minus the log probability of the target, in nats; arguments as for `Meter`."""

    rows: Tensor
    total: Tensor

    def __init__(self, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self._add("rows", dtype=self._counted)
        self._add("total", dtype=torch.float64)
        self._set_apart(f"of_{type(self).__name__}")

    def _add_batch(self, scores: Tensor, targets: Tensor, weights: Tensor) -> None:
        losses = self._losses(scores, targets)
        # Infinity times a weight of 0 would be NaN.
        self.total += (torch.where(weights > 0, losses, 0.0) * weights).sum()
        self.rows += self._count(weights)

    def _losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        # A wrong label on a device was counted as refused; here it only must not index out of bounds.
        inside = targets.clamp(0, scores.shape[1] - 1).unsqueeze(1)
        of_target = scores.gather(1, inside).squeeze(1).double()
        if self.kind == "logits":
            return scores.double().logsumexp(dim=1) - of_target
        return -of_target.clamp(max=1.0).log()

    def _result(self) -> Tensor:
        return self.total / self.rows


class BrierScore(NegativeLogLikelihood):
    """Mean over rows of the squared distance to the one-hot target, summed over classes; arguments as for `Meter`."""

    def _losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        return _minus_target(_probabilities(scores, self.kind), targets).square().sum(dim=1)


def read_batch(scores: Tensor, targets: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of a batch on its device; logits are taken through a float64 softmax.

    Probabilities keep their type, so that the edges of bins and thresholds can be rounded to it.
    """
    top, predicted = scores.max(dim=1)
    correct = predicted == targets
    if kind == "probabilities":
        return top.clamp(max=1.0), correct
    powers = (scores.double() - top.double().unsqueeze(1)).exp_()
    return powers.sum(dim=1).reciprocal_(), correct


def _probabilities(scores: Tensor, kind: Kind) -> Tensor:
    wide = scores.double()
    return wide.softmax(dim=1) if kind == "logits" else wide


def _minus_target(probabilities: Tensor, targets: Tensor) -> Tensor:
    classes = torch.arange(probabilities.shape[1], device=probabilities.device)
    return probabilities - (targets.unsqueeze(1) == classes).double()


def sums_by_bin(probabilities: Tensor, gaps: Tensor, edges: Tensor) -> Tensor:
    """Sum the gaps of each class over bins, shape (n_bins, K).

    As many passes as bins, but with fixed shapes and the same order of additions on every run.
    """
    sums, low = [], edges.new_full((), -1.0)
    for high in [*edges, edges.new_full((), torch.inf)]:
        sums.append(torch.where((probabilities > low) & (probabilities <= high), gaps, 0.0).sum(dim=0))
        low = high
    return torch.stack(sums)


def bad_rows(scores: Tensor, targets: Tensor, kind: Kind) -> Tensor:
    """Which rows break a rule, on the device."""
    total = scores.sum(dim=1, dtype=torch.float64)
    if kind == "logits":
        fine = torch.isfinite(total)
    else:
        fine = ((total - 1.0).abs() <= SUM_TOLERANCE[_PRECISIONS[scores.dtype]]) & (scores.amin(dim=1) >= 0)
    return ~fine | (targets < 0) | (targets >= scores.shape[1])
