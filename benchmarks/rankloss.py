"""The loss of the recorded run `rankloss:logit_norm`: cross-entropy of normalised logits (Wei et al. 2022).

Run from this folder: calibrant train --data cifar10 --model resnet32 --method rankloss:logit_norm --epochs 48
The recorded digest is that of the same file without type annotations.
"""

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.losses import PerSampleLoss
from calibrant.losses.base import Batch


class LogitNorm(PerSampleLoss):
    """Cross-entropy of logits that are divided by their norm and a temperature."""

    def __init__(self, temperature: float = 0.04) -> None:
        super().__init__()
        self.temperature = float(temperature)

    def per_sample(self, batch: Batch) -> Tensor:
        """The loss of each sample, `[B]`."""
        norms = torch.linalg.vector_norm(batch.logits, dim=1, keepdim=True) + 1e-7
        return functional.cross_entropy(batch.logits / (self.temperature * norms), batch.targets, reduction="none")


def logit_norm() -> LogitNorm:
    """The loss with the temperature of the paper."""
    return LogitNorm()
