"""The user's own pictures, in one folder per class."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from calibrant.errors import CalibrantWarning, invalid
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Images,
    Progress,
    channel_histogram,
    channel_statistics,
    split_validation,
)
from calibrant.training.data.pictures import (
    Colour,
    Decoder,
    Fit,
    FolderPictures,
    Unreadable,
    decode_pictures,
    folders_in,
    pictures_below,
)
from calibrant.training.data.spec import Spec

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0
# The options of a folder; the first value of each is the default.
_CHOICES = {
    "colour": ("auto", "grey", "rgb"),
    "fit": ("stretch", "crop", "pad"),
}


class Form(NamedTuple):
    """What the name of a folder says about its pictures: see `Decoder`."""

    size: int | None
    colour: Colour
    fit: Fit

    def decoder(self) -> Decoder:
        """Decodes such pictures."""
        return Decoder(self.size, self.colour, self.fit)

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """The options of `folder:DIR?...`; unknown ones are refused."""
        spec.allow("size", *_CHOICES)
        chosen = {name: spec.options.get(name, known[0]) for name, known in _CHOICES.items()}
        for name, value in chosen.items():
            if value not in _CHOICES[name]:
                rule = f"be one of {', '.join(_CHOICES[name])}"
                raise invalid(f"{name} in the name of the data", rule, repr(value))
        size = spec.size(None)
        if size is None and chosen["fit"] != "stretch":
            way_out = f"Say ?size=224&fit={chosen['fit']}, or another side length."
            raise invalid("fit in the name of the data", "come with a size", repr(chosen["fit"]), way_out)
        colour, fit = cast("Colour", chosen["colour"]), cast("Fit", chosen["fit"])
        return cls(size, colour, fit)


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, found and not decoded.

    Args:
        pictures: All of them, sorted by path.
        class_names: In the order of the labels.
        labels: `(N,)`, one per picture.
        train: Positions of the pictures to train on.
        test: Positions of the others.
    """

    pictures: FolderPictures
    class_names: tuple[str, ...]
    labels: Tensor
    train: Tensor
    test: Tensor

    @property
    def folder(self) -> Path:
        """Where the pictures lie."""
        return self.pictures.folder

    @property
    def name(self) -> str:
        """The name of the set: that of the folder."""
        return self.folder.resolve().name

    @property
    def augmentation(self) -> Augmentation:
        """The default changes to training images."""
        return Augmentation.for_classes(self.class_names)

    def decode_first(self, form: Form) -> Tensor:
        """Pixels of the first picture: `(1, C, H, W)`."""
        with naming_the_check():
            return torch.from_numpy(decode_pictures([self.pictures[0]], form.decoder()))


def list_folder(spec: Spec) -> Listing:
    """Find the pictures of `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or of `DIR/CLASS/*`; none is opened."""
    Form.of(spec)
    folder = Path(spec.path).expanduser()
    if not folder.is_dir():
        raise invalid("folder", "be an existing folder", str(folder))
    split = (folder / "train").is_dir()
    if split != (folder / "test").is_dir():
        rule = "have both train and test, or one folder for each class"
        raise invalid(str(folder), rule, "only one of train and test")
    parts, layout = [""], "CLASS"
    if split:
        parts, layout = ["test/", "train/"], "train/CLASS and test/CLASS"
        _warn_of_validation_folder(folder)
    counts: dict[tuple[str, str], int] = {}

    def every_path() -> Iterator[str]:
        for part in parts:
            for name in folders_in(folder / part):
                counts[part, name] = 0
                for path in pictures_below(str(folder / part / name), f"{part}{name}/"):
                    counts[part, name] += 1
                    yield path

    pictures = FolderPictures(folder, every_path())
    if not len(pictures):
        way_out = "Known endings: png, jpg, bmp, gif, tif, webp, ppm, pgm."
        raise invalid(str(folder), f"hold pictures in {layout} folders", "none", way_out)
    names = _class_names(folder, counts)
    number = {name: label for label, name in enumerate(names)}
    repeats = torch.tensor(list(counts.values()))
    labels = torch.tensor([number[name] for _, name in counts]).repeat_interleave(repeats)
    if split:
        tested = sum(count for (part, _), count in counts.items() if part == "test/")
        test, train = torch.arange(tested), torch.arange(tested, len(pictures))
    else:
        train, test = split_validation(labels, fraction=_TEST_FRACTION, seed=_SPLIT_SEED)
    return Listing(pictures, names, labels, train, test)


def load_folder(found: Listing, form: Form, *, progress: Progress | None = None) -> Dataset:
    """Decode all pictures of a folder into memory. Mean and standard deviation are those of the training pictures."""
    with naming_the_check():
        pixels = torch.from_numpy(decode_pictures(found.pictures, form.decoder(), progress=progress))
    parts = []
    for rows in (found.train, found.test):
        ids = tuple(found.pictures.path(row) for row in rows.tolist())
        parts.append(Images(pixels[rows].contiguous(), found.labels[rows], ids))
    train, test = parts
    mean, std = channel_statistics(channel_histogram(train.images))
    return Dataset(found.name, train, test, found.class_names, mean, std, found.augmentation, origin=str(found.folder))


@contextmanager
def naming_the_check() -> Iterator[None]:
    """Add to the error of the first unreadable picture how to find all of them."""
    try:
        yield
    except Unreadable as error:
        raise Unreadable(f"{error} 'calibrant data check' names all that cannot be read.") from error


def _warn_of_validation_folder(folder: Path) -> None:
    for name in ("val", "validation", "valid"):
        if (folder / name).is_dir():
            message = f"{folder / name} is not read: the validation part is drawn from train. Move its files there."
            warnings.warn(message, CalibrantWarning, stacklevel=5)
            return


def _class_names(folder: Path, counts: Mapping[tuple[str, str], int]) -> tuple[str, ...]:
    """The sorted names of the classes; each must have a picture to train on."""
    names = sorted({name for (part, name), count in counts.items() if part != "test/" and count})
    for part, name in sorted(counts, key=lambda place: place[0] == "test/"):
        if name not in names:
            rule = "be a class with at least one picture to train on"
            raise invalid(str(folder / part / name), rule, "none", "Add pictures or delete the folder.")
    if len(names) < 2:
        raise invalid(str(folder), "hold at least two classes", f"{len(names)} ({', '.join(names)})")
    return tuple(names)
