"""The mean of the weights over the last epochs of a run (stochastic weight averaging, Izmailov et al. 2018).

At a constant learning rate the weights move around a minimum, and their mean lies nearer to it than any one of them:
the error is lower for the same number of sample updates. None of the averaged networks has batch statistics that fit
the mean weights, so these statistics are measured on the training data before the network is used.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from calibrant.training.batchnorm import measure_statistics


class WeightAverage:
    """Equal-weight mean of a network's parameters after each epoch from `first` on."""

    def __init__(self, network: nn.Module, *, first: int) -> None:
        self.network, self.first = network, first
        self._mean = AveragedModel(network)

    def include(self, epoch: int) -> None:
        """Add the weights as they are after `epoch`, if it is one of the epochs that are averaged."""
        if epoch >= self.first:
            self._mean.update_parameters(self.network)

    @torch.no_grad()
    def apply_mean(self, images: Iterable[Tensor]) -> None:
        """Give the network the mean weights, in place, and the batch statistics that belong to them.

        Args:
            images: Training images, ready for the network, in batches.
        """
        for parameter, mean in zip(self.network.parameters(), self._mean.module.parameters(), strict=True):
            parameter.copy_(mean)
        measure_statistics(self.network, images)

    def state_dict(self) -> dict[str, Tensor]:
        """Means and their number, by name."""
        return {"count": self._mean.n_averaged, **dict(self._mean.module.named_parameters())}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._mean.n_averaged.copy_(state["count"])
        for name, mean in self._mean.module.named_parameters():
            mean.copy_(state[name])
