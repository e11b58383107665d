"""From a name to a network: ours, torchvision's, or the user's own."""

from torch import nn

from calibrant.checks import whole
from calibrant.errors import did_you_mean, invalid
from calibrant.models.external import factory_model, torchvision_model
from calibrant.models.resnet import resnet32, resnet50
from calibrant.models.tiny import Tiny

_MODELS = {"resnet32": resnet32, "resnet50": resnet50, "tiny": Tiny}
_SMALLEST_SIDE = 4


def model_names() -> tuple[str, ...]:
    """Names of the networks that come with the package."""
    return tuple(_MODELS)


def build_model(name: str, *, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's current generator.

    Args:
        name: One of `model_names()`; `torchvision:NAME`, or `torchvision:NAME?weights=DEFAULT` for pretrained weights,
            with a new last layer; or `package.module:factory`, called as `factory(n_classes=..., image_shape=...)`.
        n_classes: Number of outputs, at least 2.
        image_shape: Channels, height and width of an image.

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
    if name in _MODELS:
        if min(image_shape[1:]) < _SMALLEST_SIDE:
            way_out = "Enlarge the images, or pass your own network as module:factory."
            raise invalid(f"images for {name}", f"be at least {_SMALLEST_SIDE} pixels per side", image_shape, way_out)
        return _MODELS[name](n_classes=n_classes, image_shape=image_shape)
    source, colon, rest = name.partition(":")
    if not colon:
        way_out = did_you_mean(name, [*model_names(), "torchvision:NAME", "module:factory"])
        raise invalid("model", "be a known network", repr(name), way_out)
    if source == "torchvision":
        return torchvision_model(rest, n_classes=n_classes, image_shape=image_shape)
    return factory_model(source, rest, n_classes=n_classes, image_shape=image_shape)
