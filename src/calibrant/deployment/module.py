"""PyTorch networks of any kind behind one signature. torch is imported when one is given."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.deployment.inputs import IMAGES, INPUTS

if TYPE_CHECKING:
    from torch import Tensor, nn


def is_module(model: object) -> bool:
    """Whether a model is a `torch.nn.Module`; asked without importing torch."""
    torch = sys.modules.get("torch")  # without it nobody can have made a module
    return torch is not None and isinstance(model, torch.nn.Module)


def normalised(model: "nn.Module", *, mean: Sequence[float], std: Sequence[float]) -> "nn.Module":
    """A network for images on the scale from 0 to 1, with its normalisation.

    Args:
        model: Takes normalised images (n, C, H, W).
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
    """
    import torch

    class Normalised(torch.nn.Module):
        mean: "Tensor"
        std: "Tensor"

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

        def forward(self, images: "Tensor") -> Any:
            return self.model((images - self.mean) / self.std)

    return Normalised()


def as_network(model: "nn.Module", names: Sequence[str], *, by_name: bool) -> "nn.Module":
    """A classifier that takes tensors in the order of `names` and returns logits (n, K) in float32 or float64.

    Args:
        model: Returns logits, or an object with `logits`, as Hugging Face's models do.
        names: Names of the inputs.
        by_name: Whether the model is called with its inputs by name.
    """
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def _call(self, *inputs: "Tensor") -> Any:
            if by_name:
                return self.model(**dict(zip(names, inputs, strict=True)))
            return self.model(*inputs)

        def forward(self, *inputs: "Tensor") -> "Tensor":
            logits = self._call(*inputs)
            if not isinstance(logits, torch.Tensor):
                logits = logits.logits
            if logits.dtype != torch.float64:
                logits = logits.float()
            result: Tensor = logits
            return result

    return Network()


def input_names(model: "nn.Module", example: Any) -> tuple[dict[str, "Tensor"], bool]:
    """An example as tensors by name, and whether the model is called by name.

    Args:
        model: The model.
        example: Tensors by name, called by name; a sequence of tensors, named as the parameters of `forward`; or one.
    """
    import torch

    if isinstance(example, Mapping):
        return {name: torch.as_tensor(values) for name, values in example.items()}, True
    if isinstance(example, Sequence):
        parameters = list(inspect.signature(model.forward).parameters)
        return dict(zip(parameters, map(torch.as_tensor, example), strict=False)), False
    values = torch.as_tensor(example)
    if values.ndim == 4 and values.is_floating_point():
        return {IMAGES: values}, False
    return {INPUTS: values}, False
