"""The named public sets: what their publishers state (`public_sets.toml`), where they lie here, and getting them."""

import hashlib
import http.client
import io
import os
import sys
import tomllib
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import TypeAdapter

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import atomic_write
from calibrant.training.data.dataset import Augmentation


@dataclass(frozen=True)
class OfficialFile:
    """A file of the official distribution: to download if it has a `url`, else inside an archive, or unpacked."""

    name: str
    size: int  # bytes
    digest: str = ""  # `md5:...`; empty if none is published
    url: str = ""


class Source(NamedTuple):
    """Where a set lies: our own `.npz`, the official archive, or the folder of the official files."""

    form: Literal["npz", "archive", "folder"]
    path: Path


@dataclass(frozen=True)
class PublicSet:
    """One public set: what its publisher states, and how it is distributed."""

    title: str
    train: int
    test: int
    n_classes: int
    side: int  # pixels, unless the option `size` says otherwise
    mean: tuple[float, ...]  # per channel, on the scale from 0 to 1
    std: tuple[float, ...]
    augmentation: Augmentation
    licence: str
    citation: str
    homepage: str
    format: Literal["digits", "cifar", "idx", "svhn", "classes", "tiny-imagenet"]
    name: str = ""
    files: tuple[OfficialFile, ...] = ()  # none: the set comes with scikit-learn
    archive: str = ""  # the file that holds the others
    folders: tuple[str, ...] = ()  # in which the unpacked set may lie
    contents: Mapping[Literal["train", "test"], tuple[OfficialFile, ...]] = field(default_factory=dict)
    marks: tuple[str, ...] = ()  # what shows that a folder holds the pictures of the set
    system: tuple[str, ...] = ()  # folders in which a distribution of the operating system installs it
    options: tuple[str, ...] = ()  # that may follow its name
    class_names: tuple[str, ...] = ()  # none: the files contain them
    class_counts: tuple[int, ...] = ()  # images to train on; empty if all classes have equally many
    coarse_of_fine: tuple[int, ...] = ()  # of CIFAR-100, whose records start with the coarse label

    def find(self, folder: Path) -> Source | None:
        """The set in a folder: `NAME.npz`, its unpacked files, or its archive."""
        if (folder / f"{self.name}.npz").is_file():
            return Source("npz", folder / f"{self.name}.npz")
        marks = [*self.marks, *(content.name for part in self.contents.values() for content in part)]
        places = [folder / name for name in self.folders]
        # Several sets in this format have the same file names: without a folder of its own nothing tells them apart.
        if self.format != "idx" or folder.name == self.name:
            places.append(folder)
        for place in places:
            if all((place / mark).exists() or (place / f"{mark}.gz").exists() for mark in marks):
                return Source("folder", place)
        if self.archive and (folder / self.archive).is_file():
            return Source("archive", folder / self.archive)
        return None


def _read_catalogue() -> dict[str, PublicSet]:
    content = tomllib.loads(Path(__file__).with_name("public_sets.toml").read_text(encoding="utf-8"))
    sets: dict[str, Any] = {name: {"name": name, **fields} for name, fields in content.items()}
    return TypeAdapter(dict[str, PublicSet]).validate_python(sets)


CATALOGUE = _read_catalogue()


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


def locate(entry: PublicSet, data_dir: str | Path | None = None) -> Source | None:
    """Find a public set in each of `data_dirs`, or in a folder `NAME` inside it."""
    places = [place for folder in data_dirs(data_dir) for place in (folder, folder / entry.name)]
    for folder in (*places, *map(Path, entry.system)):
        source = entry.find(folder)
        if source is not None:
            return source
    return None


def list_datasets(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Every set by name: what it is, where it was found, how large it is, and its licence.

    Args:
        data_dir: Folder to look in first; then `CALIBRANT_DATA`, then the user's cache.
    """
    rows = []
    fields = ("name", "title", "train", "test", "licence", "citation", "homepage")
    for entry in CATALOGUE.values():
        source = locate(entry, data_dir)
        found = str(source.path) if source else None
        if not entry.files:
            found = "inside scikit-learn"
        row = {key: getattr(entry, key) for key in fields}
        row |= {"classes": entry.n_classes, "found": found, "files": [file.name for file in entry.files]}
        rows.append({**row, "download_bytes": sum(file.size for file in entry.files)})
    return rows


# getting them ---------------------------------------------------------------------------------------------------------


def fetch_dataset(name: str, *, data_dir: str | Path | None = None, mirror: str | None = None) -> tuple[Path, ...]:
    """Download the official files of a set into a folder with its name; complete files are kept.

    Nothing else in this package downloads data.

    Args:
        name: One of the public sets.
        data_dir: Folder to put it in; by default `CALIBRANT_DATA`, else the user's cache.
        mirror: Address of a folder with copies of the official files, to use instead of the publisher.
    """
    entry = downloadable(name)
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


def downloadable(name: str) -> PublicSet:
    """The entry of a set that `fetch_dataset` can get."""
    if name not in CATALOGUE:
        raise invalid("name", "be a set to download", repr(name), did_you_mean(name, CATALOGUE))
    if not CATALOGUE[name].files:
        raise invalid("name", "be a set to download", repr(name), "It comes with scikit-learn and is there already.")
    return CATALOGUE[name]


def _download(url: str, path: Path, file: OfficialFile) -> None:
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
        if received != file.size:
            hint = "The connection broke, or the publisher has changed the file: nothing was kept."
            raise invalid(url, f"have {file.size} bytes", received, hint)
        if file.digest:
            check_file(temporary, file.digest, url)


def check_digest(handle: io.BufferedReader | io.BytesIO, digest: str, what: str) -> None:
    """Refuse content whose digest is not `digest`, written as `md5:...`. It finds damage; MD5 stops no attacker."""
    kind, _, expected = digest.partition(":")
    found = hashlib.file_digest(handle, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise InvalidInput(
            f"{what}: {digest_name(digest)} must be {expected}, got {found}. It is damaged or another version: delete "
            "it and get it again with 'calibrant data fetch', or load your own copy as arrays:FILE.npz, which is not "
            "compared."
        )


def check_file(path: Path, digest: str, what: str = "") -> None:
    """Refuse a file with another digest; `what` is shown instead of its path."""
    with path.open("rb") as handle:
        check_digest(handle, digest, what or str(path))


def digest_name(digest: str) -> str:
    """How people write the kind of a digest: MD5, SHA-1 or SHA-256."""
    return digest.partition(":")[0].upper().replace("SHA", "SHA-")
