"""IDX files (LeCun), plain or gzipped: the format of MNIST and Fashion-MNIST."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InvalidInput, invalid
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.formats.digests import check_content
from calibrant.training.data.formats.reader import Progress, Reader, Source, existing
from calibrant.training.data.spec import Spec

_UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class IdxFile:
    """One of the four files: its name without `.gz`, its shape and the SHA-256 of its unpacked content.

    The content and not the archive is checked, because the same content is also distributed in other archives.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Idx(Reader):
    """Reads images and labels of both splits.

    Args:
        folders: Names of the folders in which the set may lie.
        train: Images and labels to train on.
        test: Images and labels to test on.
    """

    folders: tuple[str, ...]
    train: tuple[IdxFile, IdxFile]
    test: tuple[IdxFile, IdxFile]

    def find(self, folder: Path) -> Source | None:
        """All four files, with or without `.gz`.

        Several sets use the same four names. In a folder with the name of this set damage is an error; in any other
        one, files count only where the labels show that they are of this set.
        """
        for place in (*(folder / name for name in self.folders), folder):
            paths = [existing(place, file.name, f"{file.name}.gz") for file in (*self.train, *self.test)]
            found = tuple(path for path in paths if path is not None)
            if len(found) == len(paths) and (place.name in self.folders or self._is_ours(found[-1])):
                return Source("files", found)
        return None

    def _is_ours(self, labels: Path) -> bool:
        try:
            _read(labels, self.test[1])
        except InvalidInput:
            return False
        return True

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read the four files and check the digest of each."""
        del spec, progress
        files = (*self.train, *self.test)
        arrays = [_read(path, file) for path, file in zip(source.paths, files, strict=True)]
        train, test = (_images(*pair) for pair in (arrays[:2], arrays[2:]))
        return Splits(train, test, verified="SHA-256 of the content of the official files")

    def verify_arrays(self, splits: Splits) -> str:
        """Rebuild the content of the official files from the arrays and check the digests."""
        for split, (images, labels) in ((splits.train, self.train), (splits.test, self.test)):
            _verify(split.images.squeeze(1), images)
            _verify(split.labels.to(torch.uint8), labels)
        return "SHA-256 of the content of the official files, rebuilt from the arrays"


def header(shape: tuple[int, ...]) -> bytes:
    """The first bytes of an IDX file of unsigned bytes."""
    return struct.pack(f">HBB{len(shape)}I", 0, _UNSIGNED_BYTE, len(shape), *shape)


def _verify(array: Tensor, file: IdxFile) -> None:
    content = header(tuple(array.shape)) + array.contiguous().numpy().tobytes()
    check_content(content, f"sha256:{file.sha256}", f"the array that stands for {file.name}")


def _read(path: Path, file: IdxFile) -> np.ndarray[Any, Any]:
    start = header(file.shape)
    expected = len(start) + math.prod(file.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as handle:
            # One byte more than expected is read: enough to notice a longer file, and a compression bomb stays packed.
            content = handle.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}. Get it again.") from error
    if len(content) != expected or not content.startswith(start):
        rule = f"be an IDX file of bytes of shape {file.shape}"
        raise invalid(str(path), rule, f"{len(content)} bytes that start with {content[:4].hex()}", "Get it again.")
    check_content(content, f"sha256:{file.sha256}", str(path))
    return np.frombuffer(content, np.uint8, offset=len(start)).reshape(file.shape)


def _images(pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Images:
    return Images(torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
