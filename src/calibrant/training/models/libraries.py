"""Networks of torchvision and timm with a new last layer, and weights from safetensors files.

Both libraries read named weights from their cache, and fill it if they can.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # only the error that torch raises on a damaged file
from typing import Any
from urllib.parse import parse_qs

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.errors import InvalidInput, did_you_mean, importing, invalid, one_line

_CHANNELS = 3


@dataclass(frozen=True)
class ModelInput:
    """Height and width (None: any), mean and standard deviation per channel on the scale from 0 to 1."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


class Fitted(nn.Module):
    """Takes images of any size on the scale from 0 to 1 and shows them to a network as it expects them.

    The aspect is kept: a picture is resized until it covers the network's input, and its middle is taken. Grey images
    (1 channel) are shown in three channels. All of this is a part of the network, so an exported file contains it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, expected: ModelInput, *, channels: int) -> None:
        super().__init__()
        if channels not in (1, _CHANNELS):
            raise invalid("images for a network of a library", "have 1 or 3 channels", channels)
        self.model, self.size = model, expected.size
        # Not in the state: these numbers belong to the recipe and not to what is learned.
        self.register_buffer("mean", torch.tensor(expected.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(expected.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Any:
        """Logits of images `(N, C, H, W)`."""
        if self.size is not None:
            images = cover(images, self.size)
        return self.model(((images - self.mean) / self.std).expand(-1, _CHANNELS, -1, -1))


def cover(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images until they cover `size`, keeping their aspect, and take the middle.

    >>> cover(torch.zeros(1, 3, 20, 40), (10, 10)).shape
    torch.Size([1, 3, 10, 10])
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    scale = max(size[0] / height, size[1] / width)
    resized = max(size[0], round(height * scale)), max(size[1], round(width * scale))
    # Without the filter a smaller picture shows patterns that are not there. A larger one needs none.
    images = functional.interpolate(images, resized, mode="bilinear", align_corners=False, antialias=scale < 1)
    top, left = (resized[0] - size[0]) // 2, (resized[1] - size[1]) // 2
    return images[..., top : top + size[0], left : left + size[1]]


def head_of(network: nn.Module) -> str:
    """Name of the layer that gives the logits: the last linear layer, or 1x1 convolution.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    '2'
    """
    found: list[str] = [name for name, part in network.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    if not found:
        raise invalid("model", "end in a linear layer", type(network).__name__, "Pass a module:factory of your own.")
    return found[-1]


def check_weights(path: str | Path) -> Path:
    """The path of a file of weights; one that is missing, or of a format that may run code, is refused."""
    file = Path(path).expanduser()
    if file.suffix != ".safetensors":
        hint = "Formats that unpickle may run code: convert it once with safetensors.torch.save_file."
        raise invalid("model.weights", "be a .safetensors file", str(path), hint)
    if not file.is_file():
        raise invalid("model.weights", "be a file that exists", str(path))
    return file


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Give a network the weights of a safetensors file, in place; if they do not fit, it stays as it is.

    Every weight but the head's must be there in the right shape. A head of another shape, or none, leaves the
    network's own. Checkpoints of runs (`RUN/checkpoints/epoch-00030.safetensors`) can be read, too.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = check_weights(path)
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"weights {file.name} cannot be read: {str(error)[:200]}.") from error
    wanted, head = network.state_dict(), f"{head_of(network)}."
    if not wanted.keys() & found.keys():
        of_a_run = "model."
        found = {name.removeprefix(of_a_run): value for name, value in found.items() if name.startswith(of_a_run)}
    fitting = {name: value for name, value in found.items() if name in wanted and value.shape == wanted[name].shape}
    # A counter that no forward pass reads; files of other tools often lack it.
    needed = [name for name in wanted if not name.startswith(head) and not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in fitting]
    if missing:
        first = missing[0]
        got = "none"
        if first in found:
            got = f"one of shape {tuple(found[first].shape)}"
        if len(missing) > 1:
            got += f" ({len(missing)} weights do not fit)"
        hint = "Name the network that these weights were made with as model.name."
        raise invalid(f"weights {file.name}", f"hold {first} of shape {tuple(wanted[first].shape)}", got, hint)
    network.load_state_dict(fitting, strict=False)


def _name_and_weights(library: str, text: str) -> tuple[str, str | None]:
    """`NAME?weights=W` as two."""
    name, _, query = text.partition("?")
    options = parse_qs(query, keep_blank_values=True)
    if set(options) - {"weights"}:
        raise invalid(f"{library}:{text}", "have no option but weights", repr(query), "For example ?weights=DEFAULT.")
    return name, options.get("weights", [None])[-1]


@contextmanager
def _making(name: str) -> Iterator[None]:
    """One line if a library cannot give the weights: no network, a full disk, a damaged file, a tag that is unknown."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        reason = one_line(f"{type(error).__name__}: {error}", most=200)
        hint = "Give a .safetensors file as model.weights instead."
        raise InvalidInput(f"{name} cannot be made ({reason}). {hint}") from error


def _torchvision(text: str) -> Any:
    with importing(f"torchvision:{text}", "torchvision", "vision"):
        from torchvision import models
    return models


def torchvision_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """The torchvision classifier `NAME`, or `NAME?weights=DEFAULT`, with a fresh head of `n_classes` outputs.

    Without `pretrained` the named weights are left out, for a network that gets others.
    """
    name, weights = _name_and_weights("torchvision", text)
    models = _torchvision(text)
    known = models.list_models(module=models)
    if name not in known:
        raise invalid("model", "be one of torchvision's classifiers", repr(name), did_you_mean(name, known))
    if weights is not None:
        available = models.get_model_weights(name).__members__
        if weights not in available:
            hint = did_you_mean(weights, available)
            raise invalid(f"weights of {name}", "be some that torchvision has", repr(weights), hint)
    with _making(f"torchvision:{text}"):
        model: Any = models.get_model(name, weights=weights if pretrained else None)
    if weights is not None and hasattr(model, "transform_input"):
        model.transform_input = True  # what torchvision does if it loads the weights itself
    # GoogLeNet and Inception answer with three results while they train; only the main one is wanted here.
    if getattr(model, "aux_logits", False):
        model.aux_logits = False
        for side_head in {"aux1", "aux2", "AuxLogits"} & dict(model.named_children()).keys():
            setattr(model, side_head, None)
    replace_head(model, n_classes=n_classes)
    network: nn.Module = model
    return network


def torchvision_input(text: str) -> ModelInput:
    """Size and normalisation by the named weights, by the default ones if none are named."""
    name, weights = _name_and_weights("torchvision", text)
    preset = getattr(_torchvision(text).get_model_weights(name), weights or "DEFAULT").transforms()
    side = preset.crop_size[0]
    return ModelInput((side, side), tuple(preset.mean), tuple(preset.std))


def _timm(text: str) -> Any:
    with importing(f"timm:{text}", "timm", "vision"):
        import timm
    return timm


def timm_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """The same of timm: `NAME`, or `NAME?weights=pretrained`."""
    name, weights = _name_and_weights("timm", text)
    timm = _timm(text)
    if not timm.is_model(name):
        raise invalid("model", "be one of timm's classifiers", repr(name), did_you_mean(name, timm.list_models()))
    if weights not in (None, "pretrained"):
        raise invalid(f"weights of {name}", "be pretrained", repr(weights), "A tag is a part of the name: NAME.TAG.")
    with _making(f"timm:{text}"):
        model: nn.Module = timm.create_model(name, pretrained=bool(weights) and pretrained, num_classes=n_classes)
    return model


def timm_input(text: str) -> ModelInput | None:
    """Size and normalisation by timm's own list; None for a network that is not in it."""
    stated = _timm(text).get_pretrained_cfg(_name_and_weights("timm", text)[0])
    if stated is None:
        return None
    return ModelInput(tuple(stated.input_size[1:]), tuple(stated.mean), tuple(stated.std))


def replace_head(model: nn.Module, *, n_classes: int) -> None:
    """Replace the last linear layer (or 1x1 convolution) of a classifier, in place, by one with `n_classes` outputs."""
    path = head_of(model)
    head = model.get_submodule(path)
    fresh: nn.Module
    if isinstance(head, nn.Linear):
        fresh = nn.Linear(head.in_features, n_classes, bias=head.bias is not None)
    else:
        assert isinstance(head, nn.Conv2d)
        fresh = nn.Conv2d(head.in_channels, n_classes, kernel_size=1, bias=head.bias is not None)
    model.set_submodule(path, fresh)
