"""Chest X-rays of children (Kermany et al. 2018, Mendeley Data V2): JPEG files in folders by split and class."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from calibrant.errors import invalid
from calibrant.training.data.class_names import CHEST_XRAY
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.decoder import Decoder, Picture
from calibrant.training.data.formats.reader import Progress, Reader, Source, existing
from calibrant.training.data.pictures import decode_pictures, open_zip, pictures_in_folder, pictures_in_zip
from calibrant.training.data.spec import Spec

_ARCHIVE = "ChestXRay2017.zip"
_FOLDER = "chest_xray"
# A popular copy moved 16 training images to a folder of their own; they belong to the training images.
_SPLIT_OF = {"train": "train", "val": "train", "test": "test"}
_DEFAULT_SIZE = 64


@dataclass(frozen=True)
class ChestXray(Reader):
    """Reads the archive or the unpacked folder; pictures become grey squares, 64 pixels per side unless told."""

    options = ("size",)
    slow = True

    def find(self, folder: Path) -> Source | None:
        """The archive, or the folder that holds `train` and `test`."""
        for place in (folder / _FOLDER, folder):
            if all((place / split / name).is_dir() for split in ("train", "test") for name in CHEST_XRAY):
                return Source("folder", (place,))
        archive = existing(folder, _ARCHIVE)
        return Source("archive", (archive,)) if archive is not None else None

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Decode and resize every picture. No digest is published: the number of images is checked."""
        with ExitStack() as stack:
            if source.form == "archive":
                pictures = pictures_in_zip(stack.enter_context(open_zip(source.paths[0])))
            else:
                pictures = pictures_in_folder(source.paths[0])
            chosen = [(place, picture) for picture in pictures if (place := _place(picture.path)) is not None]
            if not chosen:
                raise invalid(str(source.paths[0]), "hold train and test with NORMAL and PNEUMONIA", "none of them")
            size = spec.size(_DEFAULT_SIZE)
            pixels = torch.from_numpy(
                decode_pictures([picture for _, picture in chosen], Decoder(size, "grey"), progress=progress)
            )
        train, test = (_split(chosen, pixels, split) for split in ("train", "test"))
        return Splits(train, test, verified="number of images (no digest is published)")


def _place(path: PurePosixPath) -> tuple[str, int] | None:
    """Split and label of a path, which may start with the folder of the archive."""
    parts = path.parts[1:] if path.parts[0] == _FOLDER else path.parts
    if len(parts) != 3 or parts[0] not in _SPLIT_OF or parts[1] not in CHEST_XRAY:
        return None
    return _SPLIT_OF[parts[0]], CHEST_XRAY.index(parts[1])


def _split(chosen: list[tuple[tuple[str, int], Picture]], pixels: torch.Tensor, split: str) -> Images:
    rows = [row for row, (place, _) in enumerate(chosen) if place[0] == split]
    labels = torch.tensor([chosen[row][0][1] for row in rows], dtype=torch.int64)
    return Images(pixels[rows].contiguous(), labels, tuple("/".join(chosen[row][1].path.parts[-3:]) for row in rows))
