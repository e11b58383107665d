"""Fitted maps as torch modules: the same float64 formulas inside a network, with gradient, on any device, in ONNX."""

import math
from collections.abc import Callable
from typing import Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional


class CalibrationModule(nn.Module):
    """Logits `(n, K)` in, calibrated log-probabilities out; by itself a plain log-softmax.

    Computed in float64. float64 stays so, everything else comes back as float32.
    """

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated log-probabilities."""
        mapped = functional.log_softmax(self._scores(logits.double()), dim=1)
        return mapped if logits.dtype == torch.float64 else mapped.float()

    def _scores(self, logits: Tensor) -> Tensor:
        """What the last softmax is taken of."""
        return logits

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Go where the network goes, but stay in float64 when it is cast."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        for name, value in before.items():
            self.register_buffer(name, value.to(getattr(self, name).device))
        return self


class AffineModule(CalibrationModule):
    """softmax(W x + b), x the logits or their log-softmax; a weight of shape () or (K,) multiplies entry by entry."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: ArrayLike, bias: ArrayLike, *, of_log_probabilities: bool = False) -> None:
        super().__init__()
        self.register_buffer("weight", torch.as_tensor(weight, dtype=torch.float64).clone())
        self.register_buffer("bias", torch.as_tensor(bias, dtype=torch.float64).clone())
        self.of_log_probabilities = of_log_probabilities

    def _scores(self, logits: Tensor) -> Tensor:
        x = functional.log_softmax(logits, dim=1) if self.of_log_probabilities else logits
        return (x @ self.weight.T if self.weight.ndim == 2 else x * self.weight) + self.bias


class PartialModule(CalibrationModule):
    """A map of some classes; the others keep their probabilities.

    Args:
        mapped: The map of those classes alone.
        seen: Which ones, rising.
        n_classes: The number of all classes.
    """

    seen: Tensor
    others: Tensor
    order: Tensor

    def __init__(self, mapped: CalibrationModule, seen: ArrayLike, *, n_classes: int) -> None:
        super().__init__()
        self.mapped = mapped
        chosen = torch.as_tensor(seen)
        others = torch.tensor([k for k in range(n_classes) if k not in chosen.tolist()])
        self.register_buffer("seen", chosen.clone())
        self.register_buffer("others", others)
        self.register_buffer("order", torch.argsort(torch.cat([chosen, others])))

    def _scores(self, logits: Tensor) -> Tensor:
        log_p = functional.log_softmax(logits, dim=1)
        seen = logits.index_select(1, self.seen)
        # The logarithm of their common probability: for any k, log p_k less log p_k among themselves.
        mass = (log_p.index_select(1, self.seen) - functional.log_softmax(seen, dim=1)).mean(dim=1, keepdim=True)
        joined = torch.cat([self.mapped(seen) + mass, log_p.index_select(1, self.others)], dim=1)
        return joined.index_select(1, self.order)


class BetaModule(CalibrationModule):
    """Beta calibration of each class against the rest; with two classes the map of class 1 settles both.

    Args:
        maps: The a, b, c of each class, shape (K, 3), or (1, 3) for two classes.
    """

    maps: Tensor

    def __init__(self, maps: ArrayLike) -> None:
        super().__init__()
        self.register_buffer("maps", torch.as_tensor(maps, dtype=torch.float64).clone())
        self.two_classes = len(self.maps) == 1  # asked here: a trace would take the question for a tensor's

    def _scores(self, logits: Tensor) -> Tensor:
        log_p = functional.log_softmax(logits, dim=1)
        a, b, c = self.maps[:, 0], self.maps[:, 1], self.maps[:, 2]
        score = a * log_p - b * _log_one_minus(log_p) + c
        if self.two_classes:
            return torch.stack([torch.zeros_like(score[:, 1]), score[:, 1]], dim=1)
        # log(sigmoid(score)), from operators that every ONNX runtime has in float64.
        return score.clamp(max=0.0) - torch.log(1.0 + torch.exp(-score.abs()))


def _log_one_minus(log_p: Tensor) -> Tensor:
    """log(1 - p), exact also where p rounds to 1: the others are summed for the one entry above a half."""
    p = log_p.exp()
    large = log_p > math.log(0.5)
    others = torch.where(large, torch.zeros_like(p), p).sum(dim=1, keepdim=True)
    smallest = 2.0**-1022  # torch.finfo(torch.float64).tiny, which TorchScript does not know
    return torch.where(large, torch.log(others.clamp(min=smallest)), torch.log(1.0 - p.clamp(max=0.5)))
