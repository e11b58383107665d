"""From a name to a network: ours, a library's, or the user's own."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.checks import whole
from calibrant.errors import did_you_mean, invalid
from calibrant.own_code import load, own_code_at_work
from calibrant.training.models.libraries import (
    Fitted,
    ModelInput,
    load_weights,
    timm_input,
    timm_model,
    torchvision_input,
    torchvision_model,
)
from calibrant.training.models.resnet import Tiny, resnet18, resnet32, resnet50

_MODELS = {"resnet18": resnet18, "resnet32": resnet32, "resnet50": resnet50, "tiny": Tiny}
# Of each library: what makes a network with a new head, and what says how it wants its images.
_LIBRARIES = {
    "torchvision": (torchvision_model, torchvision_input),
    "timm": (timm_model, timm_input),
}
SMALLEST_SIDE = 4
PHOTOGRAPHS_FROM = 96
"""Images from this side length on are taken for photographs: `resnet18` is their default network."""


Views = Literal["none", "mirror", "mirror+shift"]


class AveragedViews(nn.Module):
    """A network that averages the logits of several views of a picture, for a network trained on mirrored pictures.

    Args:
        network: Takes pictures (n, channels, height, width) and returns logits.
        views: "mirror": the picture and its mirror image. "mirror+shift": also both of them moved by a pixel to the
            upper left and to the lower right; the views that are not moved have half of the weight.
    """

    def __init__(self, network: nn.Module, views: Views = "mirror") -> None:
        super().__init__()
        if views not in ("mirror", "mirror+shift"):
            raise invalid("views", "be 'mirror' or 'mirror+shift'", repr(views))
        self.network, self.views = network, views
        self.train(network.training)

    def forward(self, pictures: Tensor) -> Tensor:
        """Mean logits, (n, K)."""
        if pictures.ndim != 4 or min(pictures.shape[2:]) < SMALLEST_SIDE:
            found = f"shape {tuple(pictures.shape)}"
            raise invalid("views", "be left out for inputs that are not pictures (n, channels, height, width)", found)
        logits = self._mirrored(pictures)
        if self.views == "mirror":
            return logits
        height, width = pictures.shape[2:]
        larger = functional.pad(pictures, (1, 1, 1, 1), mode="reflect")
        upper_left = self._mirrored(larger[:, :, 2:, 2:])
        lower_right = self._mirrored(larger[:, :, :height, :width])
        return 0.5 * logits + 0.25 * (upper_left + lower_right)

    def _mirrored(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.network(pictures) + self.network(pictures.flip(-1))
        return 0.5 * logits


def model_names() -> tuple[str, ...]:
    """Names of the networks that come with the package."""
    return tuple(_MODELS)


def expected_input(name: str) -> ModelInput | None:
    """What the library of a network says about its images; None if it says nothing, and for other networks.

    >>> expected_input("resnet32")
    """
    source, _, rest = name.partition(":")
    if source not in _LIBRARIES:
        return None
    return _LIBRARIES[source][1](rest)


def build_model(
    name: str,
    *,
    n_classes: int,
    image_shape: tuple[int, int, int],
    weights: str | Path | None = None,
    pretrained: bool = True,
    expected: ModelInput | None = None,
) -> nn.Module:
    """Make a network; what no file gives is drawn from torch's current generator.

    Args:
        name: One of `model_names()`; `torchvision:NAME` or `timm:NAME`, with `?weights=DEFAULT` or
            `?weights=pretrained` behind it for weights from the library's cache; or `package.module:factory`, called
            as `factory(n_classes=..., image_shape=...)`. The last layer of a library's network is always a new one.
        n_classes: Number of outputs, at least 2.
        image_shape: Channels, height and width of an image.
        weights: A safetensors file to start from. Its head is used if it fits.
        pretrained: False reads no weights of the library's, for a network that gets others.
        expected: Size and normalisation to give the images inside the network, which then takes images from 0 to 1;
            `expected_input(name)` knows them. None takes images as they are.

    Returns:
        A module that maps normalised images `(N, C, H, W)` to logits `(N, n_classes)`.

    >>> model = build_model("resnet32", n_classes=10, image_shape=(3, 32, 32))
    >>> sum(parameter.numel() for parameter in model.parameters())
    466906
    """
    whole("n_classes", n_classes, 2)
    if not isinstance(name, str):
        raise invalid("model", "be the name of a network", repr(name), did_you_mean(name, model_names()))
    if not isinstance(image_shape, tuple | list) or len(image_shape) != 3 or min(image_shape) < 1:
        raise invalid("image_shape", "be (channels, height, width), each at least 1", image_shape)
    inner = image_shape
    if expected is not None:
        inner = (3, *(expected.size or image_shape[1:]))
    if name in _MODELS:
        if min(inner[1:]) < SMALLEST_SIDE:
            hint = "Enlarge the images, or pass your own network as module:factory."
            raise invalid(f"images for {name}", f"be at least {SMALLEST_SIDE} pixels per side", inner, hint)
        network = _MODELS[name](n_classes=n_classes, image_shape=inner)
    else:
        network = _foreign(name, n_classes, inner, pretrained=pretrained)
    if weights is not None:
        load_weights(network, weights)
    if expected is None and name.partition(":")[0] in _LIBRARIES and image_shape[0] != 3:
        expected = ModelInput()  # grey images as they are, in three channels
    if expected is not None:
        network = Fitted(network, expected, channels=image_shape[0])
    if name not in _MODELS:
        _check_output(network, name, n_classes, image_shape)
    return network


def _foreign(name: str, n_classes: int, image_shape: tuple[int, int, int], *, pretrained: bool) -> nn.Module:
    """A network of a library, or of the user's own."""
    source, colon, rest = name.partition(":")
    if not colon:
        sources = ["torchvision:NAME", "timm:NAME", "module:factory"]
        raise invalid("model", "be a known network", repr(name), did_you_mean(name, [*model_names(), *sources]))
    if source in _LIBRARIES:
        return _LIBRARIES[source][0](rest, n_classes=n_classes, pretrained=pretrained)
    factory = load(name, kind="model")
    with own_code_at_work(f"model {name} raised"):
        try:
            model = factory(n_classes=n_classes, image_shape=image_shape)
        except TypeError as error:
            found = f"{type(error).__name__}: {error}"
            raise invalid(f"model {name}", "accept n_classes= and image_shape=", found) from error
    if not isinstance(model, nn.Module):
        raise invalid(f"model {name}", "return a torch.nn.Module", type(model).__name__)
    return model


def _check_output(model: nn.Module, name: str, n_classes: int, image_shape: tuple[int, int, int]) -> None:
    """Run two blank images through the network, so that a wrong shape is found before any time is spent."""
    was_training = model.training
    try:
        with torch.no_grad():
            first = next(model.parameters(), torch.empty(0))
            # Evaluation mode: a trial must not move the statistics of batch normalisation.
            logits = model.eval()(torch.zeros(2, *image_shape, dtype=first.dtype, device=first.device))
    except Exception as error:  # any failure inside a foreign network becomes one line
        found = f"{type(error).__name__}: {error}"
        raise invalid(f"model {name}", f"accept images of shape {image_shape}", found) from error
    model.train(was_training)
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, n_classes):
        shape = tuple(getattr(logits, "shape", ())) or type(logits).__name__
        raise invalid(f"model {name}", f"return logits of shape (2, {n_classes}) for two images", shape)
    if first.numel() == 0:
        raise invalid(f"model {name}", "have parameters to train", "none")
    if bool((logits >= 0).all()) and torch.allclose(logits.sum(dim=1), logits.new_ones(2)):
        hint = "Leave its softmax out: the loss has one."
        raise invalid(f"model {name}", "return logits", "probabilities, which add up to 1", hint)
