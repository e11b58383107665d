"""Sharpness-aware minimisation (Foret et al. 2021): the gradient of the worst point near the weights.

A step takes two gradients of the same batch: g at the weights w, then one at `w + rho * g / ||g||`, with which the
optimiser changes w. The norm is over all weights together. Everything else that a step records (loss, accuracy,
scores for pruning) comes from the first pass.
"""

import torch
from torch import Tensor, nn

# Keeps the step finite where every gradient is 0.
_TINY = 1e-12


class SharpnessAware:
    """Moves a network to the worst point within `rho` and back.

    The second pass normalises with the statistics of its batch like any training pass, but leaves no trace in the
    running statistics of batch normalisation (nor in any other buffer): those belong to the weights that are kept. The
    tensors that hold weights and buffers meanwhile are made once, so that a captured step can use them.
    """

    def __init__(self, network: nn.Module, rho: float) -> None:
        self.rho = rho
        self._parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        held: list[Tensor] = [*self._parameters, *network.buffers()]
        # By type: only tensors of one type are copied in a single kernel, and there are hundreds of small ones.
        by_type = {value.dtype: [other for other in held if other.dtype == value.dtype] for value in held}
        self._state = [(values, [torch.empty_like(value) for value in values]) for values in by_type.values()]

    @torch.no_grad()
    def climb(self) -> None:
        """Remember the network, then go up the gradient that `backward` has left in it."""
        for values, kept in self._state:
            torch._foreach_copy_(kept, values)
        moved: list[Tensor] = [parameter for parameter in self._parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        scale = self.rho / (nn.utils.get_total_norm(gradients) + _TINY)
        torch._foreach_add_(moved, list(torch._foreach_mul(gradients, scale)))  # noqa: SLF001

    @torch.no_grad()
    def come_back(self) -> None:
        """Put weights and buffers back, to the bit; the gradients stay those of the worst point."""
        for values, kept in self._state:
            torch._foreach_copy_(values, kept)
