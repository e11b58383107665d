"""What all meters share: the checks of a batch, and sums that stay exact wherever the network goes."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from calibrant.checks import labels, require_tensor
from calibrant.errors import InvalidInput, importing, invalid
from calibrant.predictions import SUM_TOLERANCE, Kind, Precision, Predictions

with importing("a meter", "torchmetrics", "train"):
    from torchmetrics import Metric

PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


class Meter(Metric):
    """The kind of scores, the rules for a batch, and the count of rows on a device that broke them.

    Args:
        kind: What `update` is given: "logits" or "probabilities". It is never guessed.
        weighted: Whether `update` is given importance weights too; then what was counted in whole rows is a sum of
            weights in float64.
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
        """Keep a `MetricCollection` from taking this meter for another one.

        It lets meters share states whose names agree and whose values agree after the first batch: two thresholds
        that no row has reached yet would be one for ever. So one more state, always 0, has a name that differs.
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
        check_form(scores, targets, self.kind)
        scores = scores.detach()
        own = self._check_weights(weights, targets)
        if scores.device.type == "cpu":
            if own is not None and not fine_weights(own).all():
                raise invalid("weights", "be finite and not negative", f"{own.min():g} to {own.max():g}")
            self._add_host(scores, targets, own)
        else:
            bad = bad_rows(scores, targets, self.kind)
            self.refused += (bad if own is None else bad | ~fine_weights(own)).sum()
            self._add_device(scores, targets, own)

    def _check_weights(self, weights: Tensor | None, targets: Tensor) -> Tensor | None:
        """Weights in float64, where they are asked for and of the right shape: known without waiting for the device."""
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
        """Go where the network goes, but count on in int64 and float64 when it is cast.

        torchmetrics sees to that for `half()` and the like, but not for `to(dtype)`, which Lightning's bf16-true calls.
        """

        def moved(value: Tensor) -> Tensor:
            result = fn(value)
            return result if result.dtype == value.dtype else value.to(result.device)

        super()._apply(moved, exclude_state)
        return self

    def compute(self) -> Tensor:
        """The metric over everything seen, a float64 scalar; NaN before the first row."""
        if self.refused > 0:
            rules = "finite scores, probabilities that sum to 1, labels in 0..K-1, weights that are not negative"
            raise InvalidInput(f"{self.kind} must obey the rules ({rules}), got {int(self.refused)} rows that do not.")
        return self._result()

    def _add_host(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Refuse a batch on the CPU, or add it."""
        if bad_rows(scores, targets, self.kind).any():
            # This names the row, the value and the way out.
            getattr(Predictions, f"from_{self.kind}")(scores, targets)
        self._add_device(scores, targets, weights)

    def _add_device(self, scores: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Add a batch on its own device: fixed shapes, no synchronisation, the same bits on every run."""
        raise NotImplementedError

    def _result(self) -> Tensor:
        raise NotImplementedError


def fine_weights(weights: Tensor) -> Tensor:
    """Which weights are finite and not negative, on their device."""
    return torch.isfinite(weights) & (weights >= 0)


def check_form(scores: Tensor, targets: Tensor, kind: Kind) -> None:
    """Shapes and types: known without waiting for the device."""
    require_tensor(kind, scores)
    require_tensor("targets", targets)
    if scores.ndim != 2 or len(scores) == 0 or scores.shape[1] < 2:
        rule = "have shape (n, K) with at least one row and two classes"
        raise invalid(kind, rule, f"shape {tuple(scores.shape)}", _as_rows(scores.shape, targets.shape, kind))
    if scores.dtype not in PRECISIONS:
        raise invalid(kind, "hold floating-point numbers", f"dtype {scores.dtype}")
    labels("targets", targets, rows=len(scores))


def _as_rows(scores: torch.Size, targets: torch.Size, kind: Kind) -> str:
    """How to get one row a prediction from scores of another shape; empty where it cannot be told."""
    if scores in (targets, (*targets, 1)) and len(targets) == 1:
        first = "1 - p, p" if kind == "probabilities" else "torch.zeros_like(z), z"
        return f"Of two classes give both: torch.stack([{first}], dim=1), each of shape (n,)."
    if len(scores) < 3:
        return ""
    if targets == (scores[0], *scores[2:]):
        return f"One row a pixel: {kind}.movedim(1, -1).flatten(0, -2) and targets.flatten()."
    return f"One row a position: {kind}.flatten(0, -2) and targets.flatten()." if targets == scores[:-1] else ""


def bad_rows(scores: Tensor, targets: Tensor, kind: Kind) -> Tensor:
    """Which rows break a rule, on the device."""
    total = scores.sum(dim=1, dtype=torch.float64)
    if kind == "logits":
        fine = torch.isfinite(total)
    else:
        fine = ((total - 1.0).abs() <= SUM_TOLERANCE[PRECISIONS[scores.dtype]]) & (scores.amin(dim=1) >= 0)
    return ~fine | (targets < 0) | (targets >= scores.shape[1])
