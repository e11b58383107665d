"""Find picture files, and decode many of them into one uint8 array."""

import math
import os
import warnings
import zipfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from calibrant.errors import InvalidInput, invalid
from calibrant.predictions.columns import check_unfolded
from calibrant.training.data.decoder import (
    PIXELS_AT_ONCE,
    RESIZE,
    Decoder,
    Picture,
    Unreadable,
    check_size,
    different_sizes,
)
from calibrant.training.data.formats.reader import Progress
from calibrant.training.data.paths import Paths, is_picture, pictures_below

_BLOCK = 1024
# JPEG of low quality, and PNG of drawings, unfold to some thirty times their size.
_MOST_UNFOLDED = 100


def pictures_in_folder(folder: Path) -> list[Picture]:
    """Every picture below a folder, sorted by path; hidden files and files of other kinds are left out."""
    return [picture_file(folder, path) for path in Paths.of(pictures_below(str(folder)))]


def picture_file(folder: Path, path: str) -> Picture:
    """The picture at `path` within `folder`."""
    place = folder / path
    try:
        stored = place.stat().st_size
    except OSError:
        stored = 0  # reading it says what is wrong
    return Picture(PurePosixPath(path), str(place), stored, place.read_bytes)


def pictures_in_zip(archive: zipfile.ZipFile) -> list[Picture]:
    """Every picture in an archive, sorted by path. Its members are read into memory alone."""
    found = []
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if not info.is_dir() and is_picture(*path.parts) and ".." not in path.parts and not path.is_absolute():
            place = f"{info.filename} in {archive.filename}"
            found.append(Picture(path, place, info.file_size, partial(read_zip_member, archive, info)))
    return sorted(found, key=lambda picture: picture.path)


def read_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo | str) -> bytes:
    """Content of one member; a missing, damaged or absurdly large one is one clear line."""
    name = member if isinstance(member, str) else member.filename
    try:
        info = archive.getinfo(name) if isinstance(member, str) else member
        check_size(f"{name} in {archive.filename}", info.file_size)
        return archive.read(info)
    except KeyError as error:
        raise invalid(str(archive.filename), f"hold {name}", "an archive without it", "Get it again.") from error
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise InvalidInput(f"{name} in {archive.filename} cannot be read: {error}. Get the archive again.") from error


def decode_pictures(
    pictures: Sequence[Picture],
    decoder: Decoder,
    *,
    left_out: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> np.ndarray[Any, Any]:
    """Decode pictures into `(N, C, H, W)`, uint8.

    Args:
        pictures: At least one.
        decoder: Without a size, all pictures must have one size; with the colour `auto`, the result has one channel
            where every picture is grey, else three.
        left_out: Where given, pictures that cannot be read are left out of the result, and this says why, by position.
            Else the first of them is an error.
        progress: Called with the number done and the total.
    """
    size, colour = decoder.size, decoder.colour
    with large_pictures_expected(), closing(decoded(pictures, decoder, progress=progress)) as results:
        first: tuple[Picture, tuple[int, ...]] | None = None
        filled, any_colour = 0, False
        for position, array in results:
            if isinstance(array, Unreadable):
                if left_out is None:
                    raise array
                left_out[position] = str(array)
                continue
            if first is None:
                first = pictures[position], array.shape
                shape = (len(pictures), 1 if colour == "grey" else 3, *array.shape[:2])
                _check_memory(shape, 0 if size else sum(picture.stored for picture in pictures))
                pixels = np.empty(shape, np.uint8)
            if array.shape[:2] != first[1][:2]:
                raise different_sizes(*first, pictures[position], array.shape)
            any_colour |= array.ndim == 3
            pixels[filled] = array.transpose(2, 0, 1) if array.ndim == 3 else array
            filled += 1
    if first is None:
        assert left_out
        raise InvalidInput(next(iter(left_out.values())))
    return np.ascontiguousarray(pixels[:filled, :1]) if colour == "auto" and not any_colour else pixels[:filled]


def decoded(
    pictures: Sequence[Picture], decode: Decoder, *, progress: Progress | None = None
) -> Generator[tuple[int, np.ndarray[Any, Any] | Unreadable], None, None]:
    """Decode pictures by several threads; gives position and pixels, or why there are none, in order."""

    def attempt(picture: Picture) -> np.ndarray[Any, Any] | Unreadable:
        try:
            return decode(picture)
        except Unreadable as error:
            return error

    size, done = 0, 0
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        while done < len(pictures):
            # Decoded pictures of a block may wait to be copied, so a block of large ones is short.
            step = max(1, min(_BLOCK, PIXELS_AT_ONCE // size)) if size else 1
            block = pictures[done : done + step]
            for offset, result in enumerate(pool.map(attempt, block)):
                size = size if isinstance(result, Unreadable) else result.size
                yield done + offset, result
            done += len(block)
            if progress is not None:
                progress(done, len(pictures))


def unreadable_pictures(
    pictures: Sequence[Picture], decoder: Decoder | None = None, *, progress: Progress | None = None
) -> list[str]:
    """Why pictures cannot be read, one line for each that cannot.

    Args:
        pictures: Those to look at.
        decoder: Decodes them, and refuses what differs in size where it does not resize; by default sizes may differ.
        progress: Called with the number done and the total.
    """
    decode = decoder or Decoder(1, "auto")
    with large_pictures_expected(), closing(decoded(pictures, decode, progress=progress)) as results:
        return [str(result) for _, result in results if isinstance(result, Unreadable)]


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive; a damaged one is one clear line."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InvalidInput(f"{path} cannot be read as a zip archive: {error}. Get it again.") from error


@contextmanager
def large_pictures_expected() -> Iterator[None]:
    """Silence Pillow's warning about large pictures: our own limit is lower, and an error."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def pixel_memory() -> int:
    """Bytes of main memory that this process may use; 0 where the system does not say."""
    if not hasattr(os, "sysconf"):
        return 0
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        # What a container may use can be less than what the machine has.
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine


def _check_memory(shape: tuple[int, ...], stored: int) -> None:
    """Refuse what can never fit, and, where the bytes of the files are given, what is far larger than these."""
    needed, memory = math.prod(shape), pixel_memory()
    # Asking for the memory is no test: systems promise more than they have, and end the process later.
    if memory and needed > memory:
        raise invalid("the pictures", "fit into memory", f"{needed / 2**30:.1f} GB", f"{RESIZE}, or a smaller one.")
    if stored:
        check_pixels(needed, stored)


def check_pixels(needed: int, stored: int) -> None:
    """Refuse pictures whose pixels take far more bytes than their files."""
    check_unfolded("the pictures", needed, stored, f"{RESIZE} to resize all of them.", most=_MOST_UNFOLDED)
