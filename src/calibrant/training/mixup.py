"""Mixup: train on mixtures of two samples (Zhang et al. 2018).

A batch is mixed with itself, rolled by half of its length: sample i becomes `share * x_i + (1 - share) * x_j`, and its
loss is `share * loss(y_i) + (1 - share) * loss(y_j)`. The order of an epoch is random already, so the pairs are, too.
One share is drawn for each batch, from Beta(alpha, alpha), and the larger of it and the rest is taken: as every pair is
mixed both ways round, that gives the same mixtures, and "the label of a mixed sample" is that of its larger part.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import invalid
from calibrant.losses import PerSampleLoss
from calibrant.training.methods import Plan
from calibrant.training.seeds import derive_seed


@dataclass(frozen=True)
class Mixed:
    """What was mixed into a batch: the labels of the smaller parts `[B]`, and the share of the larger ones (0-dim)."""

    partners: Tensor
    share: Tensor


class Mixup:
    """Mixes batches; the shares of an epoch are a tensor on the device: a captured step reads its own at each replay.

    With an even number of samples for each process the pairs of a full batch do not depend on the number of processes:
    ranks take turns in the order, so half of a rank's part is half of the global batch. In the last, partial batch of
    an epoch pairs are made among what each process holds.
    """

    def __init__(self, alpha: float, *, steps: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self.alpha, self.seed = alpha, seed
        self.shares = torch.ones(steps, device=device, dtype=dtype)

    def begin(self, epoch: int) -> None:
        """Draw the shares of an epoch, from the seed and the epoch alone."""
        generator = np.random.default_rng(derive_seed(self.seed, "mixup", epoch))
        drawn = generator.beta(self.alpha, self.alpha, len(self.shares))
        self.shares.copy_(torch.from_numpy(np.maximum(drawn, 1 - drawn)))

    def __call__(self, images: Tensor, targets: Tensor, step: Tensor | int) -> tuple[Tensor, Mixed]:
        """The mixed images of the epoch's batch number `step`, and what was mixed into them."""
        half = len(targets) // 2
        # Not `shares[step]`: with a tensor of one number torch asks the host for it, which no capture allows.
        share = self.shares[step] if isinstance(step, int) else self.shares.index_select(0, step.reshape(1)).squeeze(0)
        return images.lerp(images.roll(half, 0), 1 - share), Mixed(targets.roll(half, 0), share)


def check_mixable(plan: Plan) -> None:
    """Refuse methods that have no meaning for mixed samples."""
    for part, _ in plan.loss.parts():
        if not isinstance(part, PerSampleLoss):
            way_out = "A mixed sample has no class to be right about. Leave that term or mixup out."
            raise invalid("data.mixup", "be 0 with a loss of the whole batch", f"{part.name} in {plan.name}", way_out)
    pruning = plan.pruning
    if pruning is not None and pruning.policy.uses_scores and pruning.scoring != "all":
        way_out = "A mixture shows the confidence of no sample. Where the plan has it, set scoring to 'all'."
        raise invalid("data.mixup", "be 0 with a plan that goes by the scores of batches", plan.name, way_out)
