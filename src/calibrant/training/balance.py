"""Three ways to make up for rare classes while training: weights, drawing, and shifted logits."""

import torch
from torch import Tensor

from calibrant.errors import InvalidInput
from calibrant.losses import Loss
from calibrant.training.recipe import Balance


def balanced_loss(loss: Loss, balance: Balance, targets: Tensor, n_classes: int) -> Loss:
    """The loss to train with: the loss itself, or one that makes up for rare classes.

    Args:
        loss: The method's loss.
        balance: As in the recipe.
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
        self.register_buffer(
            "class_weights", None if class_weights is None else class_weights.float(), persistent=False
        )
        self.register_buffer("adjustment", None if adjustment is None else adjustment.float(), persistent=False)

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


def balanced_draw(order: Tensor, targets: Tensor, seed: int) -> Tensor:
    """As many of these samples, drawn again so that each class that is among them is equally likely at every place.

    >>> targets = torch.tensor([0] * 99 + [1])
    >>> drawn = balanced_draw(torch.arange(100), targets, seed=0)
    >>> len(drawn), 30 < int((targets[drawn] == 1).sum()) < 70
    (100, True)
    """
    here = order.cpu()
    labels = targets[here]
    chances = 1.0 / torch.bincount(labels).double()[labels]
    generator = torch.Generator().manual_seed(seed)
    return here[torch.multinomial(chances, len(here), replacement=True, generator=generator)].to(order.device)
