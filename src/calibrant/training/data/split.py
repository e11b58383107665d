"""Split a set class by class, and the same way every time."""

import torch
from torch import Tensor

from calibrant import checks
from calibrant.errors import invalid


def split_validation(labels: Tensor, *, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split positions into a training and a validation part with the same class shares.

    Of a class with `n` samples, `fraction * n` (rounded, halves up) go to validation, but at least one and at most
    `n - 1`; a class with a single sample stays in training. The draw depends on the labels, `fraction` and `seed`
    alone: torch's global generator is neither read nor changed.

    Args:
        labels: `(N,)` integers, the class of each sample.
        fraction: Share of each class that goes to validation; the paper holds out 10 %.
        seed: Seed of the draw.

    Returns:
        Two sorted, disjoint int64 tensors of positions that together hold every position, on the device of `labels`.

    >>> import torch
    >>> train, validation = split_validation(torch.arange(40) % 2)
    >>> len(train), len(validation)
    (36, 4)
    """
    checks.fraction("fraction", fraction)
    if len(checks.labels("labels", labels)) < 2:
        raise invalid("labels", "hold at least two samples", len(labels))
    generator = torch.Generator().manual_seed(checks.whole("seed", seed, 0))
    on_cpu = labels.cpu()
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    # Sorted once, not searched class by class: twenty thousand classes would mean twenty thousand passes.
    sizes = torch.unique(on_cpu, return_counts=True)[1].tolist()
    for members in torch.split(torch.argsort(on_cpu, stable=True), sizes):
        size = len(members)
        take = min(max(int(fraction * size + 0.5), 1), size - 1)
        held_out[members[torch.randperm(size, generator=generator)[:take]]] = True
    train, validation = torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()
    return train.to(labels.device), validation.to(labels.device)
