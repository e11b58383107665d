"""Meters for training loops: torchmetrics `Metric`s of constant size that merge by addition.

Counts are int64 and sums float64, so a meter is exact however many batches and ranks feed it. A batch on the CPU goes
through the same code as `Predictions`: the first and every large one at once, small ones together, when half a million
entries wait or a state is read. What breaks a rule is refused on the spot, with one exception: rows of probabilities
that do not sum to 1, in a small batch after the first, are found when their turn comes, in `compute` at the latest. A
batch on a GPU stays there: fixed shapes, no synchronisation; rows that break a rule are counted, and `compute` refuses.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import whole
from calibrant.errors import invalid
from calibrant.metrics.binning import (
    DEFAULT_N_BINS,
    Bins,
    accumulate_bins,
    bin_edges,
    check_bins,
    device_edges,
    rounded,
    sum_bins,
)
from calibrant.metrics.confident import check_threshold
from calibrant.metrics.meter import HostBatch, Meter, State, check_form
from calibrant.metrics.totals import minus_target, sum_gaps
from calibrant.predictions import Kind


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

    counts = State()
    confidence_sums = State()
    correct_sums = State()
    _tops_only = True

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
        self._add("counts", self.n_bins, dtype=torch.int64)
        self._add("confidence_sums", self.n_bins, dtype=torch.float64)
        self._add("correct_sums", self.n_bins, dtype=torch.int64)

    def _add_host(self, batch: HostBatch) -> None:
        self._add_bins(sum_bins(*batch.confidence, bin_edges(self.n_bins, batch.edge_precision)))

    def _add_bins(self, bins: Bins) -> None:
        for state, sums in (
            (self.counts, bins.count),
            (self.confidence_sums, bins.confidence_sum),
            (self.correct_sums, bins.correct_sum),
        ):
            total = state.numpy()  # the same memory
            total += sums

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        counts, confidence_sums, correct_sums = accumulate_bins(*read_batch(scores, targets, self.kind), self.n_bins)
        self.counts += counts
        self.confidence_sums += confidence_sums
        self.correct_sums += correct_sums

    def _result(self) -> Tensor:
        gaps = (self.confidence_sums - self.correct_sums).abs()
        if self.norm == "expected":
            return gaps.sum() / self.counts.sum()
        largest = (gaps / self.counts.clamp(min=1)).amax()
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

    higher_is_better = None  # it depends on `what`, and torchmetrics wants one answer a class
    rows = State()

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
        self._add("rows", dtype=torch.int64)
        self._set_apart(f"above_{self.threshold!r}")

    def _add_host(self, batch: HostBatch) -> None:
        confidence, correct = batch.confidence
        chosen = confidence >= rounded(np.asarray([self.threshold]), batch.edge_precision)
        edges = bin_edges(self.n_bins, batch.edge_precision)
        self._add_bins(sum_bins(confidence[chosen], correct[chosen], edges))
        self.rows += len(chosen)

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        confidence, correct = read_batch(scores, targets, self.kind)
        self.rows += len(targets)
        # A fixed shape: rows outside the set go into the first bin with confidence 0, and out of its count again.
        inside = confidence >= torch.full_like(confidence, self.threshold)
        kept = torch.where(inside, confidence, 0)
        counts, confidence_sums, correct_sums = accumulate_bins(kept, correct & inside, self.n_bins)
        counts[0] -= (~inside).sum()
        self.counts += counts
        self.confidence_sums += confidence_sums
        self.correct_sums += correct_sums

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

    rows = State()
    gap_sums = State()

    def __init__(self, n_classes: int, n_bins: int = DEFAULT_N_BINS, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self._pending.classes = whole("n_classes", n_classes, 1)
        self.n_classes, self.n_bins = n_classes, check_bins(n_bins)
        self._add("rows", dtype=torch.int64)
        self._add("gap_sums", self.n_bins, n_classes, dtype=torch.float64)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch; see `Meter.update`."""
        check_form(scores, targets, self.kind)
        if scores.shape[1] != self.n_classes:
            raise invalid(self.kind, f"have {self.n_classes} columns", f"shape {tuple(scores.shape)}")
        super().update(scores, targets)

    def _add_host(self, batch: HostBatch) -> None:
        residual = minus_target(batch.probabilities, batch.targets)
        edges = bin_edges(self.n_bins, batch.edge_precision)
        self.gap_sums += torch.from_numpy(sum_gaps(batch.probabilities, residual, edges))
        self.rows += len(residual)

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        probabilities = _probabilities(scores, self.kind)
        gaps = _minus_target(probabilities, targets)
        edges = device_edges(self.n_bins, torch.float64 if self.kind == "logits" else scores.dtype, scores.device)
        # As many passes as bins, but fixed shapes and the same order of additions on every run.
        low = edges.new_full((), -1.0)
        for index, high in enumerate([*edges, edges.new_full((), torch.inf)]):
            member = (probabilities > low) & (probabilities <= high)
            self.gap_sums[index] += torch.where(member, gaps, 0.0).sum(dim=0)
            low = high
        self.rows += len(targets)

    def _result(self) -> Tensor:
        return self.gap_sums.abs().sum() / (self.rows * self.n_classes)


class NegativeLogLikelihood(Meter):
    """Mean of minus the log probability of the target, in nats.

    Args:
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    rows = State()
    total = State()

    def __init__(self, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)
        self._add("rows", dtype=torch.int64)
        self._add("total", dtype=torch.float64)
        self._set_apart(f"of_{type(self).__name__}")

    def _add_host(self, batch: HostBatch) -> None:
        self.total += float(batch.rows.nll.sum())
        self.rows += len(batch.targets)

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        wide = scores.to(torch.float64)
        logs = wide.log_softmax(dim=1) if self.kind == "logits" else wide.clamp(max=1.0).log()
        self.total -= logs.gather(1, _inside(targets, scores.shape[1]).unsqueeze(1)).sum()
        self.rows += len(targets)

    def _result(self) -> Tensor:
        return self.total / self.rows


class BrierScore(NegativeLogLikelihood):
    """Mean over rows of the squared distance to the one-hot target, summed over classes.

    Args:
        kind: "logits" or "probabilities".
        kwargs: See `Meter`.
    """

    def _add_host(self, batch: HostBatch) -> None:
        residual = minus_target(batch.probabilities, batch.targets)
        self.total += float(np.vdot(residual, residual))
        self.rows += len(residual)

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        self.total += _minus_target(_probabilities(scores, self.kind), targets).square().sum()
        self.rows += len(targets)


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
