"""Read a data set by its name, in memory or as a stream; find out how large it is, or whether it is complete."""

import math
import warnings
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant.errors import CalibrantWarning, CheckFailed, InvalidInput, did_you_mean, invalid
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Progress,
    channel_histogram,
    channel_statistics,
    held_out_of,
)
from calibrant.training.data.folder import Listing, list_folder, load_folder, stream_folder
from calibrant.training.data.formats import read_arrays, read_public
from calibrant.training.data.pictures import Unreadable, decoded, pixel_memory
from calibrant.training.data.public_sets import CATALOGUE, PublicSet, Source, data_dirs, locate
from calibrant.training.data.spec import Spec, parse_spec


def load_dataset(
    spec: str, *, data_dir: str | Path | None = None, data_path: str = "memory", progress: Progress | None = None
) -> Dataset:
    """Read an image set.

    Args:
        spec: `digits`; a public set (`calibrant data list` names them); `arrays:FILE.npz`; `folder:DIR`, or
            `folder:DIR?size=64` to resize.
        data_dir: Folder to look in first for a public set, before `CALIBRANT_DATA` and the user's cache. Nothing is
            downloaded here.
        data_path: `stream` leaves the pictures of a folder on disk until they are needed; `auto` does so if their
            pixels take more than half of the memory; anything else loads them.
        progress: Called with the amount done and the total if reading takes long.

    >>> dataset = load_dataset("digits")
    >>> len(dataset.train), len(dataset.test), dataset.n_classes, dataset.image_shape
    (1198, 599, 10, (1, 8, 8))
    """
    parsed = parse_spec(spec)
    if parsed.kind == "folder" and parsed.path:
        return _read_folder(list_folder(parsed), data_path, progress)
    if data_path == "stream":
        raise invalid("data", "be folder:DIR to be streamed", repr(spec))
    if entry := public_set(parsed):
        return read_public(entry, find_named(entry.name, data_dir=data_dir), parsed.size(), progress)
    if parsed.kind == "arrays" and parsed.path:
        parsed.allow()
        return _load_arrays(Path(parsed.path).expanduser())
    raise invalid("data", "name a known set", repr(spec), _hint(spec))


def _read_folder(listing: Listing, data_path: str, progress: Progress | None) -> Dataset:
    if data_path == "stream":
        return stream_folder(listing)
    if data_path != "auto":
        return load_folder(listing, progress=progress)
    pixels = len(listing.pictures) * math.prod(listing.size())
    needed, memory = pixels * listing.decoder.most_channels, pixel_memory()
    sizes = f"{needed / 1e9:,.1f} GB of pixels, {memory / 1e9:,.1f} GB of memory"
    # Half, because the images of a part are copied out of those of all.
    if memory and needed > memory / 2:
        reason = f"stream, pictures are decoded as they are needed: {sizes}"
        return replace(stream_folder(listing), reason=reason)
    reason = f"in memory, pictures were decoded once: {sizes}"
    return replace(load_folder(listing, progress=progress), reason=reason)


def _hint(text: str) -> str:
    """What was meant: an existing folder or file without the word before its path, or the closest known name."""
    path = Path(text.rpartition("?")[0] or text).expanduser()
    if text and path.is_dir():
        return f"Did you mean 'folder:{text}'?"
    if path.suffix == ".npz" and path.is_file():
        return f"Did you mean 'arrays:{text}'?"
    return did_you_mean(text, [*CATALOGUE, "arrays:FILE.npz", "folder:DIR"])


def public_set(spec: Spec) -> PublicSet | None:
    """The public set of this name; None for other kinds of set."""
    if spec.kind not in CATALOGUE or spec.path:
        return None
    spec.allow(*CATALOGUE[spec.kind].options)
    return CATALOGUE[spec.kind]


def find_named(spec: str, *, data_dir: str | Path | None = None) -> Source | None:
    """Find a public set on this machine; a missing one is an error. None for other sets, and for the digits."""
    entry = public_set(parse_spec(spec))
    if entry is None or not entry.files:
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


def _load_arrays(path: Path) -> Dataset:
    """Read the user's own `.npz` set; mean and standard deviation are those of its training images."""
    (train, test), names = read_arrays(path)
    if not names:
        n_classes = max(int(train.labels.max()), int(test.labels.max())) + 1
        names = tuple(str(label) for label in range(n_classes))
    mean, std = channel_statistics(channel_histogram(train.images))
    return Dataset(path.stem, train, test, names, mean, std, Augmentation(), origin=str(path))


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
        side, counts = min(data.image_shape[1:]), tuple(data.train.labels.bincount().tolist())
        return Extent(data.name, len(data.train), data.n_classes, side, data.augmentation, counts)
    spec = parse_spec(data)
    if entry := public_set(spec):
        side = spec.size() or entry.side
        return Extent(entry.name, entry.train, entry.n_classes, side, entry.augmentation, entry.class_counts)
    if spec.kind == "folder" and spec.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)  # loading the folder warns
            found = list_folder(spec)
        side = min(found.size())
        counts = tuple(found.labels[found.train].bincount().tolist())
        return Extent(found.name, len(found.train), len(found.class_names), side, found.augmentation, counts)
    return extent_of(load_dataset(data))


def check_dataset(name: str, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Read a set from disk, compare it with what is published, and say what it holds.

    Args:
        name: A set of the catalogue, or `arrays:FILE.npz`, `folder:DIR`.
        data_dir: Folder to look in first.
        progress: Called with what is done and all that is to be done.

    Returns:
        What it holds, as plain JSON values. If pictures of a folder cannot be read, `unreadable` has a line for each,
        `problem` counts them, and the image shape is None.

    Raises:
        InvalidInput: The set is not there, or it is the user's own and cannot be read.
        CheckFailed: A set of the catalogue is there and does not fit what is published.
    """
    spec = parse_spec(name)
    unreadable: list[str] = []
    # A set that is not there is a mistake in the question; one that does not fit is the answer "no".
    named = find_named(name, data_dir=data_dir) is not None
    found: Listing | Dataset
    try:
        if spec.kind == "folder" and spec.path:
            found = list_folder(spec)
            # Not loaded: the pictures of a folder may take more than all memory.
            with closing(decoded(found.pictures, found.decoder, progress=progress)) as results:
                unreadable = [str(result) for _, result in results if isinstance(result, Unreadable)]
            parts = found.labels[found.train], found.labels[found.test]
            found = found if unreadable else stream_folder(found)
        else:
            found = load_dataset(name, data_dir=data_dir, progress=progress)
            parts = found.train.labels, found.test.labels
    except InvalidInput as error:
        if named:
            raise CheckFailed(str(error)) from error
        raise
    train, test = (part.bincount(minlength=len(found.class_names)).tolist() for part in parts)
    problem = None
    if unreadable:
        problem = f"{len(unreadable)} of {sum(train) + sum(test)} pictures of {found.origin} cannot be read"
    whole = found if isinstance(found, Dataset) else None
    return {
        "name": found.name,
        "origin": found.origin,
        "train": sum(train),
        "test": sum(test),
        "classes": len(found.class_names),
        "image_shape": list(whole.image_shape) if whole else None,
        "verified": (whole and whole.verified) or "nothing is published to compare it with",
        "images_per_class": {each: list(pair) for each, *pair in zip(found.class_names, train, test, strict=True)},
        "unreadable": unreadable,
        "problem": problem,
    }
