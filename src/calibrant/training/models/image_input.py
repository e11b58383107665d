"""What a pretrained network expects of its images: their size and their normalisation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.errors import invalid

_CHANNELS = 3
_LARGEST_SIDE = 4096


@dataclass(frozen=True)
class ModelInput:
    """Height and width, mean and standard deviation per channel on the scale from 0 to 1; None: not stated.

    >>> ModelInput.from_dict(ModelInput((224, 224), (0.5,) * 3, (0.5,) * 3).to_dict()).size
    (224, 224)
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no image can be given: a file says it, and a deviation of 0 would make every pixel infinite."""
        size, statistics = self.size, [values for values in (self.mean, self.std) if values is not None]
        if size is not None and (len(size) != 2 or not all(_is_side(side) for side in size)):
            raise invalid("the network's size of images", f"be two whole numbers from 1 to {_LARGEST_SIDE}", size)
        if any(len(values) not in (1, _CHANNELS) or not all(map(math.isfinite, values)) for values in statistics):
            raise invalid("the network's mean and deviation of images", "be 1 or 3 finite numbers each", statistics)
        if self.std is not None and min(self.std) <= 0:
            raise invalid("the network's deviation of images", "be above 0", self.std)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned, also after JSON has made lists of its tuples."""
        known = {key: content.get(key) for key in ("size", "mean", "std")}
        return cls(**{key: tuple(value) for key, value in known.items() if value is not None})


def _is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= _LARGEST_SIDE


class Fitted(nn.Module):
    """Takes images of any size on the scale from 0 to 1 and shows them to a network as it expects them.

    The aspect is kept: a picture is resized until it covers the network's input, and its middle is taken. All of this
    is a part of the network, so that an exported file contains it.

    Args:
        model: The network, for three channels.
        expected: What it expects; size None keeps the size of the images.
        channels: Of the images: 3, or 1 for grey ones, which are shown in three channels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, expected: ModelInput, *, channels: int) -> None:
        super().__init__()
        if channels not in (1, _CHANNELS):
            raise invalid("images for a network of a library", "have 1 or 3 channels", channels)
        self.model, self.size = model, expected.size
        mean, std = expected.mean or (0.0,), expected.std or (1.0,)
        # Not in the state: these numbers belong to the recipe and not to what is learned.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

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
