"""Decode one picture file into uint8 pixels, upright, in the wanted size and colours."""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.training.data.spec import LARGEST_SIDE

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

Colour = Literal["auto", "grey", "rgb"]
Fit = Literal["stretch", "crop", "pad"]
RESIZE = "Add ?size=64 (or another side length) to the name of the data"
# Pixels decoded at the same time, whatever the number of threads; a larger picture is decoded alone.
PIXELS_AT_ONCE = 2**25
# Pillow opens many more formats, and hands PostScript to Ghostscript, which runs it.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")
_LARGEST_FILE = 256 * 2**20
# Photographs have up to 50 million pixels. Pillow takes 4 bytes for each.
_MOST_PIXELS = 2**26


class Unreadable(InvalidInput):
    """One picture cannot be used; the others may be fine.

    Args:
        message: What is wrong and what to do.
        reason: The same in a few words, for lists; the message by default.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


@dataclass(frozen=True)
class Picture:
    """A picture file in a folder or an archive.

    Args:
        path: Its path within the folder or archive, with forward slashes.
        place: Its name in messages.
        stored: Bytes that it takes in the folder, or unpacked from the archive.
        read: Returns its bytes.
    """

    path: PurePosixPath
    place: str
    stored: int
    read: Callable[[], bytes]


class Decoder:
    """Decodes one picture to `(H, W)` or `(H, W, 3)`; from several threads, but few large pictures at once.

    Args:
        size: Side of the square that every picture becomes; None leaves them as they are.
        colour: `auto` gives a grey picture one channel and any other three.
        fit: How a picture becomes a square: `stretch` changes its aspect, `crop` cuts its longer side off evenly at
            both ends, `pad` adds black at both ends of its shorter side.
    """

    def __init__(self, size: int | None, colour: Colour, fit: Fit = "stretch") -> None:
        self.size, self.colour, self.fit = size, colour, fit
        self._free, self._changed = PIXELS_AT_ONCE, threading.Condition()
        self._first: tuple[Picture, tuple[int, int]] | None = None

    def __call__(self, picture: Picture) -> np.ndarray[Any, Any]:
        """Decode a picture; raises `Unreadable` if it cannot be used."""
        from PIL import Image

        check_size(picture.place, picture.stored)
        try:
            content = picture.read()
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                return self._decode(picture, image)
        except (InvalidInput, MemoryError):
            raise
        except Image.DecompressionBombError as error:
            raise _too_large(picture, "more") from error
        except Exception as error:  # a decoder may raise anything for a damaged file
            reason = _reason(error, picture.stored)
            raise Unreadable(
                f"{picture.place} cannot be read as an image ({reason}). Replace the file or delete it.", reason
            ) from error

    def _decode(self, picture: Picture, image: "ImageFile") -> np.ndarray[Any, Any]:
        from PIL import ImageOps

        # So far only the header was read.
        pixels = image.width * image.height
        most = LARGEST_SIDE**2
        if self.size is not None:
            most = _MOST_PIXELS
        if pixels > most:
            raise _too_large(picture, f"{image.width} x {image.height}")
        if self.size is None:
            self._first = self._first or (picture, image.size)
            # A photograph that is stored on its side has the two numbers the other way round.
            if sorted(self._first[1]) != sorted(image.size):
                raise different_sizes(self._first[0], self._first[1][::-1], picture, image.size[::-1])
        if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
            way_out = "Choose the range that matters and convert it to 8 bits; docs/data.md shows how."
            message = str(invalid(picture.place, "have 8 bits per channel", f"mode {image.mode}", way_out))
            raise Unreadable(message, f"not 8 bits per channel but mode {image.mode}")
        mode = "RGB"
        if self.colour == "grey" or (self.colour == "auto" and image.mode in _GREY_MODES):
            mode = "L"
        with self._room_for(min(pixels, PIXELS_AT_ONCE)):
            if self.size is not None:
                # A JPEG can be decoded at a fraction of its size, which is faster.
                image.draft(mode, (2 * self.size, 2 * self.size))
            ImageOps.exif_transpose(image, in_place=True)
            upright: Image.Image = image
            if upright.mode != mode:
                upright = upright.convert(mode)
            if self.size is not None and upright.size != (self.size, self.size):
                upright = _as_square(upright, self.size, self.fit)
            return np.asarray(upright)

    @contextmanager
    def _room_for(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()


def _reason(error: Exception, stored: int) -> str:
    """Why a picture cannot be read, in a few words. Pillow's messages may contain the address of a buffer."""
    text = one_line(error, most=200)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if not isinstance(error, PermissionError) and not stored:
        return "the file is empty"
    if "cannot identify" in text:
        return "not a picture of a known format"
    if "truncated" in text.lower():
        return "truncated: the file ends too early"
    return text


def _as_square(image: "Image.Image", size: int, fit: Fit) -> "Image.Image":
    from PIL import Image

    smooth = Image.Resampling.BILINEAR  # Pillow averages over all pixels that one of the result covers
    width, height = image.size
    if fit == "stretch":
        return image.resize((size, size), smooth)
    if fit == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        # One operation: what is cut off is never resized.
        return image.resize((size, size), smooth, box=(left, top, left + side, top + side))
    scale = size / max(width, height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    square = Image.new(image.mode, (size, size))
    square.paste(image.resize(inner, smooth), ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return square


def check_size(place: str, stored: int) -> None:
    """Refuse a file that is absurdly large for a picture."""
    if stored > _LARGEST_FILE:
        raise Unreadable(str(invalid(place, f"be at most {_LARGEST_FILE} bytes", stored)), "too large")


def different_sizes(first: Picture, reference: tuple[int, ...], other: Picture, shape: tuple[int, ...]) -> InvalidInput:
    """The error for pictures of two sizes, each given as height, width, ..."""
    sizes = [f"{width}x{height}" for height, width, *_ in (reference, shape)]
    rule, way_out = f"have one size, {sizes[0]} as {first.place}", f"{RESIZE} to resize all of them."
    return invalid("images", rule, f"{sizes[1]} in {other.place}", way_out)


def _too_large(picture: Picture, found: str) -> Unreadable:
    rule = f"have at most {LARGEST_SIDE**2} pixels, or {_MOST_PIXELS} if pictures are resized"
    way_out = f"Make it smaller, or {RESIZE[0].lower()}{RESIZE[1:]}."
    return Unreadable(str(invalid(picture.place, rule, found, way_out)), f"too large: {found} pixels")
