"""How large a set is, found out without decoding its images: what training settings are derived from."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from calibrant.errors import CalibrantWarning
from calibrant.training.data.arrays import read_arrays_extent
from calibrant.training.data.catalogue import CATALOGUE
from calibrant.training.data.dataset import Augmentation, Dataset
from calibrant.training.data.folder import Form, list_folder
from calibrant.training.data.load import load_dataset
from calibrant.training.data.spec import parse_spec


@dataclass(frozen=True)
class Extent:
    """The size of a set.

    Args:
        name: The set, without the folders of a path.
        train: Images to train on, the validation part included.
        n_classes: Number of classes.
        side: Pixels on the shorter side of an image.
        augmentation: What is done to training images where nobody says otherwise.
    """

    name: str
    train: int
    n_classes: int
    side: int
    augmentation: Augmentation


def extent_of(data: str | Dataset) -> Extent:
    """The size of a set by its name, or of one that is loaded. A public set need not be on this machine.

    >>> extent_of("cifar10").train, extent_of("digits").side
    (50000, 8)
    """
    if isinstance(data, Dataset):
        return Extent(data.name, len(data.train), data.n_classes, min(data.image_shape[1:]), data.augmentation)
    spec = parse_spec(data)
    if spec.kind in CATALOGUE and not spec.path:
        entry = CATALOGUE[spec.kind]
        return Extent(entry.name, entry.train, entry.n_classes, spec.size(entry.side) or entry.side, entry.augmentation)
    if spec.kind == "arrays" and spec.path:
        spec.allow()
        return Extent(Path(spec.path).stem, *read_arrays_extent(Path(spec.path).expanduser()), Augmentation())
    if spec.kind == "folder" and spec.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)  # the one who loads the folder says it
            found = list_folder(spec)
        shape = found.decode_first(Form.of(spec)).shape
        name = found.folder.resolve().name
        return Extent(name, len(found.train), len(found.class_names), min(shape[2:]), Augmentation())
    return extent_of(load_dataset(data))  # the digits, or a name that nobody knows
