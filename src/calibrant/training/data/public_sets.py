"""The named public sets: what their publishers state (`public_sets.toml`), and where they lie on this machine."""

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.errors import did_you_mean, invalid
from calibrant.files import typed
from calibrant.training.data.dataset import Augmentation
from calibrant.training.data.formats import ChestXray, Cifar, Idx, Reader, Source, Svhn, TinyImageNet

_FILE = Path(__file__).with_name("public_sets.toml")
_FORMATS: dict[str, type[Reader]] = {
    "cifar": Cifar,
    "chestxray": ChestXray,
    "idx": Idx,
    "svhn": Svhn,
    "tinyimagenet": TinyImageNet,
}


@dataclass(frozen=True)
class RemoteFile:
    """A file of the official distribution.

    Args:
        name: Name on disk.
        url: Where it is published.
        size: Bytes.
        digest: `md5:...` or `sha256:...`, as published; empty if none is published.
    """

    name: str
    url: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class CatalogueEntry:
    """One public set.

    Args:
        name: Its name on the command line.
        title: A short description.
        train: Number of images to train on.
        test: Number of images to test on.
        n_classes: Number of classes.
        side: Pixels on each side of an image, unless the option `size` says otherwise.
        class_names: Their names; None if the files of the set contain them.
        class_counts: Images to train on of each class; empty if all classes have equally many.
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
        augmentation: Random changes to training images.
        reader: Finds and reads the files of the set.
        files: The files that the publisher distributes.
        licence: Under which terms it may be used.
        citation: What to cite.
        homepage: Where its publisher describes it.
        system: Folders in which a distribution of the operating system installs it.
    """

    name: str
    title: str
    train: int
    test: int
    n_classes: int
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    reader: Reader
    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    homepage: str
    class_names: tuple[str, ...] | None = None
    class_counts: tuple[int, ...] = ()
    system: tuple[str, ...] = ()


def _read_catalogue() -> dict[str, CatalogueEntry]:
    entries = {}
    for name, fields in tomllib.loads(_FILE.read_text(encoding="utf-8")).items():
        settings: dict[str, Any] = fields.pop("reader")
        fields["reader"] = typed(_FORMATS[settings.pop("format")], settings, what="reader", where=_FILE.name)
        fields["files"] = tuple(RemoteFile(**file) for file in fields["files"])
        fields["augmentation"] = Augmentation(**fields["augmentation"])
        for key in ("class_names", "class_counts", "mean", "std", "system"):
            if key in fields:
                fields[key] = tuple(fields[key])
        entries[name] = CatalogueEntry(name=name, **fields)
    return entries


CATALOGUE = _read_catalogue()


def catalogue_entry(name: str) -> CatalogueEntry:
    """The entry of a public set."""
    if name == "digits":
        raise invalid("name", "be a set to download", "'digits'", "It comes with scikit-learn and is there already.")
    if name not in CATALOGUE:
        raise invalid("name", "be a set to download", repr(name), did_you_mean(name, CATALOGUE))
    return CATALOGUE[name]


# where they lie -------------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The user's cache folder for image sets."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("calibrant")) / "data"


def data_dirs(data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Folders to look in, best first: the argument, `CALIBRANT_DATA`, the user's cache."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise invalid("data_dir", "be an existing folder", str(data_dir))
    named = [folder for folder in (data_dir, os.environ.get("CALIBRANT_DATA")) if folder]
    return (*(Path(folder).expanduser() for folder in named), cache_dir())


def locate(entry: CatalogueEntry, data_dir: str | Path | None = None) -> Source | None:
    """Find a public set: `NAME.npz` or its official files, in each of `data_dirs` or in a folder `NAME` inside it."""
    for folder in _places(entry, data_dir):
        arrays = folder / f"{entry.name}.npz"
        if arrays.is_file():
            return Source("npz", (arrays,))
        source = entry.reader.find(folder)
        if source is not None:
            return source
    return None


def _places(entry: CatalogueEntry, data_dir: str | Path | None) -> Iterator[Path]:
    for folder in data_dirs(data_dir):
        yield from (place for place in (folder, folder / entry.name) if place.is_dir())
    yield from (Path(place) for place in entry.system if Path(place).is_dir())
