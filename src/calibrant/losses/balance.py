"""A loss that makes up for rare classes: by weights, or by shifted logits."""

import torch
from torch import Tensor

from calibrant.errors import InvalidInput
from calibrant.losses.base import Loss


def balanced_loss(loss: Loss, balance: str, targets: Tensor, n_classes: int) -> Loss:
    """The loss to train with: the loss itself, or one that makes up for rare classes.

    Args:
        loss: The method's loss.
        balance: "none", "loss", "sampler" or "logit-adjustment", as in a recipe.
        targets: Labels of the training samples.
        n_classes: Number of classes.
    """
    if balance in ("none", "sampler"):
        return loss
    counts = torch.bincount(targets.cpu(), minlength=n_classes).double()
    if bool((counts == 0).any()):
        missing = int((counts == 0).nonzero()[0])
        raise InvalidInput(f"balance = {balance!r} needs samples of every class, and class {missing} has none.")
    shares = counts / counts.sum()
    if balance == "loss":
        return BalancedLoss(loss, class_weights=1.0 / (n_classes * shares))
    return BalancedLoss(loss, adjustment=shares.log())


class BalancedLoss(Loss):
    """A loss of weighted samples, or of shifted logits.

    Args:
        loss: The loss.
        class_weights: `[K]`; each sample counts by that of its class. With 1 / (K * share) all classes count alike.
        adjustment: `[K]`, added to the logits while training only. With the logarithm of the class shares the network
            itself learns what it would say if all classes were as frequent (Menon et al. 2021).
    """

    class_weights: Tensor | None
    adjustment: Tensor | None

    def __init__(self, loss: Loss, *, class_weights: Tensor | None = None, adjustment: Tensor | None = None) -> None:
        super().__init__()
        self.loss = loss
        for name, values in (("class_weights", class_weights), ("adjustment", adjustment)):
            self.register_buffer(name, None, persistent=False)
            if values is not None:
                self.register_buffer(name, values.float(), persistent=False)

    def terms(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, validate: bool = False
    ) -> dict[str, Tensor]:
        """The terms of the loss inside."""
        if self.class_weights is not None:
            of_class = self.class_weights[targets]
            if weights is not None:
                of_class = weights * of_class
            weights = of_class
        if self.adjustment is not None:
            logits = logits + self.adjustment.to(logits.dtype)
        return self.loss.terms(logits, targets, weights, validate=validate)

    def parts(self) -> list[tuple[Loss, list[Tensor]]]:
        """Those of the loss inside."""
        return self.loss.parts()
