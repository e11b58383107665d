"""Decode many picture files into one uint8 array."""

import io
import math
import os
import struct
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.data.formats.reader import Progress
from calibrant.data.spec import LARGEST_SIDE
from calibrant.errors import InvalidInput, invalid
from calibrant.npz import check_unfolded

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Colour = Literal["auto", "grey", "rgb"]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")
_LARGEST_FILE = 256 * 2**20
# Photographs have up to 50 million pixels. Pillow takes 4 bytes for each.
_MOST_PIXELS = 2**26
# What is decoded at the same time, whatever the number of threads; a larger picture is decoded alone.
_PIXELS_AT_ONCE = 2**25
_BLOCK = 1024
# JPEG of low quality, and PNG of drawings, unfold to some thirty times their size.
_MOST_UNFOLDED = 100
_RESIZE = "Add ?size=64 (or another side length) to the name of the data"


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


def pictures_in_folder(folder: Path) -> list[Picture]:
    """Every picture below a folder, sorted by path; hidden files and files of other kinds are left out."""
    found = []
    for path in folder.rglob("*"):
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        if _wanted(relative) and path.is_file():
            _refuse_other_encoding(path)
            found.append(Picture(relative, str(path), path.stat().st_size, path.read_bytes))
    return sorted(found, key=lambda picture: picture.path)


def pictures_in_zip(archive: zipfile.ZipFile) -> list[Picture]:
    """Every picture in an archive, sorted by path. Its members are read into memory alone."""
    found = []
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if not info.is_dir() and _wanted(path) and ".." not in path.parts and not path.is_absolute():
            place = f"{info.filename} in {archive.filename}"
            found.append(Picture(path, place, info.file_size, partial(read_zip_member, archive, info)))
    return sorted(found, key=lambda picture: picture.path)


def read_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo | str) -> bytes:
    """Content of one member; a missing, damaged or absurdly large one is one clear line."""
    name = member if isinstance(member, str) else member.filename
    try:
        info = archive.getinfo(name) if isinstance(member, str) else member
        _check_size(f"{name} in {archive.filename}", info.file_size)
        return archive.read(info)
    except KeyError as error:
        raise invalid(str(archive.filename), f"hold {name}", "an archive without it", "Get it again.") from error
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise InvalidInput(f"{name} in {archive.filename} cannot be read: {error}. Get the archive again.") from error


def decode_pictures(
    pictures: Sequence[Picture],
    *,
    size: int | None = None,
    colour: Colour = "auto",
    progress: Progress | None = None,
) -> np.ndarray[Any, Any]:
    """Decode pictures into `(N, C, H, W)`, uint8.

    Args:
        pictures: At least one.
        size: Side of the square to which every picture is resized; None leaves them as they are, and then they must all
            have one size.
        colour: `auto` gives one channel where every picture is grey, else three.
        progress: Called with the number done and the total.
    """
    from PIL import Image

    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        # Ours is the lower limit.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        decode = _Decoder(size, colour)
        first = decode(pictures[0])
        shape = (len(pictures), 1 if colour == "grey" else 3, *first.shape[:2])
        _check_memory(shape, 0 if size else sum(picture.stored for picture in pictures))
        pixels = np.empty(shape, np.uint8)
        any_colour = False
        # Decoded pictures of a block may wait to be copied, so a block of large ones is short.
        step = max(1, min(_BLOCK, _PIXELS_AT_ONCE // first.size))
        for start in range(0, len(pictures), step):
            block = pictures[start : start + step]
            for offset, array in enumerate(pool.map(decode, block)):
                if array.shape[:2] != first.shape[:2]:
                    raise _different_sizes(pictures[0], first.shape, block[offset], array.shape)
                any_colour |= array.ndim == 3
                pixels[start + offset] = array.transpose(2, 0, 1) if array.ndim == 3 else array
            if progress is not None:
                progress(start + len(block), len(pictures))
    return np.ascontiguousarray(pixels[:, :1]) if colour == "auto" and not any_colour else pixels


def unreadable_pictures(pictures: Sequence[Picture], *, progress: Progress | None = None) -> list[str]:
    """Why pictures cannot be read, one line for each that cannot; different sizes are no reason here."""
    from PIL import Image

    decode, lines = _Decoder(1, "auto"), []

    def reason(picture: Picture) -> str | None:
        try:
            decode(picture)
        except InvalidInput as error:
            return str(error)
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for done, line in enumerate(pool.map(reason, pictures), start=1):
            lines += [] if line is None else [line]
            if progress is not None:
                progress(done, len(pictures))
    return lines


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive; a damaged one is one clear line."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InvalidInput(f"{path} cannot be read as a zip archive: {error}. Get it again.") from error


def _wanted(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


class _Decoder:
    """Decodes one picture to `(H, W)` or `(H, W, 3)`; from several threads, but few large pictures at once."""

    def __init__(self, size: int | None, colour: Colour) -> None:
        self.size, self.colour = size, colour
        self._free, self._changed = _PIXELS_AT_ONCE, threading.Condition()
        self._first: tuple[Picture, tuple[int, int]] | None = None

    def __call__(self, picture: Picture) -> np.ndarray[Any, Any]:
        from PIL import Image

        _check_size(picture.place, picture.stored)
        try:
            with Image.open(io.BytesIO(picture.read())) as image:
                return self._decode(picture, image)
        except InvalidInput:
            raise
        except Image.DecompressionBombError as error:
            raise _too_large(picture, "more") from error
        except (OSError, ValueError, SyntaxError, EOFError, OverflowError, struct.error) as error:
            # Pillow ends some messages with the address of the buffer, which says nothing to a reader.
            reason = "unknown format" if "cannot identify" in str(error) else str(error)
            raise InvalidInput(
                f"{picture.place} cannot be read as an image ({reason}). Replace the file or take it away."
            ) from error

    def _decode(self, picture: Picture, image: "ImageFile") -> np.ndarray[Any, Any]:
        from PIL import Image, ImageOps

        # Until here only the header was read.
        pixels = image.width * image.height
        if pixels > (_MOST_PIXELS if self.size is not None else LARGEST_SIDE**2):
            raise _too_large(picture, f"{image.width} x {image.height}")
        if self.size is None:
            self._first = self._first or (picture, image.size)
            # A photograph that is stored on its side has the two numbers the other way round.
            if sorted(self._first[1]) != sorted(image.size):
                raise _different_sizes(self._first[0], self._first[1][::-1], picture, image.size[::-1])
        if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
            way_out = "Choose the range that matters and convert it to 8 bits; docs/data.md shows how."
            raise invalid(picture.place, "have 8 bits per channel", f"mode {image.mode}", way_out)
        mode = "L" if self.colour == "grey" or (self.colour == "auto" and image.mode in _GREY_MODES) else "RGB"
        if self.size is not None:
            # A JPEG can be decoded at a fraction of its size, which is faster.
            image.draft(mode, (2 * self.size, 2 * self.size))
        with self._room_for(min(pixels, _PIXELS_AT_ONCE)):
            ImageOps.exif_transpose(image, in_place=True)
            upright = image if image.mode == mode else image.convert(mode)
            if self.size is not None and upright.size != (self.size, self.size):
                upright = upright.resize((self.size, self.size), Image.Resampling.BILINEAR)
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


def _refuse_other_encoding(path: Path) -> None:
    """Refuse a name that is not UTF-8: it would be a class name or an id, which no file of ours could hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise invalid("folder", "have names in UTF-8", shown, "Rename the file or the folder.") from error


def _check_size(place: str, stored: int) -> None:
    if stored > _LARGEST_FILE:
        raise invalid(place, f"be at most {_LARGEST_FILE} bytes", stored)


def _too_large(picture: Picture, found: str) -> InvalidInput:
    rule = f"have at most {LARGEST_SIDE**2} pixels, or {_MOST_PIXELS} where pictures are resized"
    return invalid(picture.place, rule, found, f"Make it smaller, or {_RESIZE[0].lower()}{_RESIZE[1:]}.")


def _check_memory(shape: tuple[int, ...], stored: int) -> None:
    """Refuse what can never fit, and, where the bytes of the files are given, what is far larger than these."""
    needed = math.prod(shape)
    # Asking for the memory is no test: systems promise more than they have, and end the process later.
    if hasattr(os, "sysconf") and needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise invalid("the pictures", "fit into memory", f"{needed / 2**30:.1f} GB", f"{_RESIZE}, or a smaller one.")
    if stored:
        check_unfolded("the pictures", needed, stored, f"{_RESIZE} to resize all of them.", most=_MOST_UNFOLDED)


def _different_sizes(
    first: Picture, reference: tuple[int, ...], other: Picture, shape: tuple[int, ...]
) -> InvalidInput:
    sizes = [f"{width}x{height}" for height, width, *_ in (reference, shape)]
    return invalid(
        "images",
        f"have one size, {sizes[0]} as {first.place}",
        f"{sizes[1]} in {other.place}",
        f"{_RESIZE} to resize all of them.",
    )
