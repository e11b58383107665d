"""The named public sets: what their publishers state (`public_sets.toml`), where they lie here, and getting them."""

import http.client
import os
import sys
import tomllib
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import atomic_write, typed
from calibrant.training.data.dataset import Augmentation
from calibrant.training.data.formats import ChestXray, Cifar, Idx, Reader, Source, Svhn, TinyImageNet, check_file

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
    """A file of the official distribution; the digest (`md5:...`) is empty if none is published."""

    name: str
    url: str
    size: int  # bytes
    digest: str = ""


@dataclass(frozen=True)
class CatalogueEntry:
    """One public set: what its publisher states, and how it is read."""

    name: str
    title: str
    train: int
    test: int
    n_classes: int
    side: int  # pixels, unless the option `size` says otherwise
    mean: tuple[float, ...]  # per channel, on the scale from 0 to 1
    std: tuple[float, ...]
    augmentation: Augmentation
    reader: Reader
    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    homepage: str
    class_names: tuple[str, ...] | None = None  # None if the files contain them
    class_counts: tuple[int, ...] = ()  # images to train on; empty if all classes have equally many
    system: tuple[str, ...] = ()  # folders in which a distribution of the operating system installs it


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
    places = [place for folder in data_dirs(data_dir) for place in (folder, folder / entry.name)]
    for folder in (*places, *map(Path, entry.system)):
        if not folder.is_dir():
            continue
        arrays = folder / f"{entry.name}.npz"
        if arrays.is_file():
            return Source("npz", (arrays,))
        source = entry.reader.find(folder)
        if source is not None:
            return source
    return None


# getting them ---------------------------------------------------------------------------------------------------------


def fetch_dataset(name: str, *, data_dir: str | Path | None = None, mirror: str | None = None) -> tuple[Path, ...]:
    """Download the official files of a set into a folder with its name; complete files are kept.

    Nothing else in this package downloads data.

    Args:
        name: One of the public sets.
        data_dir: Folder to put it in; by default `CALIBRANT_DATA`, else the user's cache.
        mirror: Address of a folder with copies of the official files, to use instead of the publisher.
    """
    entry = catalogue_entry(name)
    folder = Path(data_dir or os.environ.get("CALIBRANT_DATA") or cache_dir()).expanduser() / name
    paths = []
    for file in entry.files:
        path = folder / file.name
        paths.append(path)
        if not path.is_file():
            url = file.url
            if mirror:
                url = f"{mirror.rstrip('/')}/{file.name}"
            _download(url, path, file)
        elif file.digest:
            check_file(path, file.digest)
    return tuple(paths)


def _download(url: str, path: Path, file: RemoteFile) -> None:
    """Get a file. It has its name only when it is complete and is the published one."""
    if not url.startswith(("http://", "https://")):
        raise invalid("url", "start with http:// or https://", repr(url))
    with atomic_write(path) as temporary:
        try:
            torch.hub.download_url_to_file(url, str(temporary), progress=sys.stderr.isatty())
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise InvalidInput(
                f"{url} cannot be downloaded ({error}). Try again later or with another --source; or get the file "
                "elsewhere and put it into the data folder ('calibrant data list' shows names and folders)."
            ) from error
        received = temporary.stat().st_size
        if file.size and received != file.size:
            way_out = "The connection broke, or the publisher has changed the file: nothing was kept."
            raise invalid(url, f"have {file.size} bytes", received, way_out)
        if file.digest:
            check_file(temporary, file.digest, name=url)
