"""A network's logits for images, in float32 whatever precision it was trained in."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode inside the block."""
    before = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(before)


@torch.no_grad()
def predict(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    prepare: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Logits and labels of images in batches, on the CPU.

    Mixed precision is for training only: a logit of 10 in bfloat16 is uncertain by 0.03, enough to move a confidence
    across a threshold. For the same reason convolutions on a GPU must not round to TF32 here, as they do by default.
    """
    logits, labels = [], []
    exact = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False)
    with evaluating(network), exact:
        for images, targets in batches:
            output = network(prepare(images.to(device, non_blocking=True)))
            logits.append(output.to(torch.promote_types(output.dtype, torch.float32)).cpu())
            labels.append(targets)
    return torch.cat(logits), torch.cat(labels)
