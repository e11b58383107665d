"""`Loss`: what every training objective here can do: be called, added, scaled, taken apart for the log.

**The global batch.** Each loss turns its batch into a few local sums, the sums of all parts and the number of samples
travel in one small all-reduce, and the value is computed from the totals. So under `torch.distributed` every rank gets
the value of one process that holds the whole batch. The backward pass sums over ranks too; after
DistributedDataParallel's averaging the parameters receive that one process's gradient, also when ranks hold batches of
unequal size. All ranks must call the loss equally often, and call backward on all or none of them.
"""

import operator
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.checks import labels, not_negative, require_tensor
from calibrant.errors import InvalidInput, invalid
from calibrant.losses.distributed import global_sum, is_distributed


class Batch:
    """Logits `[B, K]`, targets and weights `[B]` of a minibatch, with what several losses share computed on first use.

    float64 stays; every other type becomes float32.
    """

    def __init__(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        check_batch(logits, targets, weights)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        self.logits = logits.to(dtype)
        self.targets = targets.long()
        self.weights = weights
        if weights is not None:
            self.weights = weights.to(dtype)
        self.size = logits.shape[0]
        # Kept by hand, because torch.compile cannot look into functools.cached_property of Python 3.11.
        self._log_probabilities: Tensor | None = None
        self._probabilities: Tensor | None = None
        self._true_log: Tensor | None = None
        self._top: tuple[Tensor, Tensor] | None = None

    @property
    def log_probabilities(self) -> Tensor:
        """`[B, K]`; finite for every finite logit; `log(softmax)` could underflow to minus infinity."""
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
            self._true_log = self.log_probabilities.gather(1, self.targets.unsqueeze(1)).squeeze(1)
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
        if self.weights is not None:
            losses = losses * self.weights
        return losses.sum().reshape(1)


_ROWS = (
    "Flatten dense logits to one row per label. Of a single logit z make two: "
    "torch.stack([torch.zeros_like(z), z], dim=1)."
)


def check_batch(logits: Tensor, targets: Tensor, weights: Tensor | None) -> None:
    """Refuse what no loss can be computed from. Values are looked at on the CPU alone, so no device has to finish."""
    require_tensor("logits", logits)
    require_tensor("targets", targets)
    shape = logits.shape
    if is_distributed() and shape[:1] == targets.shape == (0,):
        return  # of a batch with fewer samples than processes some get none, and take part in the sums all the same
    if not logits.is_floating_point() or len(shape) != 2 or shape[0] == 0 or shape[1] < 2:
        rule = "be floating point of shape [batch, classes], with at least one row and two classes"
        raise invalid("logits", rule, f"{logits.dtype} {tuple(shape)}", _ROWS)
    labels("targets", targets, rows=shape[0])
    if weights is not None:
        require_tensor("weights", weights)
        if not weights.is_floating_point() or weights.shape != shape[:1]:
            rule = f"be floating point of shape [{shape[0]}], one per row"
            raise invalid("weights", rule, f"{weights.dtype} {tuple(weights.shape)}")
    if torch.compiler.is_compiling() or logits.device.type != "cpu":
        return
    # Inside torch.func.vmap, or while a graph is traced, there are no values to look at.
    with suppress(RuntimeError):
        labels("targets", targets, n_classes=shape[1])
        if weights is not None and not bool(((weights >= 0) & torch.isfinite(weights)).all()):
            raise invalid("weights", "be finite and not negative", f"{weights.min():g} to {weights.max():g}")


class Loss(nn.Module):
    """A training objective on logits, mean-reduced over the global batch.

    A subclass gives two methods: `local_sums` (what to add up over all ranks) and `value` (the loss, from the totals).

    >>> from calibrant.losses import Focal, HuberCalibration
    >>> criterion = Focal(gamma=3.0) + 10 * HuberCalibration()
    >>> logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    >>> {name: round(float(value), 4) for name, value in criterion.terms(logits, targets).items()}
    {'focal': 0.2567, 'huber_calibration': 0.0152}
    >>> round(float(criterion(logits, targets)), 4)
    0.2718
    """

    def forward(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss as a scalar.

        Args:
            logits: `[B, K]`. Computed in float32 also under autocast; float64 stays float64.
            targets: Class indices `[B]`, integers in 0..K-1.
            weights: `[B]`, not negative. Per-sample losses become `sum_i w_i l_i / B`: divided by B and not by the sum
                of weights, so that with importance weights 1/(1 - drop) an epoch's gradients add up to those of all
                data, in expectation. Batch statistics ignore them: a weighted mean confidence would no longer be that
                of the batch.
        """
        return reduce(operator.add, self.terms(logits, targets, weights).values())

    def terms(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Each part of the sum, weighted as it enters it; they add up to the loss. Arguments as for the call."""
        batch = Batch(logits, targets, weights)
        parts = self.parts()
        with _full_precision(batch.logits.device.type):
            totals, count = _over_all_ranks([part.local_sums(batch) for part, _ in parts], batch)
            values: dict[str, Tensor] = {}
            for (part, factor), total in zip(parts, totals, strict=True):
                name, number = part.name, 1
                while name in values:  # equal parts: focal, focal_2, focal_3
                    number += 1
                    name = f"{part.name}_{number}"
                values[name] = part.value(total, count, batch) * factor
        return values

    def parts(self) -> list[tuple["Loss", float]]:
        """The single losses in this one, each with the factor that multiplies it."""
        return [(self, 1.0)]

    def local_sums(self, batch: Batch) -> Tensor:  # noqa: ARG002 (a subclass uses it)
        """What has to be added up over all ranks, as a 1-dimensional tensor."""
        raise InvalidInput(
            f"{type(self).__name__} must define local_sums and value. For a loss of single samples, extend "
            "PerSampleLoss and define per_sample(batch)."
        )

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:
        """The scalar loss from the totals over all ranks and the number of samples they hold."""
        raise NotImplementedError

    @property
    def follows_validation(self) -> bool:
        """Whether `after_validation` changes the loss; then `state_dict` holds what it changes."""
        return any(part.follows_validation for part, _ in self.parts() if part is not self)

    def after_validation(self, logits: Tensor, targets: Tensor) -> None:
        """Take note of the logits `[N, K]` and targets `[N]` of the validation part, once after each epoch."""
        for part, _ in self.parts():
            if part is not self:
                part.after_validation(logits, targets)

    @property
    def name(self) -> str:
        """How the log calls this part: `cross_entropy`, `huber_calibration`, `mmce`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __add__(self, other: "Loss") -> "LossSum":
        if not isinstance(other, Loss):
            return NotImplemented
        return LossSum([*self.parts(), *other.parts()])

    def __mul__(self, factor: float) -> "LossSum":
        # float() would also take a tensor, and cut its gradient.
        if not isinstance(factor, int | float | np.number):
            return NotImplemented
        hint = "Every loss here is minimised as it stands; EntropyPenalty is already the negative entropy."
        factor = not_negative("factor of a loss", factor, hint)
        return LossSum([(part, own * factor) for part, own in self.parts()])

    __rmul__ = __mul__


class LossSum(Loss):
    """`a + 2 * b`: one softmax and one all-reduce for all of its parts."""

    summands: nn.ModuleList

    def __init__(self, parts: Sequence[tuple[Loss, float]]) -> None:
        super().__init__()
        self.summands = nn.ModuleList(part for part, _ in parts)
        self.factors = [factor for _, factor in parts]

    def parts(self) -> list[tuple[Loss, float]]:
        """All parts, in the order in which they were added."""
        return list(zip(cast("list[Loss]", list(self.summands)), self.factors, strict=True))


# Asked here and not in every call: torch.compile cannot look into that question on torch 2.11, and would give up.
_KNOW_AUTOCAST = frozenset(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))


def _full_precision(device: str) -> AbstractContextManager[Any]:
    """Autocast switched off, on devices that know it."""
    if device in _KNOW_AUTOCAST or torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _over_all_ranks(sums: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor | int]:
    """Totals and sample count over all ranks, in one all-reduce; unchanged with one process."""
    if not is_distributed():
        return sums, batch.size
    count = batch.logits.new_full((1,), batch.size)
    *totals, count = torch.split(global_sum(torch.cat([*sums, count])), [*(part.shape[0] for part in sums), 1])
    return totals, count.detach().squeeze(0)


def balanced_loss(loss: Loss, balance: str, targets: Tensor, n_classes: int) -> Loss:
    """The loss to train with: the loss itself, or one that makes up for rare classes by the recipe's `balance`."""
    if balance in ("none", "sampler"):
        return loss
    counts = torch.bincount(targets.cpu(), minlength=n_classes).double()
    if bool((counts == 0).any()):
        missing = int((counts == 0).nonzero()[0])
        raise InvalidInput(f"balance = {balance!r} needs samples of every class, and class {missing} has none.")
    shares = counts / counts.sum()
    if balance == "loss":
        return BalancedLoss(loss, class_weights=(1.0 / (n_classes * shares)).float())
    return BalancedLoss(loss, adjustment=shares.log().float())


class BalancedLoss(Loss):
    """A loss of weighted samples, or of shifted logits.

    Each sample counts by the weight of its class: with 1 / (K * share) all classes count alike. The adjustment is added
    to the logits while training only: with the logarithm of the class shares the network itself learns what it would
    say if all classes were as frequent (Menon et al. 2021).
    """

    class_weights: Tensor | None
    adjustment: Tensor | None

    def __init__(self, loss: Loss, *, class_weights: Tensor | None = None, adjustment: Tensor | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.register_buffer("adjustment", adjustment, persistent=False)

    def terms(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """The terms of the loss inside."""
        if self.class_weights is not None:
            of_class = self.class_weights[targets]
            if weights is not None:
                of_class = weights * of_class
            weights = of_class
        if self.adjustment is not None:
            logits = logits + self.adjustment  # in float32 at least
        return self.loss.terms(logits, targets, weights)

    def parts(self) -> list[tuple[Loss, float]]:
        """Those of the loss inside."""
        return self.loss.parts()
