"""The user's own pictures, in one folder per class: decoded into memory, or as they are needed."""

import warnings
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from calibrant.errors import CalibrantWarning, invalid
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Images,
    Progress,
    Size,
    channel_histogram,
    channel_statistics,
    split_validation,
)
from calibrant.training.data.pictures import (
    Decoder,
    FolderPictures,
    Picture,
    check_pixels,
    check_shape,
    decode_alike,
    decode_pictures,
    folders_in,
    large_pictures_expected,
    pictures_below,
)
from calibrant.training.data.spec import Spec

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0
# The options of a folder; the first value of each is the default.
_CHOICES = {"colour": ("auto", "grey", "rgb"), "fit": ("stretch", "crop", "pad")}


def decoder_of(spec: Spec) -> Decoder:
    """The decoder that the options of `folder:DIR?...` ask for; unknown options are refused."""
    spec.allow("size", *_CHOICES)
    chosen: dict[str, Any] = {name: spec.options.get(name, known[0]) for name, known in _CHOICES.items()}
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            rule = f"be one of {', '.join(_CHOICES[name])}"
            raise invalid(f"{name} in the name of the data", rule, repr(value))
    if spec.size() is None and chosen["fit"] != "stretch":
        hint = f"Say ?size=224&fit={chosen['fit']}, or another side length."
        raise invalid("fit in the name of the data", "come with a size", repr(chosen["fit"]), hint)
    return Decoder(spec.size(), **chosen)


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, found and not decoded."""

    name: str
    origin: str
    pictures: FolderPictures  # sorted by path
    decoder: Decoder
    class_names: tuple[str, ...]
    augmentation: Augmentation
    labels: Tensor  # one per picture
    train: Tensor  # positions of the pictures to train on
    test: Tensor  # and of the others

    def size(self) -> Size:
        """Height and width of the first picture."""
        height, width = decode_pictures([self.pictures[0]], self.decoder).shape[2:]
        return height, width


def list_folder(spec: Spec) -> Listing:
    """Find the pictures of `DIR/train/CLASS/*` and `DIR/test/CLASS/*`, or of `DIR/CLASS/*`; none is opened."""
    decoder = decoder_of(spec)
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
    places = [(part, name) for part in parts for name in folders_in(folder / part)]
    found = [list(pictures_below(str(folder / part / name), f"{part}{name}/")) for part, name in places]
    pictures = FolderPictures(folder, [path for paths in found for path in paths])
    if not len(pictures):
        hint = "Known endings: png, jpg, bmp, gif, tif, webp, ppm, pgm."
        raise invalid(str(folder), f"hold pictures in {layout} folders", "none", hint)
    sizes = [len(paths) for paths in found]
    names = _class_names(folder, places, sizes)
    number = {name: label for label, name in enumerate(names)}
    labels = torch.tensor([number[name] for _, name in places]).repeat_interleave(torch.tensor(sizes))
    if split:
        tested = sum(size for (part, _), size in zip(places, sizes, strict=True) if part == "test/")
        test, train = torch.arange(tested), torch.arange(tested, len(pictures))
    else:
        train, test = split_validation(labels, fraction=_TEST_FRACTION, seed=_SPLIT_SEED)
    augmentation = Augmentation.for_classes(names)
    return Listing(folder.resolve().name, str(folder), pictures, decoder, names, augmentation, labels, train, test)


def _class_names(folder: Path, places: list[tuple[str, str]], sizes: list[int]) -> tuple[str, ...]:
    """The sorted names of the classes; each must have a picture to train on."""
    names = sorted({name for (part, name), size in zip(places, sizes, strict=True) if part != "test/" and size})
    for part, name in sorted(places, key=lambda place: place[0] == "test/"):
        if name not in names:
            rule = "be a class with at least one picture to train on"
            raise invalid(str(folder / part / name), rule, "none", "Add pictures or delete the folder.")
    if len(names) < 2:
        raise invalid(str(folder), "hold at least two classes", f"{len(names)} ({', '.join(names)})")
    return tuple(names)


def load_folder(found: Listing, *, progress: Progress | None = None) -> Dataset:
    """Decode all pictures of a folder into memory. Mean and standard deviation are those of the training pictures."""
    pixels = torch.from_numpy(decode_pictures(found.pictures, found.decoder, progress=progress))
    every = Images(pixels, found.labels, tuple(found.pictures.path(row) for row in range(len(pixels))))
    train, test = every.take(found.train), every.take(found.test)
    mean, std = channel_statistics(channel_histogram(train.images))
    return Dataset(found.name, train, test, found.class_names, mean, std, found.augmentation, found.origin)


def _warn_of_validation_folder(folder: Path) -> None:
    for place in (folder / name for name in ("val", "validation", "valid") if (folder / name).is_dir()):
        message = f"{place} is not read: the validation part is drawn from train. Move its files there."
        warnings.warn(message, CalibrantWarning, stacklevel=5)


# pictures that stay on disk -------------------------------------------------------------------------------------------

# Mean, deviation and colour of a larger set come from this many of its training pictures, spread evenly. On CIFAR-100
# they give the mean of each channel to 0.001.
_SAMPLED = 2048


@dataclass(frozen=True, eq=False)
class StreamedImages(TorchDataset[tuple[Tensor, Tensor]]):
    """Some pictures of a folder, decoded as they are needed: items `(image, label)`."""

    pictures: FolderPictures  # all of the folder
    rows: Tensor  # which of them
    labels: Tensor  # one per row
    decoder: Decoder
    shape: tuple[int, int, int]  # channels, height and width

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> tuple[str, ...]:
        """Paths within the folder."""
        return tuple(self.pictures.path(row) for row in self.rows.tolist())

    def take(self, rows: Tensor) -> "StreamedImages":
        """The part with these rows."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])

    def at_side(self, side: int) -> "StreamedImages":
        """The same pictures decoded to squares of another side, which is faster for a smaller one.

        Only for pictures that are made square (`?size=`) anyway.
        """
        return replace(self, decoder=replace(self.decoder, size=side), shape=(self.shape[0], side, side))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.pictures[int(self.rows[index])]
        with large_pictures_expected():
            pixels = self.decoder(picture)
        check_shape(pixels, self.shape, picture, self.pictures[0])
        # Grey sets are decoded in the colours of each picture, so that a colour picture among them is noticed.
        if len(pixels) > self.shape[0]:
            hint = "Say ?colour=rgb or ?colour=grey in the name of the data."
            raise invalid(picture.place, "be grey as the first pictures of the set", "colours", hint)
        return torch.tensor(pixels).expand(self.shape), self.labels[index]


@dataclass(frozen=True, eq=False, repr=False)
class StreamedDataset(Dataset):
    """A `Dataset` whose pictures stay on disk. Mean and std of a large set are those of a sample."""

    train: StreamedImages  # type: ignore[assignment]  # the same interface, without one tensor of all images
    test: StreamedImages  # type: ignore[assignment]


def stream_folder(found: Listing) -> StreamedDataset:
    """Open a folder; a sample of its pictures, or all of a small set, is decoded for the statistics of the channels."""
    decoder, (height, width) = found.decoder, found.size()
    sample = _sampled(found, found.train)
    if decoder.size is None:
        # A batch of small files may be too large for any memory.
        check_pixels(3 * height * width * len(sample), sum(picture.stored for picture in sample))
    histogram, any_colour = _survey(sample, decoder)
    if decoder.colour == "auto" and not any_colour:
        _, any_colour = _survey(_sampled(found, found.test), decoder)
    channels = 3 if decoder.colour == "rgb" or any_colour else 1
    mean, std = channel_statistics(histogram[:channels])
    every = StreamedImages(
        found.pictures, torch.arange(len(found.pictures)), found.labels, decoder, (channels, height, width)
    )
    train, test = every.take(found.train), every.take(found.test)
    return StreamedDataset(found.name, train, test, found.class_names, mean, std, found.augmentation, found.origin)


def _sampled(found: Listing, rows: Tensor) -> list[Picture]:
    return [found.pictures[row] for row in rows[:: max(1, len(rows) // _SAMPLED)].tolist()]


def _survey(pictures: list[Picture], decoder: Decoder) -> tuple[Tensor, bool]:
    """Histogram of each of three channels over these pictures, and whether any has colours."""
    histogram, any_colour = torch.zeros(3, 256, dtype=torch.int64), False
    with closing(decode_alike(pictures, decoder)) as results:
        for _, pixels in results:
            any_colour |= len(pixels) == 3
            histogram += channel_histogram(torch.tensor(pixels)[None])
    return histogram, any_colour
