"""Tiny-ImageNet: 200 classes of 64x64 JPEG files.

The official validation images are the test set: the labels of the official test images were never published.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from calibrant.errors import InvalidInput, invalid
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.decoder import Decoder, Picture
from calibrant.training.data.formats.digests import check_file
from calibrant.training.data.formats.reader import Progress, Reader, Source, existing
from calibrant.training.data.pictures import (
    decode_pictures,
    open_zip,
    pictures_in_folder,
    pictures_in_zip,
    read_zip_member,
)
from calibrant.training.data.spec import Spec

_FOLDER = "tiny-imagenet-200"


@dataclass(frozen=True)
class TinyImageNet(Reader):
    """Reads the archive or the unpacked folder.

    Args:
        digest: Published digest of the archive.
    """

    digest: str
    slow = True

    def find(self, folder: Path) -> Source | None:
        """The archive, or the folder that holds `wnids.txt`."""
        for place in (folder / _FOLDER, folder):
            if (place / "wnids.txt").is_file() and (place / "val" / "val_annotations.txt").is_file():
                return Source("folder", (place,))
        archive = existing(folder, f"{_FOLDER}.zip")
        return Source("archive", (archive,)) if archive is not None else None

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Decode every picture; classes are numbered in the order of their WordNet ids."""
        del spec
        verified = "number of images (the digest is that of the archive)"
        with ExitStack() as stack:
            if source.form == "archive":
                check_file(source.paths[0], self.digest)
                verified = "MD5 of the official archive"
                archive = stack.enter_context(open_zip(source.paths[0]))
                pictures = pictures_in_zip(archive)
                ids, names, labels = _tables(lambda name: read_zip_member(archive, f"{_FOLDER}/{name}"))
            else:
                pictures = pictures_in_folder(source.paths[0])
                ids, names, labels = _tables(lambda name: _read_bytes(source.paths[0] / name))
            train, test = _sort(pictures, ids, labels)
            pixels = torch.from_numpy(
                decode_pictures([picture for picture, _ in (*train, *test)], Decoder(64, "rgb"), progress=progress)
            )
        splits = (_images(pixels[: len(train)], train), _images(pixels[len(train) :], test))
        return Splits(*splits, class_names=names, verified=verified)


def _tables(read: Callable[[str], bytes]) -> tuple[list[str], tuple[str, ...], dict[str, str]]:
    """WordNet ids in order, their names, and the WordNet id of each validation file."""

    def lines(name: str) -> list[str]:
        try:
            return read(name).decode().splitlines()
        except UnicodeDecodeError as error:
            raise invalid(name, "be text in UTF-8", f"byte {error.start} of another kind", "Get it again.") from error

    ids = sorted(word for line in lines("wnids.txt") for word in line.split())
    words = dict(line.split("\t", 1) for line in lines("words.txt") if "\t" in line)
    first = [words.get(wordnet_id, wordnet_id).split(",")[0].strip() for wordnet_id in ids]
    # Where two classes share their first word, both names get the id too.
    count = Counter(first)
    names = [f"{name} ({ids[i]})" if count[name] > 1 else name for i, name in enumerate(first)]
    rows = [line.split("\t") for line in lines("val/val_annotations.txt") if line]
    return ids, tuple(names), {row[0]: row[1] for row in rows if len(row) > 1}


def _sort(
    pictures: list[Picture], ids: list[str], labels: dict[str, str]
) -> tuple[list[tuple[Picture, int]], list[tuple[Picture, int]]]:
    """Training and test pictures with their labels; the official test pictures are passed over."""
    number = {wordnet_id: label for label, wordnet_id in enumerate(ids)}
    train, test = [], []
    for picture in pictures:
        parts = picture.path.parts[1:] if picture.path.parts[0] == _FOLDER else picture.path.parts
        if len(parts) == 4 and parts[0] == "train" and parts[1] in number:
            train.append((picture, number[parts[1]]))
        elif len(parts) == 3 and parts[0] == "val":
            if labels.get(parts[2]) not in number:
                raise invalid(picture.place, "have a known class in val_annotations.txt", labels.get(parts[2]))
            test.append((picture, number[labels[parts[2]]]))
    if not train or not test:
        raise InvalidInput(
            f"Tiny-ImageNet: found {len(train)} training and {len(test)} validation pictures. Get it again."
        )
    return train, test


def _images(pixels: torch.Tensor, rows: list[tuple[Picture, int]]) -> Images:
    ids = tuple(picture.path.as_posix().removeprefix(f"{_FOLDER}/") for picture, _ in rows)
    return Images(pixels.contiguous(), torch.tensor([label for _, label in rows]), ids)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}. Get it again.") from error
