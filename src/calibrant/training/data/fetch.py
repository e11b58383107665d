"""Download a public set. Nothing else in this package downloads data."""

from collections.abc import Callable
from pathlib import Path

from calibrant.errors import did_you_mean, invalid
from calibrant.training.data.catalogue import CATALOGUE, CatalogueEntry
from calibrant.training.data.download import download
from calibrant.training.data.formats.digests import check_file
from calibrant.training.data.formats.reader import Progress
from calibrant.training.data.locate import fetch_dir


def catalogue_entry(name: str) -> CatalogueEntry:
    """The entry of a named set."""
    if name == "digits":
        raise invalid("name", "be a set to download", "'digits'", "It comes with scikit-learn and is there already.")
    if name not in CATALOGUE:
        raise invalid("name", "be a set to download", repr(name), did_you_mean(name, CATALOGUE))
    return CATALOGUE[name]


def fetch_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    mirror: str | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> tuple[Path, ...]:
    """Download the official files of a set into a folder with its name.

    Complete files are left alone, and an interrupted download continues where it ended.

    Args:
        name: One of the public sets.
        data_dir: Folder to put it in; by default `CALIBRANT_DATA`, else the user's cache.
        mirror: Address of a folder with copies of the official files, to take instead of the publisher.
        progress: Given the name of a file, returns a function that is called with the bytes received and the total.
    """
    entry = catalogue_entry(name)
    folder = fetch_dir(data_dir) / name
    paths = []
    for file in entry.files:
        path = folder / file.name
        paths.append(path)
        if path.is_file():
            if file.digest:
                check_file(path, file.digest)
            continue
        url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
        report = progress(file.name) if progress is not None else None
        download(url, path, size=file.size, digest=file.digest, progress=report)
    return tuple(paths)
