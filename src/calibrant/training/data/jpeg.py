"""JPEG files by torchvision, which decodes and resizes them faster than Pillow, to pixels that differ a little."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from calibrant.errors import importing

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_ORIENTATION = 0x0112  # the EXIF tag; 1 stands for upright


def check_torchvision() -> None:
    """One line where torchvision is missing or does not fit torch."""
    with importing("decoder=torchvision", "torchvision", "vision"):
        from torchvision.io import decode_jpeg  # noqa: F401 (whether it can be imported is the question)


def pixels_by_torchvision(
    image: "ImageFile", content: bytes, *, grey: bool, size: int | None, fit: str
) -> np.ndarray[Any, Any] | None:
    """Pixels of an upright JPEG file, `(H, W)` or `(H, W, 3)`; None for any other file, which Pillow has to decode.

    Args:
        image: The file as Pillow opened it; only its header has been read.
        content: The bytes of the file.
        grey: Whether the result has one channel.
        size: See `Decoder`.
        fit: See `Decoder`.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    if image.format != "JPEG" or image.mode not in ("L", "RGB") or image.getexif().get(_ORIENTATION, 1) != 1:
        return None
    stored = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    try:
        pixels = decode_jpeg(stored, ImageReadMode.GRAY if grey else ImageReadMode.RGB)
    except RuntimeError:  # the file is damaged, and Pillow says how
        return None
    if size is not None and pixels.shape[1:] != (size, size):
        pixels = _as_square(pixels, size, fit)
    found: np.ndarray[Any, Any] = pixels.permute(1, 2, 0).contiguous().numpy()
    return found[:, :, 0] if grey else found


def _as_square(pixels: Tensor, size: int, fit: str) -> Tensor:
    """What `_as_square` of the decoder does with Pillow, for `(C, H, W)`."""
    height, width = pixels.shape[1:]
    inner = (size, size)
    if fit == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        pixels = pixels[:, top : top + side, left : left + side]
    if fit == "pad":
        scale = size / max(height, width)
        inner = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = interpolate(pixels[None], inner, mode="bilinear", antialias=True)[0]
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    return pad(small, (left, size - inner[1] - left, top, size - inner[0] - top))
