"""The user's own pictures, in one folder per class."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self, cast, overload

import torch
from torch import Tensor

from calibrant.errors import CalibrantWarning, invalid
from calibrant.training.data.dataset import Augmentation, Dataset, Images, channel_statistics
from calibrant.training.data.decoder import Colour, Decoder, Fit, Library, Picture, Unreadable
from calibrant.training.data.formats.reader import Progress
from calibrant.training.data.jpeg import check_torchvision
from calibrant.training.data.paths import Paths, folders_in, pictures_below
from calibrant.training.data.pictures import decode_pictures, picture_file
from calibrant.training.data.spec import Spec
from calibrant.training.data.split import split_validation

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0
_CHOICES = {
    "colour": ("auto", "grey", "rgb"),
    "fit": ("stretch", "crop", "pad"),
    "unreadable": ("refuse", "skip"),
    "decoder": ("pillow", "torchvision"),
}
# How many names a warning gives.
_NAMED = 5


class FolderPictures(Sequence[Picture]):
    """The pictures of a folder; each is looked at only when it is asked for."""

    def __init__(self, folder: Path, paths: Paths) -> None:
        self.folder, self.paths = folder, paths

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Picture: ...
    @overload
    def __getitem__(self, index: slice) -> list[Picture]: ...
    def __getitem__(self, index: int | slice) -> Picture | list[Picture]:
        if isinstance(index, slice):
            return [picture_file(self.folder, path) for path in self.paths[index]]
        return picture_file(self.folder, self.paths[index])


class Form(NamedTuple):
    """What the name of a folder says about its pictures: see `Decoder`; with `skip`, unreadable ones are left out."""

    size: int | None
    colour: Colour
    fit: Fit
    skip: bool
    library: Library = "pillow"

    def decoder(self) -> Decoder:
        """What decodes such pictures."""
        return Decoder(self.size, self.colour, self.fit, self.library)

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """The options of `folder:DIR?...`; what is unknown is refused."""
        spec.allow("size", *_CHOICES)
        chosen = {name: spec.option(name, known[0]) for name, known in _CHOICES.items()}
        for name, value in chosen.items():
            if value not in _CHOICES[name]:
                rule = f"be one of {', '.join(_CHOICES[name])}"
                raise invalid(f"{name} in the name of the data", rule, repr(value))
        size = spec.size(None)
        if size is None and chosen["fit"] != "stretch":
            way_out = f"Say ?size=224&fit={chosen['fit']}, or another side length."
            raise invalid("fit in the name of the data", "come with a size", repr(chosen["fit"]), way_out)
        colour, fit, library = (
            cast("Colour", chosen["colour"]),
            cast("Fit", chosen["fit"]),
            cast("Library", chosen["decoder"]),
        )
        if library == "torchvision":
            check_torchvision()
        return cls(size, colour, fit, chosen["unreadable"] == "skip", library)


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
    pictures: FolderPictures
    class_names: list[str]
    labels: Tensor
    train: Tensor
    test: Tensor

    def decode_first(self, form: Form) -> Tensor:
        """Pixels of the first picture, or the first that can be read where others are left out: `(1, C, H, W)`."""
        for row in range(len(self.pictures)):
            try:
                return torch.from_numpy(decode_pictures([self.pictures[row]], form.decoder()))
            except Unreadable as error:
                if not form.skip:
                    raise refused([str(error)], 1) from error
        raise invalid(str(self.folder), "hold pictures that can be read", "none")

    def without(self, left_out: Sequence[int]) -> "Listing":
        """The same without the pictures at some positions, whose rows the pixels do not have either."""
        kept = torch.ones(len(self.pictures), dtype=torch.bool)
        kept[list(left_out)] = False
        # Positions among what is left; each picture stays in its part.
        position = kept.cumsum(0) - 1
        train, test = (position[rows[kept[rows]]] for rows in (self.train, self.test))
        paths = Paths.of(self.pictures.paths[row] for row in torch.nonzero(kept).flatten().tolist())
        pictures = FolderPictures(self.folder, paths)
        return replace(self, pictures=pictures, labels=self.labels[kept], train=train, test=test)


def list_folder(spec: Spec) -> Listing:
    """Find the pictures of `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or of `DIR/CLASS/*`; none is opened."""
    Form.of(spec)
    folder = Path(spec.path).expanduser()
    if not folder.is_dir():
        raise invalid("folder", "be an existing folder", str(folder))
    if (folder / "train").is_dir() != (folder / "test").is_dir():
        rule = "have both train and test, or one folder for each class"
        raise invalid(str(folder), rule, "only one of train and test")
    split = (folder / "train").is_dir()
    _warn_of_validation_folder(folder, split=split)
    tables = [
        (part, name, Paths.of(pictures_below(str(folder / part / name), f"{part}{name}/")))
        for part in (("test/", "train/") if split else ("",))
        for name in folders_in(folder / part)
    ]
    paths = Paths.join([found for *_, found in tables])
    if not len(paths):
        rule = f"hold pictures in {'train/CLASS and test/CLASS' if split else 'CLASS'} folders"
        raise invalid(str(folder), rule, "none", "Known endings: png, jpg, bmp, gif, tif, webp, ppm, pgm.")
    names = _class_names(folder, tables)
    number = {name: label for label, name in enumerate(names)}
    counts = torch.tensor([len(found) for *_, found in tables])
    labels = torch.tensor([number[name] for _, name, _ in tables]).repeat_interleave(counts)
    if split:
        tested = sum(len(found) for part, _, found in tables if part == "test/")
        test, train = torch.arange(tested), torch.arange(tested, len(paths))
    else:
        train, test = split_validation(labels, fraction=_TEST_FRACTION, seed=_SPLIT_SEED)
    return Listing(folder, FolderPictures(folder, paths), names, labels, train, test)


def load_folder(spec: Spec, *, progress: Progress | None = None) -> Dataset:
    """Read `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or `DIR/CLASS/*` of which a fifth of each class is the test.

    Classes are numbered in the order of their names. The fifth is drawn with a fixed seed from the sorted paths, so
    that the same files always give the same split.

    Args:
        spec: `folder:DIR`, with the options `size` (side of the square that pictures are resized to), `fit` (`stretch`,
            `crop` or `pad`), `colour` (`auto`, `grey` or `rgb`) and `unreadable` (`refuse` or `skip`).
        progress: Called with the number of pictures decoded and the total.
    """
    return decode_listing(list_folder(spec), Form.of(spec), progress=progress)


def decode_listing(found: Listing, form: Form, *, progress: Progress | None = None) -> Dataset:
    """Decode all pictures of a folder into memory."""
    left_out: dict[int, str] = {}
    pixels = torch.from_numpy(decode_pictures(found.pictures, form.decoder(), left_out=left_out, progress=progress))
    if left_out and not form.skip:
        raise refused(list(left_out.values()), len(found.pictures))
    if left_out:
        warn_of_unreadable([found.pictures.paths[row] for row in left_out])
        found = found.without(list(left_out))
    train, test = (
        Images(
            pixels[rows].contiguous(),
            found.labels[rows],
            tuple(found.pictures.paths[index] for index in rows.tolist()),
        )
        for rows in (found.train, found.test)
    )
    mean, std = channel_statistics(train.images)
    names, folder = tuple(found.class_names), found.folder
    return Dataset(folder.resolve().name, train, test, names, mean, std, Augmentation(), origin=str(folder))


def refused(problems: Sequence[str], looked_at: int) -> Unreadable:
    """The error for pictures that cannot be read and are not to be left out: the first of them, and how many."""
    return Unreadable(
        f"{problems[0]} {len(problems):,} of {looked_at:,} pictures read so far cannot be read: 'calibrant data check' "
        "names all of the folder, --skip-unreadable leaves them out of a new run."
    )


def warn_of_unreadable(names: Sequence[str]) -> None:
    """Name and count the pictures that are left out."""
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    few = "1 picture cannot be read and is" if len(names) == 1 else f"{len(names):,} pictures cannot be read and are"
    warnings.warn(f"{few} left out: {shown}. 'calibrant data check' says why.", CalibrantWarning, stacklevel=3)


def _warn_of_validation_folder(folder: Path, *, split: bool) -> None:
    ignored = next(
        (folder / name for name in ("val", "validation", "valid") if split and (folder / name).is_dir()), None
    )
    if ignored is not None:
        message = f"{ignored} is not read: the validation part is drawn from train. Move its files there to use them."
        warnings.warn(message, CalibrantWarning, stacklevel=5)


def _class_names(folder: Path, tables: Sequence[tuple[str, str, Paths]]) -> list[str]:
    names = sorted({name for part, name, found in tables if part != "test/" and len(found)})
    for part, name, _ in sorted(tables, key=lambda table: table[0] == "test/"):
        if name not in names:
            rule = "be a class with at least one picture to train on"
            raise invalid(str(folder / part / name), rule, "none", "Add pictures or take the folder away.")
    if len(names) < 2:
        raise invalid(str(folder), "hold at least two classes", f"{len(names)} ({', '.join(names)})")
    return names
