"""Smaller images early in a run: the size of each epoch's images, and how much computing that takes.

The first epochs learn coarse features, for which fewer pixels are enough. Images are cropped, mirrored and normalised
at their own size and then made smaller, by bilinear interpolation with antialiasing. Nothing is reset when the size
changes: optimiser, learning rate and sample scores go on. The averaged part of a run is always at full size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from calibrant.errors import InvalidInput, invalid
from calibrant.training.recipe import Recipe

Size = tuple[int, int]
"""Height and width in pixels."""

# `auto`: three quarters of the side for the first 60 % of the epochs (docs/budgets.md).
_AUTO_SCALE, _AUTO_SHARE = 0.75, 0.6
# Our networks halve the side up to three times.
_AUTO_MULTIPLE = 8
_SMALLEST_AUTO_SIDE = 16
# Backpropagation takes about twice the computing of the forward pass.
FLOPS_PER_GRADIENT = 3


def epoch_sizes(recipe: Recipe, image_shape: tuple[int, int, int]) -> list[Size]:
    """The size of the training images in each epoch.

    >>> from calibrant.training import Recipe
    >>> recipe = Recipe(epochs=5, schedule={"resolution": [[24, 0.6]]})
    >>> epoch_sizes(recipe, (3, 32, 32))
    [(24, 24), (24, 24), (24, 24), (32, 32), (32, 32)]
    """
    _, height, width = image_shape
    side = min(height, width)
    stages = recipe.schedule.resolution
    if stages == "auto":
        small_side = int(side * _AUTO_SCALE) // _AUTO_MULTIPLE * _AUTO_MULTIPLE
        stages = ()
        if small_side >= _SMALLEST_AUTO_SIDE:
            stages = ((small_side, min(_AUTO_SHARE, 1 - recipe.schedule.average)),)
    sizes: list[Size] = []
    share_so_far = 0.0
    for small_side, share in stages:
        if small_side >= side:
            raise invalid("schedule.resolution", f"be smaller than the images' side of {side} pixels", small_side)
        share_so_far += share
        small = (round(height * small_side / side), round(width * small_side / side))
        sizes += [small] * (round(share_so_far * recipe.epochs) - len(sizes))
    return sizes + [(height, width)] * (recipe.epochs - len(sizes))


def resized(images: Tensor, size: Size) -> Tensor:
    """Float images `(N, C, H, W)` of another size; those of this size as they are."""
    if images.shape[2:] == size:
        return images
    return functional.interpolate(images, size=size, mode="bilinear", antialias=True)


def forward_flops(network: nn.Module, image_shape: tuple[int, int, int], size: Size) -> int:
    """Floating-point operations of the forward pass of one image of this size, as torch counts them.

    A network that cannot take images of this size is refused, unless it is the data set's own.
    """
    parameter = next(network.parameters())
    image = torch.zeros(1, image_shape[0], *size, device=parameter.device, dtype=parameter.dtype)
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(image)
    except Exception as error:
        if size == image_shape[1:]:
            raise
        height, width = size
        raise InvalidInput(
            f"The network cannot take images of {height} x {width} pixels ({type(error).__name__}: {error}). "
            "Choose another size in schedule.resolution, or leave it out."
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
    return int(counter.get_total_flops())
