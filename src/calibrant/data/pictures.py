"""Decode many picture files into one uint8 array."""

import io
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from calibrant.data.formats.reader import Progress
from calibrant.errors import InvalidInput, invalid

Colour = Literal["auto", "grey", "rgb"]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")
_LARGEST_FILE = 256 * 2**20
_BLOCK = 1024


@dataclass(frozen=True)
class Picture:
    """A picture file in a folder or an archive.

    Args:
        path: Its path within the folder or archive, with forward slashes.
        place: Its name in messages.
        read: Returns its bytes.
    """

    path: PurePosixPath
    place: str
    read: Callable[[], bytes]


def pictures_in_folder(folder: Path) -> list[Picture]:
    """Every picture below a folder, sorted by path; hidden files and files of other kinds are left out."""
    found = []
    for path in folder.rglob("*"):
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        if _wanted(relative) and path.is_file():
            found.append(Picture(relative, str(path), path.read_bytes))
    return sorted(found, key=lambda picture: picture.path)


def pictures_in_zip(archive: zipfile.ZipFile) -> list[Picture]:
    """Every picture in an archive, sorted by path. Its members are read into memory alone."""
    found = []
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if not info.is_dir() and _wanted(path) and ".." not in path.parts and not path.is_absolute():
            place = f"{info.filename} in {archive.filename}"
            found.append(Picture(path, place, partial(read_zip_member, archive, info)))
    return sorted(found, key=lambda picture: picture.path)


def read_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo | str) -> bytes:
    """Content of one member; a missing, damaged or absurdly large one is one clear line."""
    name = member if isinstance(member, str) else member.filename
    try:
        info = archive.getinfo(name) if isinstance(member, str) else member
        if info.file_size > _LARGEST_FILE:
            raise invalid(f"{name} in {archive.filename}", f"be at most {_LARGEST_FILE} bytes", info.file_size)
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
    first = _decode(pictures[0], size, colour)
    channels = 1 if colour == "grey" else 3
    pixels = np.empty((len(pictures), channels, *first.shape[:2]), np.uint8)
    any_colour = False
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        # In blocks, so that a bad file stops the work soon and few decoded pictures wait in memory.
        for start in range(0, len(pictures), _BLOCK):
            block = pictures[start : start + _BLOCK]
            for offset, array in enumerate(pool.map(lambda picture: _decode(picture, size, colour), block)):
                if array.shape[:2] != first.shape[:2]:
                    raise _different_sizes(pictures[0], first, block[offset], array)
                any_colour |= array.ndim == 3
                pixels[start + offset] = array.transpose(2, 0, 1) if array.ndim == 3 else array
            if progress is not None:
                progress(start + len(block), len(pictures))
    return np.ascontiguousarray(pixels[:, :1]) if colour == "auto" and not any_colour else pixels


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive; a damaged one is one clear line."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InvalidInput(f"{path} cannot be read as a zip archive: {error}. Get it again.") from error


def _wanted(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _decode(picture: Picture, size: int | None, colour: Colour) -> np.ndarray[Any, Any]:
    """One picture as `(H, W)` or `(H, W, 3)`."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(picture.read())) as image:
            if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
                raise invalid(picture.place, "have 8 bits a channel", f"mode {image.mode}", "Convert it to 8 bits.")
            mode = "L" if colour == "grey" or (colour == "auto" and image.mode in _GREY_MODES) else "RGB"
            if size is not None:
                # A JPEG can be decoded at a fraction of its size, which is faster.
                image.draft(mode, (2 * size, 2 * size))
            upright = ImageOps.exif_transpose(image).convert(mode)
            if size is not None and upright.size != (size, size):
                upright = upright.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(upright)
    except InvalidInput:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        # Pillow ends some messages with the address of the buffer, which says nothing to a reader.
        reason = "unknown format" if "cannot identify" in str(error) else str(error)
        raise InvalidInput(
            f"{picture.place} cannot be read as an image ({reason}). Replace the file or take it away."
        ) from error


def _different_sizes(
    first: Picture, reference: np.ndarray[Any, Any], other: Picture, array: np.ndarray[Any, Any]
) -> InvalidInput:
    sizes = [f"{shape[1]}x{shape[0]}" for shape in (reference.shape, array.shape)]
    return invalid(
        "images",
        f"have one size, {sizes[0]} as {first.place}",
        f"{sizes[1]} in {other.place}",
        "Add ?size=64 (or another side length) to the name of the data to resize all of them.",
    )
