"""Meters for training loops: torchmetrics `Metric`s of constant size that merge by addition.

Counts are int64 and sums float64, so a meter is exact however many batches and ranks feed it. Every batch is added on
the device where it lies, with fixed shapes and without synchronisation.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.checks import whole
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid
from calibrant.metrics.binning import (
    accumulate_bins,
    bin_edges,
    check_bins,
    device_edges,
    expected_error,
    rounded,
    sum_bins,
)
from calibrant.metrics.confident import check_threshold
from calibrant.metrics.meter import PRECISIONS, Meter, check_form
from calibrant.metrics.totals import sum_gaps
from calibrant.predictions import Kind, Precision, as_targets, check_tops


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
        self.n_bins, self.norm = check_bins(n_bins), norm
        self._add("counts", self.n_bins, dtype=self._counted)
        self._add("confidence_sums", self.n_bins, dtype=torch.float64)
        self._add("correct_sums", self.n_bins, dtype=self._counted)

    def _add_host(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            super()._add_host(scores, targets, weights)
            return
        # The code that reads `Predictions` checks a batch and finds its confidences in one pass: for 1,024 rows it
        # takes half the time of the steps in `_add_device`, for 1,000 classes a quarter.
        precision = PRECISIONS[scores.dtype]
        values = (scores.float() if precision == "bfloat16" else scores).numpy()
        labels = as_targets(targets, *scores.shape)
        confidence, predicted = check_tops(values, labels, self.kind, precision)
        self._add_tops(confidence, predicted == labels, precision if self.kind == "probabilities" else "float64")

    def _add_tops(self, confidence: NDArray[Any], correct: NDArray[np.bool_], precision: Precision) -> None:
        bins = sum_bins(confidence, correct, bin_edges(self.n_bins, precision))
        self._add_bins(*map(torch.from_numpy, (bins.count, bins.confidence_sum, bins.correct_sum)))

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        self._add_bins(*accumulate_bins(*read_batch(scores, targets, self.kind), self.n_bins, weights))

    def _add_bins(self, counts: Tensor, confidence_sums: Tensor, correct_sums: Tensor) -> None:
        self.counts += counts
        self.confidence_sums += confidence_sums
        self.correct_sums += correct_sums

    def _result(self) -> Tensor:
        gaps = self.confidence_sums - self.correct_sums
        if self.norm == "expected":
            return expected_error(gaps, self.counts.sum())
        largest = (gaps.abs() / torch.where(self.counts > 0, self.counts, 1)).amax()
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
        self.threshold, self.what = check_threshold(threshold), what
        self._add("rows", dtype=self._counted)
        self._set_apart(f"above_{self.threshold!r}")

    def _add_host(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        super()._add_host(scores, targets, weights)
        if weights is None:  # else `_add_device` has counted them
            self.rows += len(targets)

    def _add_tops(self, confidence: NDArray[Any], correct: NDArray[np.bool_], precision: Precision) -> None:
        inside = confidence >= rounded(np.asarray([self.threshold]), precision)
        super()._add_tops(confidence[inside], correct[inside], precision)

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        confidence, correct = read_batch(scores, targets, self.kind)
        self.rows += _size(targets, weights)
        if weights is not None:
            own = torch.where(confidence >= torch.full_like(confidence, self.threshold), weights, 0.0)
            self._add_bins(*accumulate_bins(confidence, correct, self.n_bins, own))
            return
        # A fixed shape: rows outside the set go into the first bin with confidence 0, and out of its count again.
        inside = confidence >= torch.full_like(confidence, self.threshold)
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
    """Class-wise ECE: the mean over classes of the ECE of that class's probability.

    Args:
        n_classes: Number of classes K.
        n_bins: Number of bins on [0, 1].
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    rows: Tensor
    gap_sums: Tensor

    def __init__(self, n_classes: int, n_bins: int = DEFAULT_N_BINS, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self.n_classes, self.n_bins = whole("n_classes", n_classes, 1), check_bins(n_bins)
        self._add("rows", dtype=self._counted)
        self._add("gap_sums", self.n_bins, self.n_classes, dtype=torch.float64)

    def update(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch; see `Meter.update`."""
        check_form(scores, targets, self.kind)
        if scores.shape[1] != self.n_classes:
            raise invalid(self.kind, f"have {self.n_classes} columns", f"shape {tuple(scores.shape)}")
        super().update(scores, targets, weights)

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        probabilities = _probabilities(scores, self.kind)
        gaps = _minus_target(probabilities, targets)
        gaps = gaps if weights is None else gaps * weights.unsqueeze(1)
        edges = device_edges(self.n_bins, torch.float64 if self.kind == "logits" else scores.dtype, scores.device)
        add = _add_few if scores.device.type == "cpu" else _add_bin_by_bin
        self.gap_sums += add(probabilities, gaps, edges)
        self.rows += _size(targets, weights)

    def _result(self) -> Tensor:
        return expected_error(self.gap_sums.flatten(), self.rows * self.n_classes)


class NegativeLogLikelihood(Meter):
    """Mean of minus the log probability of the target, in nats.

    Args:
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    rows: Tensor
    total: Tensor

    def __init__(self, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self._add("rows", dtype=self._counted)
        self._add("total", dtype=torch.float64)
        self._set_apart(f"of_{type(self).__name__}")

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        wide = scores.to(torch.float64)
        logs = wide.log_softmax(dim=1) if self.kind == "logits" else wide.clamp(max=1.0).log()
        of_target = logs.gather(1, _inside(targets, scores.shape[1]).unsqueeze(1))
        if weights is not None:  # minus infinity times a weight of 0 would be NaN
            of_target = torch.where(weights > 0, of_target.squeeze(1), 0.0) * weights
        self.total -= of_target.sum()
        self.rows += _size(targets, weights)

    def _result(self) -> Tensor:
        return self.total / self.rows


class BrierScore(NegativeLogLikelihood):
    """Mean over rows of the squared distance to the one-hot target, summed over classes.

    Args:
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        squares = _minus_target(_probabilities(scores, self.kind), targets).square()
        self.total += (squares if weights is None else squares.sum(dim=1) * weights).sum()
        self.rows += _size(targets, weights)


def _size(targets: Tensor, weights: Tensor | None) -> int | Tensor:
    return len(targets) if weights is None else weights.sum()


def read_batch(scores: Tensor, targets: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of a batch on its device; logits are taken through a float64 softmax.

    Probabilities keep their type, so that the edges of bins and thresholds can be rounded to it.
    """
    top, predicted = scores.max(dim=1, keepdim=True)
    correct = predicted.squeeze(1) == targets
    if kind == "probabilities":
        return top.squeeze(1).clamp(max=1.0), correct
    powers = (scores.to(torch.float64) - top.to(torch.float64)).exp_()
    return powers.sum(dim=1).reciprocal_(), correct


def _probabilities(scores: Tensor, kind: Kind) -> Tensor:
    wide = scores.to(torch.float64)
    return wide.softmax(dim=1) if kind == "logits" else wide


def _minus_target(probabilities: Tensor, targets: Tensor) -> Tensor:
    classes = torch.arange(probabilities.shape[1], device=probabilities.device)
    return probabilities - (targets.unsqueeze(1) == classes).to(torch.float64)


def _inside(targets: Tensor, classes: int) -> Tensor:
    # A wrong label has been counted as refused; here it only must not index out of bounds.
    return targets.to(torch.int64).clamp(0, classes - 1)


def _add_few(probabilities: Tensor, gaps: Tensor, edges: Tensor) -> Tensor:
    """Sum the gaps of each class over bins, shape (n_bins, K): the code that reads `Predictions`, for the CPU only."""
    ends = edges.new_tensor([0.0]), edges, edges.new_tensor([1.0])
    return torch.from_numpy(sum_gaps(probabilities.numpy(), gaps.numpy(), torch.cat(ends).numpy()))


def _add_bin_by_bin(probabilities: Tensor, gaps: Tensor, edges: Tensor) -> Tensor:
    """The same with as many passes as bins, but with fixed shapes and the same order of additions on every run."""
    sums, low = [], edges.new_full((), -1.0)
    for high in [*edges, edges.new_full((), torch.inf)]:
        sums.append(torch.where((probabilities > low) & (probabilities <= high), gaps, 0.0).sum(dim=0))
        low = high
    return torch.stack(sums)
