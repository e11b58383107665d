"""Calibration metrics with the interface of Hugging Face's `evaluate`: add, add_batch, compute. Nothing is downloaded.

Neither `evaluate` nor a network is needed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid
from calibrant.metrics import evaluate
from calibrant.predictions import Kind, Predictions


def plain_metrics(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, thresholds: Sequence[float] = (0.95, 0.99)
) -> dict[str, float]:
    """Every metric of `calibrant.evaluate` as a plain number; what is not defined is left out.

    The names are those of `Evaluation.values()`, for example `test_error`, `ece`, `share@0.95`, and `noise_floor`.
    """
    result = evaluate(predictions, n_bins, thresholds=thresholds)
    values = {**result.values(), "noise_floor": result.noise_floor}
    return {name: float(value) for name, value in values.items() if value is not None}


class CalibrationMetric:
    """ECE and its siblings, to be used where a metric of `evaluate.load(...)` is.

    `predictions` are scores, one row of K numbers for each case, because a label alone has no confidence.

    Args:
        kind: What the scores are: "logits" or "probabilities".
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        only: Names of the metrics to return; None for all.

    >>> metric = CalibrationMetric("probabilities", only=["ece", "test_error"])
    >>> metric.compute(predictions=[[0.9, 0.1], [0.2, 0.8]], references=[0, 0])
    {'ece': 0.45..., 'test_error': 0.5}
    """

    name = "calibrant"

    def __init__(
        self,
        kind: Kind,
        *,
        n_bins: int = DEFAULT_N_BINS,
        thresholds: Sequence[float] = (0.95, 0.99),
        only: Sequence[str] | None = None,
    ) -> None:
        if kind not in ("logits", "probabilities"):
            raise invalid("kind", "be 'logits' or 'probabilities'", kind)
        self.kind, self.n_bins, self.thresholds, self.only = kind, n_bins, thresholds, only
        self._batches: list[tuple[Any, Any]] = []

    def add(self, *, prediction: Any, reference: Any) -> None:
        """Keep one case."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        """Keep some cases: scores of shape (n, K) and n labels."""
        scores, labels = _array(predictions), _array(references)
        if scores.ndim != 2 or labels.shape != scores.shape[:1]:
            shapes = f"shapes {scores.shape} and {labels.shape}"
            raise invalid("predictions and references", "be (n, K) scores and n labels", shapes)
        self._batches.append((scores, labels))

    def compute(self, *, predictions: Any = None, references: Any = None) -> dict[str, float]:
        """The metrics of these cases, or of all that were added since the last call."""
        if (predictions is None) != (references is None):
            raise invalid("predictions and references", "be given together", "one of them")
        if predictions is not None:
            self.add_batch(predictions=predictions, references=references)
        if not self._batches:
            raise invalid("predictions", "be given, here or with add_batch", "none")
        batches, self._batches = self._batches, []
        scores, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
        make = Predictions.from_logits if self.kind == "logits" else Predictions.from_probabilities
        found = plain_metrics(make(scores, labels), self.n_bins, thresholds=self.thresholds)
        if self.only is None:
            return found
        return {name: found[name] for name in self.only if name in found}


def _array(values: Any) -> Any:
    """Arrays, lists and tensors on any device."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
    return np.asarray(values)
