"""Find picture files in folders and archives, and decode them into uint8 pixels, upright, in the wanted size."""

import io
import math
import os
import threading
import warnings
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.predictions.columns import check_unfolded
from calibrant.training.data.dataset import Progress
from calibrant.training.data.spec import LARGEST_SIDE

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile


Colour = Literal["auto", "grey", "rgb"]
Fit = Literal["stretch", "crop", "pad"]
RESIZE = "Add ?size=64 (or another side length) to the name of the data"
# Of pictures with more pixels, one is decoded at a time, whatever the number of threads: Pillow takes 4 bytes for each.
_LARGE = 2**22
_one_large = threading.Lock()
# Pillow opens many more formats, and hands PostScript to Ghostscript, which runs it.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")
_LARGEST_FILE = 256 * 2**20
# Photographs have up to 50 million pixels.
_MOST_PIXELS = 2**26


class Unreadable(InvalidInput):
    """One picture cannot be used; the others may be fine."""


@dataclass(frozen=True)
class Picture:
    """A picture file in a folder or an archive."""

    path: PurePosixPath  # within the folder or archive
    place: str  # its name in messages
    stored: int  # bytes, unpacked
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Decoder:
    """Decodes one picture to `(C, H, W)`; from several threads, but one large picture at a time.

    Args:
        size: Side of the square that every picture becomes; None leaves them as they are.
        colour: `auto` gives a grey picture one channel and any other three.
        fit: How a picture becomes a square: `stretch` changes its aspect, `crop` cuts its longer side off evenly at
            both ends, `pad` adds black at both ends of its shorter side.
    """

    size: int | None
    colour: Colour
    fit: Fit = "stretch"

    @property
    def most_channels(self) -> int:
        """1 if every picture becomes grey, else 3."""
        return 1 if self.colour == "grey" else 3

    def __call__(self, picture: Picture) -> np.ndarray[Any, Any]:
        """Decode a picture; raises `Unreadable` if it cannot be used."""
        from PIL import Image

        if picture.stored > _LARGEST_FILE:
            raise Unreadable(str(invalid(picture.place, f"be at most {_LARGEST_FILE} bytes", picture.stored)))
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
                f"{picture.place} cannot be read as an image ({reason}). Replace the file or delete it; "
                "'calibrant data check' names all that cannot be read."
            ) from error

    def _decode(self, picture: Picture, image: "ImageFile") -> np.ndarray[Any, Any]:
        from PIL import ImageOps

        # So far only the header was read.
        pixels = image.width * image.height
        if pixels > (LARGEST_SIDE**2 if self.size is None else _MOST_PIXELS):
            raise _too_large(picture, f"{image.width} x {image.height}")
        if image.mode not in (*_GREY_MODES, *_COLOUR_MODES):
            hint = "Choose the range that matters and convert it to 8 bits; docs/data.md shows how."
            raise Unreadable(str(invalid(picture.place, "have 8 bits per channel", f"mode {image.mode}", hint)))
        mode = "RGB"
        if self.colour == "grey" or (self.colour == "auto" and image.mode in _GREY_MODES):
            mode = "L"
        with _one_large if pixels > _LARGE else nullcontext():
            if self.size is not None:
                # A JPEG can be decoded at a fraction of its size, which is faster.
                image.draft(mode, (2 * self.size, 2 * self.size))
            ImageOps.exif_transpose(image, in_place=True)
            upright: Image.Image = image
            if upright.mode != mode:
                upright = upright.convert(mode)
            if self.size is not None and upright.size != (self.size, self.size):
                upright = _as_square(upright, self.size, self.fit)
            return np.atleast_3d(np.asarray(upright)).transpose(2, 0, 1)


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
    from PIL import Image, ImageOps

    smooth = Image.Resampling.BILINEAR  # Pillow averages over all pixels that one of the result covers
    if fit == "crop":
        return ImageOps.fit(image, (size, size), smooth)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), smooth, color=0)
    return image.resize((size, size), smooth)


def check_shape(pixels: np.ndarray[Any, Any], expected: tuple[int, ...], picture: Picture, first: Picture) -> None:
    """Refuse a picture that is not as high and wide as the first one; `expected` ends in these two numbers."""
    if pixels.shape[1:] != expected[-2:]:
        sizes = [f"{width}x{height}" for height, width in (expected[-2:], pixels.shape[1:])]
        rule, hint = f"have one size, {sizes[0]} as {first.place}", f"{RESIZE} to resize all of them."
        raise invalid("images", rule, f"{sizes[1]} in {picture.place}", hint)


def _too_large(picture: Picture, found: str) -> Unreadable:
    rule = f"have at most {LARGEST_SIDE**2} pixels, or {_MOST_PIXELS} if pictures are resized"
    hint = f"Make it smaller, or {RESIZE[0].lower()}{RESIZE[1:]}."
    return Unreadable(str(invalid(picture.place, rule, found, hint)))


_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# Decoded pictures of a block may wait to be copied: so many of them, and fewer of large ones.
_BLOCK, _PIXELS_OF_A_BLOCK = 1024, 2**25
# JPEG of low quality, and PNG of drawings, unfold to some thirty times their size.
_MOST_UNFOLDED = 100


Pictures: TypeAlias = "Sequence[Picture] | FolderPictures"


# finding files --------------------------------------------------------------------------------------------------------


def pictures_below(folder: str, prefix: str = "") -> Iterator[str]:
    """The path of every picture below a folder, behind `prefix`, with forward slashes, sorted part by part.

    No file is opened, so a million files are listed in seconds. Links to files are followed; links to folders are not,
    because they could form a circle.
    """
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from pictures_below(entry.path, f"{prefix}{entry.name}/")
        elif entry.name.lower().endswith(_ENDINGS) and entry.is_file():
            yield prefix + entry.name


def folders_in(place: str | os.PathLike[str]) -> list[str]:
    """Names of the folders in a folder, sorted; links to folders count here."""
    return [entry.name for entry in _entries(place) if entry.is_dir()]


def _entries(folder: str | os.PathLike[str]) -> "list[os.DirEntry[str]]":
    """What is not hidden in a folder, sorted by name."""
    try:
        with os.scandir(os.fspath(folder)) as found:
            return sorted((entry for entry in found if not _is_hidden(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise invalid("folder", "be readable", str(folder), f"{error.strerror}.") from error


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


class FolderPictures:
    """Pictures of a folder. Their paths are one array, and a file is looked at only when it is asked for.

    The array is shared with loader processes as it is. A list of a million Python strings would be copied into each of
    them little by little, because reading a Python object writes its reference count. A name that is not UTF-8 is
    refused: no file of ours could hold it as an id.

    >>> pictures = FolderPictures(Path("photos"), ["a/1.png", "b/2.png"])
    >>> len(pictures), pictures.path(1)
    (2, 'b/2.png')
    """

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        try:
            self.paths = np.array([path.encode() for path in paths], dtype=np.bytes_)
        except UnicodeEncodeError as error:
            shown = os.fsencode(error.object).decode("utf-8", "backslashreplace")
            raise invalid("folder", "have names in UTF-8", shown, "Rename the file or the folder.") from error
        self.folder = folder

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        """The path within the folder."""
        return bytes(self.paths[index]).decode()

    def __getitem__(self, index: int) -> Picture:
        path = self.path(index)
        place = self.folder / path
        try:
            stored = place.stat().st_size
        except OSError:
            stored = 0  # reading it says what is wrong
        return Picture(PurePosixPath(path), str(place), stored, place.read_bytes)


def pictures_in_folder(folder: Path) -> list[Picture]:
    """Every picture below a folder, sorted by path; hidden files and files of other kinds are left out."""
    pictures = FolderPictures(folder, list(pictures_below(str(folder))))
    return [pictures[row] for row in range(len(pictures))]


def pictures_in_zip(path: Path, folder: str) -> list[Picture]:
    """Every picture in a folder of an archive, sorted by path. Nothing is unpacked to disk."""
    found, archive = [], zipfile.ZipFile(path)
    for info in archive.infolist():
        name = PurePosixPath(info.filename)
        if name.parts[:1] == (folder,) and name.suffix.lower() in _ENDINGS and not any(map(_is_hidden, name.parts)):
            place, read = f"{name} in {path}", partial(archive.read, info)
            found.append(Picture(name.relative_to(folder), place, info.file_size, read))
    return sorted(found, key=lambda picture: picture.path)


# decoding many --------------------------------------------------------------------------------------------------------


def decode_pictures(pictures: Pictures, decoder: Decoder, *, progress: Progress | None = None) -> np.ndarray[Any, Any]:
    """Decode at least one picture into `(N, C, H, W)`, uint8.

    If the decoder has no size, all pictures must have one size. With the colour `auto`, the result has one channel if
    every picture is grey, else three.
    """
    any_colour = False
    with closing(decode_alike(pictures, decoder, progress=progress)) as results:
        for position, pixels in results:
            if position == 0:
                shape = (len(pictures), decoder.most_channels, *pixels.shape[1:])
                _check_memory(shape, pictures, decoder)
                result = np.empty(shape, np.uint8)
            any_colour |= len(pixels) == 3
            result[position] = pixels
    if decoder.colour == "auto" and not any_colour:
        return np.ascontiguousarray(result[:, :1])
    return result


def decode_alike(
    pictures: Pictures, decoder: Decoder, *, progress: Progress | None = None
) -> Generator[tuple[int, np.ndarray[Any, Any]], None, None]:
    """Decode pictures; one that cannot be read, or has another size than the first one, is an error."""
    expected: tuple[int, ...] = ()
    with closing(decoded(pictures, decoder, progress=progress)) as results:
        for position, pixels in results:
            if isinstance(pixels, Unreadable):
                raise pixels
            expected = expected or pixels.shape
            check_shape(pixels, expected, pictures[position], pictures[0])
            yield position, pixels


def decoded(
    pictures: Pictures, decode: Decoder, *, progress: Progress | None = None
) -> Generator[tuple[int, np.ndarray[Any, Any] | Unreadable], None, None]:
    """Decode pictures by several threads; yields position and pixels, or why there are none, in order."""

    def attempt(picture: Picture) -> np.ndarray[Any, Any] | Unreadable:
        try:
            return decode(picture)
        except Unreadable as error:
            return error

    done, step = 0, 1
    with large_pictures_expected(), ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        while done < len(pictures):
            block = [pictures[row] for row in range(done, min(done + step, len(pictures)))]
            for offset, result in enumerate(pool.map(attempt, block)):
                if not isinstance(result, Unreadable):
                    step = max(1, min(_BLOCK, _PIXELS_OF_A_BLOCK // result.size))
                yield done + offset, result
            done += len(block)
            if progress is not None:
                progress(done, len(pictures))


@contextmanager
def large_pictures_expected() -> Iterator[None]:
    """Silence Pillow's warning about large pictures: our own limit is lower, and an error."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def pixel_memory() -> int:
    """Bytes of main memory that this process may use; 0 if the system does not say."""
    if not hasattr(os, "sysconf"):
        return 0
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        # What a container may use can be less than what the machine has.
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


def _check_memory(shape: tuple[int, ...], pictures: Pictures, decoder: Decoder) -> None:
    """Refuse what can never fit, and files that are not resized and unfold to far more than their size."""
    needed, memory = math.prod(shape), pixel_memory()
    # Asking for the memory is no test: systems promise more than they have, and end the process later.
    if memory and needed > memory:
        raise invalid("the pictures", "fit into memory", f"{needed / 2**30:.1f} GB", f"{RESIZE}, or a smaller one.")
    if decoder.size is None:
        check_pixels(needed, sum(pictures[row].stored for row in range(len(pictures))))


def check_pixels(needed: int, stored: int) -> None:
    """Refuse pictures whose pixels take far more bytes than their files."""
    check_unfolded("the pictures", needed, stored, f"{RESIZE} to resize all of them.", most=_MOST_UNFOLDED)
