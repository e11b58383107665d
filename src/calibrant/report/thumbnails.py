"""Small pictures inside the page."""

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import invalid
from calibrant.predictions import Npz
from calibrant.predictions.columns import shortened

Pixels = NDArray[np.uint8]
# Longest side in the page; smaller pictures stay as they are and are enlarged by the browser without blurring.
_LONGEST = 96


def check_images(images: Pixels, rows: int, argument: str = "images") -> Pixels:
    """Images as (n, H, W) or (n, H, W, C) with C of 1, 3 or 4, uint8, one for each row of the predictions."""
    good_shape = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] in {1, 3, 4})
    if images.dtype != np.uint8 or not good_shape:
        found = f"{images.dtype} of shape {images.shape}"
        raise invalid(argument, "be uint8 of shape (n, H, W) or (n, H, W, C) with 1, 3 or 4 channels", found)
    if len(images) != rows:
        raise invalid(argument, f"hold one image for each of the {rows} predictions", len(images))
    return images[..., 0] if images.ndim == 4 and images.shape[-1] == 1 else images


def read_images(path: str | Path) -> Pixels:
    """Read the array `images` (or `x_test`) of an `.npz` file."""
    with Npz(path) as archive:
        for name in ("images", "x_test"):
            if name in archive:
                return archive.read(name)
        raise invalid(str(path), "hold an array named images or x_test", shortened(archive.names) or "nothing")


def data_uri(image: Pixels) -> str:
    """One image as a PNG inside an address; at most 96 pixels on the longest side."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > _LONGEST:
        picture.thumbnail((_LONGEST, _LONGEST))
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
