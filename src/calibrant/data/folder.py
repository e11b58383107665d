"""The user's own pictures, in one folder per class."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from calibrant.data.dataset import Augmentation, Dataset, Images, channel_statistics
from calibrant.data.formats.reader import Progress
from calibrant.data.pictures import Colour, Picture, decode_pictures, pictures_in_folder
from calibrant.data.spec import Spec
from calibrant.data.split import split_validation
from calibrant.errors import CalibrantWarning, invalid

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0
_COLOURS = ("auto", "grey", "rgb")


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, found and not decoded.

    Args:
        folder: Where they lie.
        pictures: All of them, sorted by path.
        class_names: In the order of the labels.
        labels: `(N,)`, one per picture.
        train: Positions of the pictures to train on.
        test: Positions of the others.
    """

    folder: Path
    pictures: list[Picture]
    class_names: list[str]
    labels: Tensor
    train: Tensor
    test: Tensor

    def decode(self, spec: Spec, *, only: int | None = None, progress: Progress | None = None) -> Tensor:
        """Pixels of all pictures, or of the first `only`."""
        colour = cast("Colour", spec.option("colour", "auto"))
        return torch.from_numpy(
            decode_pictures(self.pictures[:only], size=spec.size(None), colour=colour, progress=progress)
        )


def list_folder(spec: Spec) -> Listing:
    """Find the pictures of `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or of `DIR/CLASS/*`."""
    spec.allow("size", "colour")
    colour = spec.option("colour", "auto")
    if colour not in _COLOURS:
        raise invalid("colour in the name of the data", f"be one of {', '.join(_COLOURS)}", repr(colour))
    folder = Path(spec.path).expanduser()
    if not folder.is_dir():
        raise invalid("folder", "be an existing folder", str(folder))
    if (folder / "train").is_dir() != (folder / "test").is_dir():
        rule = "have both train and test, or one folder for each class"
        raise invalid(str(folder), rule, "only one of train and test")
    split = (folder / "train").is_dir()
    pictures = _pictures(folder, split=split)
    names = _class_names(pictures, folder, depth=1 if split else 0)
    number = {name: label for label, name in enumerate(names)}
    labels = torch.tensor([number[picture.path.parts[1 if split else 0]] for picture in pictures])
    if split:
        in_test = torch.tensor([picture.path.parts[0] == "test" for picture in pictures])
        train, test = torch.nonzero(~in_test).flatten(), torch.nonzero(in_test).flatten()
    else:
        train, test = split_validation(labels, fraction=_TEST_FRACTION, seed=_SPLIT_SEED)
    return Listing(folder, pictures, names, labels, train, test)


def load_folder(spec: Spec, *, progress: Progress | None = None) -> Dataset:
    """Read `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or `DIR/CLASS/*` of which a fifth of each class is the test.

    Classes are numbered in the order of their names. The fifth is drawn with a fixed seed from the sorted paths, so
    that the same files always give the same split.

    Args:
        spec: `folder:DIR`, with the options `size` (side of the square that pictures are resized to) and `colour`
            (`auto`, `grey` or `rgb`).
        progress: Called with the number of pictures decoded and the total.
    """
    found = list_folder(spec)
    pixels = found.decode(spec, progress=progress)
    train, test = (
        Images(
            pixels[rows].contiguous(),
            found.labels[rows],
            tuple(str(found.pictures[index].path) for index in rows.tolist()),
        )
        for rows in (found.train, found.test)
    )
    mean, std = channel_statistics(train.images)
    names, folder = tuple(found.class_names), found.folder
    return Dataset(folder.resolve().name, train, test, names, mean, std, Augmentation(), origin=str(folder))


def _pictures(folder: Path, *, split: bool) -> list[Picture]:
    ignored = next(
        (folder / name for name in ("val", "validation", "valid") if split and (folder / name).is_dir()), None
    )
    if ignored is not None:
        message = f"{ignored} is not read: the validation part is drawn from train. Move its files there to use them."
        warnings.warn(message, CalibrantWarning, stacklevel=5)
    depth = 3 if split else 2
    found = [picture for picture in pictures_in_folder(folder) if len(picture.path.parts) >= depth]
    if split:
        found = [picture for picture in found if picture.path.parts[0] in {"train", "test"}]
    if not found:
        rule = f"hold pictures in {'train/CLASS and test/CLASS' if split else 'CLASS'} folders"
        raise invalid(str(folder), rule, "none", "Known endings: png, jpg, bmp, gif, tif, webp, ppm, pgm.")
    return found


def _class_names(pictures: Sequence[Picture], folder: Path, *, depth: int) -> list[str]:
    train = [picture for picture in pictures if depth == 0 or picture.path.parts[0] == "train"]
    names = sorted({picture.path.parts[depth] for picture in train})
    places = [folder / "train", folder / "test"] if depth else [folder]
    for place in places:
        for child in sorted(place.iterdir()):
            if child.is_dir() and not child.name.startswith(".") and child.name not in names:
                rule = "be a class with at least one picture to train on"
                raise invalid(str(child), rule, "none", "Add pictures or take the folder away.")
    if len(names) < 2:
        raise invalid(str(folder), "hold at least two classes", f"{len(names)} ({', '.join(names)})")
    return names
