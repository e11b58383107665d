"""Fold a temperature into the last layer of a network, so that its own softmax is calibrated."""

import copy
from typing import TYPE_CHECKING

from calibrant.checks import positive
from calibrant.errors import invalid

if TYPE_CHECKING:
    from torch import Tensor, nn

_ROUNDING = 1e-5


def fold_temperature(model: "nn.Module", temperature: float, example: "Tensor") -> "nn.Module":
    """A copy of a network whose last layer is divided by a temperature, so that its softmax is calibrated.

    Any runtime, export or plain state dict then gives calibrated probabilities. Decisions at a threshold may differ in
    the last digit from those of a division, so `export_onnx` does not fold a temperature of a policy.

    Args:
        model: A classifier that ends in a linear layer (or a convolution) with nothing after it but pooling.
        temperature: Above 0; `TemperatureScaling.temperature_`.
        example: Inputs as the network takes them; used to find the last layer.

    Raises:
        InvalidInput: No layer of the network can take the temperature.

    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> images = torch.rand(2, 1, 2, 2)
    >>> torch.allclose(fold_temperature(network, 1.5, images)(images), network(images) / 1.5)
    True
    """
    import torch
    from torch import nn

    positive("temperature", temperature)
    folded = copy.deepcopy(model).eval()
    with torch.no_grad():
        wanted = folded(example) / 2
        for layer in reversed([layer for layer in folded.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]):
            # Halving is exact, so it tells the layer whose output is the logits from any other, whatever the
            # temperature: one near 1 would hardly change anything in a wrong place.
            _divide(layer, 2.0)
            found = folded(example)
            _divide(layer, 0.5)
            if torch.allclose(found, wanted, rtol=_ROUNDING, atol=_ROUNDING):
                _divide(layer, temperature)
                return folded
    way_out = "Export it with a policy instead: the file then applies the temperature after the network."
    raise invalid("model", "end in a linear layer that gives the logits", type(model).__name__, way_out)


def _divide(layer: "nn.Module", by: float) -> None:
    for value in layer.parameters():
        value.copy_(value.double() / by)
