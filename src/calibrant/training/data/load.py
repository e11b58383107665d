"""Read a data set by its name, or find out how large it is without reading its images."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from calibrant.errors import CalibrantWarning, InvalidInput, did_you_mean, importing, invalid
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
from calibrant.training.data.folder import Form, list_folder, load_folder
from calibrant.training.data.formats import Source
from calibrant.training.data.npz_sets import kept_copy, load_arrays, read_arrays, read_arrays_extent
from calibrant.training.data.public_sets import (
    CATALOGUE,
    CatalogueEntry,
    cache_dir,
    data_dirs,
    locate,
)
from calibrant.training.data.spec import Spec, parse_spec


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

    def build() -> Splits:
        splits = entry.reader.read(source, spec=spec, progress=progress)
        _check_counts(entry, splits, source)
        return splits

    if entry.reader.slow:
        return kept_copy(spec, source, build, cache_dir() / "prepared")
    return build()


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


@dataclass(frozen=True)
class Extent:
    """The size of a set.

    Args:
        name: The set, without the folders of a path.
        train: Images to train on, the validation part included.
        n_classes: Number of classes.
        side: Pixels on the shorter side of an image.
        augmentation: The default changes to training images.
        class_counts: Images to train on of each class; empty if all classes have equally many.
        fixed_validation: Validation cases, if no fraction of the training images is drawn for them.
    """

    name: str
    train: int
    n_classes: int
    side: int
    augmentation: Augmentation
    class_counts: tuple[int, ...] = ()
    fixed_validation: int | None = None

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
