"""What the network says about images, in float32 whatever it was trained in."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_BATCH = 1000


@torch.no_grad()
def predict_logits(
    network: nn.Module, images: Tensor, prepare: Callable[[Tensor], Tensor], *, device: torch.device
) -> Tensor:
    """Logits of uint8 images `(N, C, H, W)`, on the CPU.

    Mixed precision is left to training: a logit of 10 in bfloat16 is uncertain by 0.03, enough to move a confidence
    across a threshold.
    """
    was_training = network.training
    network.eval()
    try:
        parts = [_at_least_float32(network(prepare(part.to(device, non_blocking=True)))).cpu() for part in images.split(_BATCH)]
    finally:
        network.train(was_training)
    return torch.cat(parts)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
