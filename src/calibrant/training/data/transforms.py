"""Normalising and augmenting a whole batch on its device.

Nothing here waits for the device, shapes do not depend on values, and randomness comes in as tensors, so that a step
which uses these functions can be compiled and captured in a CUDA graph.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

# Pixels from which on a CPU is faster with one image after the other than with all at once.
_LARGE = 48 * 48


def draw_augmentation(
    n: int,
    padding: int,
    flip: bool | str,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw where to crop and what to mirror for `n` images.

    Args:
        n: Number of images.
        padding: Pixels of padding on each side; offsets lie in `0..2 * padding`.
        flip: Whether to mirror half of the images (a name of a way to do it counts as yes).
        generator: Source of randomness; it must live on `device`.
        device: Where the result is made.

    Returns:
        `(n, 2)` int64 row and column offsets into the padded image, and `(n,)` booleans.

    >>> offsets, flips = draw_augmentation(5, 0, False)
    >>> offsets.shape, int(offsets.sum()), int(flips.sum())
    (torch.Size([5, 2]), 0, 0)
    """
    offsets = torch.randint(0, 2 * padding + 1, (n, 2), generator=generator, device=device)
    coins = torch.rand(n, generator=generator, device=device)
    return offsets, coins < 0.5 * bool(flip)


def augment(images: Tensor, crop_offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Crop each image at its own offset out of a zero-padded copy, then mirror the chosen ones.

    uint8 images are padded with black, which is what cropping before normalising means; images that are normalised
    already are padded with the mean.

    Args:
        images: `(N, C, H, W)`, any dtype.
        crop_offsets: `(N, 2)` integers in `0..2 * padding`; `(padding, padding)` leaves the image where it is.
        flips: `(N,)` booleans.
        padding: Pixels of padding on each side.

    Returns:
        `(N, C, H, W)`, the dtype of `images`, contiguous.

    >>> import torch
    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> augment(image, torch.tensor([[1, 1]]), torch.tensor([True]), 1).flatten().tolist()
    [1, 0, 3, 2]
    """
    _, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    if images.device.type == "cpu" and height * width >= _LARGE and not torch.compiler.is_compiling():
        return _augment_one_by_one(padded, crop_offsets, flips, images)
    row = torch.arange(height, device=images.device) + crop_offsets[:, :1]
    column = torch.arange(width, device=images.device)
    column = torch.where(flips[:, None], width - 1 - column, column) + crop_offsets[:, 1:]
    # One flat position per pixel, shared by the channels: a single gather moves the whole batch.
    position = (row * (width + 2 * padding)).unsqueeze(2) + column.unsqueeze(1)
    flat = position.flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, flat).view(images.shape)


def _augment_one_by_one(padded: Tensor, crop_offsets: Tensor, flips: Tensor, like: Tensor) -> Tensor:
    """The same by slices, which a CPU copies faster than it gathers pixels."""
    height, width = like.shape[2:]
    result = torch.empty_like(like, memory_format=torch.contiguous_format)
    for index, ((row, column), flip) in enumerate(zip(crop_offsets.tolist(), flips.tolist(), strict=True)):
        part = padded[index, :, row : row + height, column : column + width]
        if flip:
            part = part.flip(-1)
        result[index] = part
    return result


def normalise(
    images: Tensor,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Turn uint8 images into `(images / 255 - mean) / std`.

    Computed in float32 (float64 for float64) and rounded once, so that bfloat16 images are as exact as they can be.

    Args:
        images: `(N, C, H, W)`, uint8.
        mean: Per channel, on the scale from 0 to 1. Inside a CUDA graph pass tensors that live on the device: making
            one from numbers copies from the host, which a capture forbids.
        std: Per channel, like `mean`.
        dtype: Floating-point type of the result.
        memory_format: `torch.channels_last` is the fast one for convolutions on a GPU.

    >>> import torch
    >>> normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), [0.5], [0.25]).item()
    2.0
    """
    wide = torch.promote_types(dtype, torch.float32)
    middle, spread = (torch.as_tensor(v, dtype=wide, device=images.device).view(1, -1, 1, 1) for v in (mean, std))
    # In place: a batch of photographs takes tens of megabytes as floats, and a new array for each step costs more time
    # than the step itself.
    scaled = images.to(wide, copy=True).div_(255).sub_(middle).div_(spread)
    return scaled.to(dtype=dtype, memory_format=memory_format)
