"""Running totals of an epoch, kept on the device; the host reads them once, at the end of the epoch."""

from typing import Any

import torch
from torch import Tensor

from calibrant.distributed import global_sum
from calibrant.integrations.device_bins import accumulate_bins

_BINS = 10
_NEVER = -1


class TrainingMeter:
    """Accuracy, calibration error and loss terms over the epoch's batches, in float64 and integers.

    It uses only in-place tensor operations with fixed shapes, so that a captured step can contain it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.counts = torch.zeros(_BINS, dtype=torch.int64, device=device)
        self.confidence = torch.zeros(_BINS, dtype=torch.float64, device=device)
        self.correct = torch.zeros(_BINS, dtype=torch.int64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self.terms: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Begin an epoch."""
        for total in (self.counts, self.confidence, self.correct, self.steps, *self.terms.values()):
            total.zero_()
        self.first_bad.fill_(_NEVER)

    def update(self, logits: Tensor, targets: Tensor, terms: dict[str, Tensor], total: Tensor) -> None:
        """Add one batch."""
        confidence, predicted = torch.softmax(logits.float(), dim=1).max(dim=1)
        counts, confidence_sums, correct_sums = accumulate_bins(confidence, predicted == targets, _BINS)
        self.counts += counts
        self.confidence += confidence_sums
        self.correct += correct_sums
        for name, value in terms.items():
            if name not in self.terms:
                self.terms[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            # A loss term is already that of the global batch; weighting by the local size makes the mean exact.
            self.terms[name] += value.detach().double() * len(targets)
        bad = ~torch.isfinite(total)
        self.first_bad.copy_(torch.where(bad & (self.first_bad == _NEVER), self.steps, self.first_bad))

    def count_step(self) -> None:
        """One optimiser step is done."""
        self.steps += 1

    def read(self) -> dict[str, Any]:
        """The epoch's figures over all ranks (waits for the device)."""
        packed = torch.cat([self.counts.double(), self.confidence, self.correct.double()])
        packed = torch.cat([packed, *(value.reshape(1) for value in self.terms.values())])
        totals = global_sum(packed).cpu()
        counts, confidence, correct = totals[: 3 * _BINS].view(3, _BINS)
        samples = float(counts.sum())
        terms = {name: float(v) / samples for name, v in zip(self.terms, totals[3 * _BINS :], strict=True)}
        return {
            "samples": int(samples),
            "loss": sum(terms.values()),
            "terms": terms,
            "accuracy": float(correct.sum()) / samples,
            "confidence": float(confidence.sum()) / samples,
            "ece": float((confidence - correct).abs().sum() / samples),
        }

    def first_bad_step(self) -> int | None:
        """Number of the first step of the epoch with a non-finite loss, or None."""
        step = int(self.first_bad)
        return None if step == _NEVER else step
