"""One minibatch as every loss sees it: checked, in float32, each intermediate result computed once."""

import torch
from torch import Tensor

from calibrant.checks import labels, require_tensor
from calibrant.errors import invalid
from calibrant.losses.distributed import is_distributed
from calibrant.losses.functional import pick

_TWO_LOGITS = "One logit z of a binary classifier is the same as two: torch.cat([torch.zeros_like(z), z], dim=1)."


class Batch:
    """Logits, targets and weights of a minibatch, with what several losses share computed on first use.

    Args:
        logits: `[B, K]`, any floating type; float64 stays, all else becomes float32.
        targets: `[B]`, integers in 0..K-1.
        weights: `[B]`, not negative; None means 1 each.
        validate: Check values on an accelerator too, which makes the host wait for it.
    """

    def __init__(self, logits: Tensor, targets: Tensor, weights: Tensor | None, *, validate: bool = False) -> None:
        check(logits, targets, weights, validate=validate)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        self.logits = logits.to(dtype)
        self.targets = targets.long()
        self.weights = None if weights is None else weights.to(dtype)
        self.size = logits.shape[0]
        self._log_probabilities: Tensor | None = None
        self._probabilities: Tensor | None = None
        self._true_log: Tensor | None = None
        self._top: tuple[Tensor, Tensor] | None = None

    @property
    def log_probabilities(self) -> Tensor:
        """`[B, K]`; finite for every finite logit, where `log(softmax)` would underflow to minus infinity."""
        if self._log_probabilities is None:
            self._log_probabilities = torch.log_softmax(self.logits, dim=1)
        return self._log_probabilities

    @property
    def probabilities(self) -> Tensor:
        """`[B, K]`. A second softmax costs no more than `exp` of the first and its extra gradient."""
        if self._probabilities is None:
            self._probabilities = torch.softmax(self.logits, dim=1)
        return self._probabilities

    @property
    def true_log(self) -> Tensor:
        """Log-probability of the true class, `[B]`."""
        if self._true_log is None:
            self._true_log = pick(self.log_probabilities, self.targets)
        return self._true_log

    @property
    def top(self) -> tuple[Tensor, Tensor]:
        """Confidence (the largest probability) and whether that class is the true one (1 or 0), each `[B]`."""
        if self._top is None:
            largest, predicted = self.log_probabilities.max(dim=1)
            self._top = largest.exp(), (predicted == self.targets).to(largest.dtype)
        return self._top

    def weighted_sum(self, losses: Tensor) -> Tensor:
        """`sum_i w_i l_i`, shape `[1]`."""
        return (losses if self.weights is None else losses * self.weights).sum().reshape(1)


def check(logits: Tensor, targets: Tensor, weights: Tensor | None, *, validate: bool = False) -> None:
    """Refuse what no loss can be computed from; values are looked at on the CPU, or where `validate` asks for it."""
    require_tensor("logits", logits)
    require_tensor("targets", targets)
    if is_distributed() and logits.shape[:1] == targets.shape == (0,):
        return  # of a batch with fewer samples than processes some get none, and take part in the sums all the same
    _check_shapes(logits, targets, weights)
    if torch.compiler.is_compiling() or not (validate or logits.device.type == "cpu"):
        return
    try:
        _check_values(logits.shape[1], targets, weights)
    except RuntimeError:  # inside torch.func.vmap, or while a graph is traced, there are no values to look at
        if validate:
            raise


def _check_values(n_classes: int, targets: Tensor, weights: Tensor | None) -> None:
    labels("targets", targets, n_classes=n_classes)
    if weights is None:
        return
    fine = (weights >= 0) & torch.isfinite(weights)
    if not bool(fine.all()):
        row = int((~fine).int().argmax())
        raise invalid("weights", "be finite and not negative", f"{weights[row].item()} in row {row}")


def _check_shapes(logits: Tensor, targets: Tensor, weights: Tensor | None) -> None:
    if logits.ndim != 2 or not logits.is_floating_point():
        found = f"{logits.dtype} {tuple(logits.shape)}"
        way_out = _as_rows(logits.shape, targets.shape)
        raise invalid("logits", "be floating point of shape [batch, classes]", found, way_out)
    n, n_classes = logits.shape
    if n == 0:
        raise invalid("logits", "hold at least one sample", "an empty batch", "Skip empty batches before the loss.")
    if n_classes < 2:
        raise invalid("logits", "have at least 2 classes", n_classes, _TWO_LOGITS)
    labels("targets", targets, rows=n)
    if weights is None:
        return
    require_tensor("weights", weights)
    if not weights.is_floating_point() or weights.shape != (n,):
        found = f"{weights.dtype} {tuple(weights.shape)}"
        raise invalid("weights", f"be floating point of shape [{n}] like the rows of logits", found)


def _as_rows(logits: torch.Size, targets: torch.Size) -> str:
    """How to get one row per prediction from logits of another shape; empty where the shapes do not say."""
    if len(logits) == 1 and targets == logits:
        return "A binary classifier has two logits: torch.stack([torch.zeros_like(z), z], dim=1)."
    if len(logits) < 3:
        return ""
    if targets == (logits[0], *logits[2:]):
        return "One row per pixel: loss(logits.movedim(1, -1).flatten(0, -2), targets.flatten())."
    return "One row per position: loss(logits.flatten(0, -2), targets.flatten())." if targets == logits[:-1] else ""
