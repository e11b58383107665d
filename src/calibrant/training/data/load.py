"""Read a data set by its name, in memory or as a stream, or find out how large it is without reading its images."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from calibrant.checks import labels
from calibrant.errors import CalibrantWarning, InvalidInput, did_you_mean, importing, invalid
from calibrant.predictions import Npz, read_npz
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Images,
    Progress,
    Splits,
    channel_histogram,
    channel_statistics,
    class_counts,
    held_out_of,
    split_validation,
)
from calibrant.training.data.folder import Form, StreamedDataset, list_folder, load_folder, stream_folder
from calibrant.training.data.formats import Source
from calibrant.training.data.pictures import pixel_memory
from calibrant.training.data.public_sets import CATALOGUE, CatalogueEntry, data_dirs, locate
from calibrant.training.data.spec import Spec, parse_spec

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("class_names", "ids_train", "ids_test")
_MOST_CHANNELS = 4
_SHAPES = "have the shape (N, H, W) or (N, H, W, C), nothing empty"


def load_dataset(spec: str, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """Read an image set.

    Args:
        spec: `digits`; a public set (`calibrant data list` names them); `arrays:FILE.npz`; `folder:DIR`, or
            `folder:DIR?size=64` to resize.
        data_dir: Folder to look in first for a public set, before `CALIBRANT_DATA` and the user's cache. Nothing is
            downloaded here.
        progress: Called with the amount done and the total if reading takes long.

    >>> dataset = load_dataset("digits")
    >>> len(dataset.train), len(dataset.test), dataset.n_classes, dataset.image_shape
    (1198, 599, 10, (1, 8, 8))
    """
    parsed = parse_spec(spec)
    if parsed.kind in CATALOGUE and not parsed.path:
        return _load_named(CATALOGUE[parsed.kind], parsed, data_dir, progress)
    if parsed.kind == "digits" and not parsed.path:
        parsed.allow()
        return _load_digits()
    if parsed.kind == "arrays" and parsed.path:
        parsed.allow()
        return load_arrays(parsed.path)
    if parsed.kind == "folder" and parsed.path:
        return load_folder(list_folder(parsed), Form.of(parsed), progress=progress)
    raise invalid("data", "name a known set", repr(spec), _way_out(spec))


def _way_out(text: str) -> str:
    """What was meant: an existing folder or file without the word before its path, or the closest known name."""
    path = Path(text.rpartition("?")[0] or text).expanduser()
    if text and path.is_dir():
        return f"Did you mean 'folder:{text}'?"
    if path.suffix == ".npz" and path.is_file():
        return f"Did you mean 'arrays:{text}'?"
    return did_you_mean(text, ["digits", *CATALOGUE, "arrays:FILE.npz", "folder:DIR"])


def find_named(spec: str, *, data_dir: str | Path | None = None) -> Source | None:
    """Find a public set on this machine; None for other kinds of set. A public set that is missing is an error."""
    entry = CATALOGUE.get(parse_spec(spec).kind)
    if entry is None:
        return None
    source = locate(entry, data_dir)
    if source is None:
        looked = ", ".join(str(folder) for folder in data_dirs(data_dir))
        wanted = f"{' and '.join(file.name for file in entry.files)} or {entry.name}.npz"
        raise InvalidInput(
            f"{entry.name} is not on this machine (looked in {looked}). "
            f"Get it with 'calibrant data fetch {entry.name}', or put {wanted} into one of these folders."
        )
    return source


def _load_named(entry: CatalogueEntry, spec: Spec, data_dir: str | Path | None, progress: Progress | None) -> Dataset:
    spec.allow(*entry.reader.options)
    source = find_named(entry.name, data_dir=data_dir)
    assert source is not None
    splits = _read_named(entry, source, spec, progress)
    return Dataset(
        entry.name,
        splits.train,
        splits.test,
        splits.class_names or entry.class_names or tuple(map(str, range(entry.n_classes))),
        entry.mean,
        entry.std,
        entry.augmentation,
        origin=source.place,
        verified=splits.verified,
    )


def _read_named(entry: CatalogueEntry, source: Source, spec: Spec, progress: Progress | None) -> Splits:
    """Read a public set from where it was found, and check it against what is published."""
    if source.form == "npz":
        splits = read_arrays(source.paths[0])
        _check_counts(entry, splits, source)
        side, wanted = splits.train.images.shape[-1], spec.size(None)
        if wanted not in {None, side}:
            way_out = f"An .npz is not resized: leave the option out, or read {entry.files[0].name} instead of it."
            raise invalid(f"size for {source.paths[0]}", f"be {side}, as stored", wanted, way_out)
        return replace(splits, verified=entry.reader.verify_arrays(splits))

    splits = entry.reader.read(source, spec=spec, progress=progress)
    _check_counts(entry, splits, source)
    return splits


def _check_counts(entry: CatalogueEntry, splits: Splits, source: Source) -> None:
    found = (len(splits.train), len(splits.test))
    if found != (entry.train, entry.test):
        rule = f"hold the {entry.train} training and {entry.test} test images of {entry.name}"
        way_out = "Another selection of images can be loaded as arrays:FILE.npz or folder:DIR."
        raise invalid(str(source.paths[0]), rule, f"{found[0]} and {found[1]}", way_out)


def _load_digits() -> Dataset:
    """The 1,797 digits of scikit-learn (8x8, grey): two thirds to train on and one third to test, class by class.

    The set has no official split; ours is always the same. The values 0 to 16 are stretched to 0 to 255.
    """
    with importing("digits", "scikit-learn", "train"):
        from sklearn.datasets import load_digits
    source = load_digits()
    pixels = torch.from_numpy(np.round(source.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(source.target.astype(np.int64))
    parts = []
    # A third for the test: 599 images, so that an error rate of a few percent rests on more than a handful of samples.
    for rows in split_validation(labels, fraction=1 / 3, seed=0):
        # The row of scikit-learn's own table stays the name of an image, so that it can be looked up there.
        ids = tuple(f"digit-{row:04d}" for row in rows.tolist())
        parts.append(Images(pixels[rows].contiguous(), labels[rows], ids))
    train, test = parts
    mean, std = channel_statistics(channel_histogram(train.images))
    # A digit fills its 8x8 frame, so crops are small, and a mirrored digit is no digit.
    names, augmentation = tuple("0123456789"), Augmentation(crop_padding=1, flip=False)
    return Dataset("digits", train, test, names, mean, std, augmentation, origin="scikit-learn")


class Opened(NamedTuple):
    """A set to train on, and why it was loaded or is streamed; empty if there was no choice."""

    data: Dataset | StreamedDataset
    reason: str = ""


def open_dataset(
    spec: str, *, data_dir: str | Path | None = None, data_path: str = "auto", progress: Progress | None = None
) -> Opened:
    """Load a set into memory, or stream it: `auto` streams a folder whose pixels take more than half of the memory.

    Args:
        spec: As for `load_dataset`.
        data_dir: As for `load_dataset`.
        data_path: `stream` or `auto`; anything else loads.
        progress: As for `load_dataset`; not called for a set that is streamed.
    """
    parsed = parse_spec(spec)
    is_folder = parsed.kind == "folder" and parsed.path
    if data_path == "stream":
        if not is_folder:
            raise invalid("data", "be folder:DIR to be streamed", repr(spec))
        return Opened(stream_folder(list_folder(parsed), Form.of(parsed)))
    if data_path != "auto" or not is_folder:
        return Opened(load_dataset(spec, data_dir=data_dir, progress=progress))
    form, found, memory = Form.of(parsed), list_folder(parsed), pixel_memory()
    height, width = found.decode_first(form).shape[2:]
    channels = {"grey": 1}.get(form.colour, 3)
    needed = len(found.pictures) * channels * height * width
    sizes = f"{needed / 1e9:,.1f} GB of pixels, {memory / 1e9:,.1f} GB of memory"
    # Half, because the images of a part are copied out of those of all.
    if memory and needed > memory / 2:
        return Opened(stream_folder(found, form), f"stream, pictures are decoded as they are needed: {sizes}")
    return Opened(load_folder(found, form, progress=progress), f"in memory, pictures were decoded once: {sizes}")


# a set in one `.npz` file ---------------------------------------------------------------------------------------------


def read_arrays(path: str | Path) -> Splits:
    """Read an `.npz` set.

    Args:
        path: A file with `x_train`, `x_test` (uint8, `(N, H, W)` or `(N, H, W, C)`), `y_train`, `y_test` (integers
            from 0) and optionally `class_names`, `ids_train`, `ids_test` (text).
    """
    content = read_npz(path, (*_REQUIRED, *_OPTIONAL))
    _check_members(path, content)
    names = _texts(content, "class_names", path)
    return Splits(_split(content, "train", path), _split(content, "test", path), names)


def read_arrays_extent(path: str | Path) -> tuple[tuple[int, ...], int]:
    """Training images of each class, and pixels on the shorter side, from the labels and the headers alone."""
    with Npz(path) as archive:
        _check_members(path, archive.names)
        shape = archive.member("x_train").shape
        if len(shape) not in (3, 4) or 0 in shape:
            raise invalid(f"x_train in {path}", _SHAPES, shape)
        train = labels(f"y_train in {path}", archive.read("y_train"), rows=shape[0])
        test = labels(f"y_test in {path}", archive.read("y_test"))
        n_classes = max(int(train.max()), int(test.max())) + 1
        return tuple(np.bincount(train, minlength=n_classes).tolist()), min(shape[1:3])


def load_arrays(path: str | Path) -> Dataset:
    """Read the user's own `.npz` set; mean and standard deviation are those of its training images."""
    source = Path(path).expanduser()
    content = read_arrays(source)
    names = content.class_names
    if names is None:
        n_classes = max(int(content.train.labels.max()), int(content.test.labels.max())) + 1
        names = tuple(str(label) for label in range(n_classes))
    mean, std = channel_statistics(channel_histogram(content.train.images))
    return Dataset(source.stem, content.train, content.test, names, mean, std, Augmentation(), origin=str(source))


def _check_members(path: str | Path, found: Iterable[str]) -> None:
    names = sorted(found)
    for key in _REQUIRED:
        if key not in names:
            raise invalid(str(path), f"hold {', '.join(_REQUIRED)}", f"no {key} (found: {', '.join(names)})")


def _split(content: Mapping[str, Any], split: str, path: str | Path) -> Images:
    images = _pixels(content[f"x_{split}"], f"x_{split} in {path}")
    classes = labels(f"y_{split} in {path}", content[f"y_{split}"], rows=len(images)).astype(np.int64)
    return Images(torch.from_numpy(images), torch.from_numpy(classes), _texts(content, f"ids_{split}", path))


def _pixels(array: np.ndarray[Any, Any], argument: str) -> np.ndarray[Any, Any]:
    """Check uint8 images `(N, H, W)` or `(N, H, W, C)` and return them as contiguous `(N, C, H, W)`."""
    if array.dtype != np.uint8:
        way_out = "Convert first: from 0..1 with (x * 255).round().astype('uint8'), from 0..255 with x.astype('uint8')."
        raise invalid(argument, "be uint8 (0 to 255)", array.dtype, way_out)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or 0 in array.shape:
        raise invalid(argument, _SHAPES, array.shape)
    if array.shape[-1] > _MOST_CHANNELS:
        way_out = ""
        if array.shape[1] <= _MOST_CHANNELS:
            way_out = "The channels seem to come first: use x.transpose(0, 2, 3, 1)."
        raise invalid(argument, f"have at most {_MOST_CHANNELS} channels, in the last place", array.shape, way_out)
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _texts(content: Mapping[str, Any], key: str, path: str | Path) -> tuple[str, ...] | None:
    if key not in content:
        return None
    array = content[key]
    if array.ndim != 1 or array.dtype.kind != "U":
        raise invalid(f"{key} in {path}", "be a list of text", f"{array.dtype} of shape {array.shape}")
    return tuple(str(text) for text in array)


# the size of a set ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extent:
    """The size of a set."""

    name: str  # without the folders of a path
    train: int  # images to train on, the validation part included
    n_classes: int
    side: int  # pixels on the shorter side of an image
    augmentation: Augmentation
    class_counts: tuple[int, ...] = ()  # images to train on; empty if all classes have equally many
    fixed_validation: int | None = None  # cases, if no fraction of the training images is drawn

    def validation_cases(self, fraction: float) -> int:
        """How many cases `split_validation` holds out.

        >>> Extent("mine", 33, 3, 32, Augmentation(), class_counts=(1, 7, 25)).validation_cases(0.1)
        4
        """
        if self.fixed_validation is not None:
            return self.fixed_validation
        counts = self.class_counts or [self.train // self.n_classes] * self.n_classes
        return sum(held_out_of(count, fraction) for count in counts)


def extent_of(data: str | Dataset) -> Extent:
    """The size of a set by its name, or of one that is loaded. A public set need not be on this machine.

    >>> extent_of("cifar10").train, extent_of("digits").side
    (50000, 8)
    """
    if isinstance(data, Dataset):
        side, counts = min(data.image_shape[1:]), class_counts(data.train.labels)
        return Extent(data.name, len(data.train), data.n_classes, side, data.augmentation, counts)
    spec = parse_spec(data)
    if spec.kind in CATALOGUE and not spec.path:
        entry = CATALOGUE[spec.kind]
        side = spec.size(entry.side) or entry.side
        return Extent(entry.name, entry.train, entry.n_classes, side, entry.augmentation, entry.class_counts)
    if spec.kind == "arrays" and spec.path:
        spec.allow()
        path = Path(spec.path).expanduser()
        counts, side = read_arrays_extent(path)
        return Extent(path.stem, sum(counts), len(counts), side, Augmentation(), counts)
    if spec.kind == "folder" and spec.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)  # loading the folder warns
            found = list_folder(spec)
        side = min(found.decode_first(Form.of(spec)).shape[2:])
        counts = class_counts(found.labels[found.train])
        return Extent(found.name, len(found.train), len(found.class_names), side, found.augmentation, counts)
    return extent_of(load_dataset(data))  # the digits, or an unknown name
