"""Find public sets on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path

from calibrant.errors import invalid
from calibrant.training.data.formats.reader import Reader, Source


def cache_dir() -> Path:
    """The user's cache folder for image sets."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("calibrant")) / "data"


def data_dirs(data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Folders to look in, best first: the argument, `CALIBRANT_DATA`, the user's cache."""
    named = [data_dir, os.environ.get("CALIBRANT_DATA") or None]
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise invalid("data_dir", "be an existing folder", str(data_dir))
    return (*(Path(folder).expanduser() for folder in named if folder is not None), cache_dir())


def fetch_dir(data_dir: str | Path | None = None) -> Path:
    """Where downloads go: the first of the argument, `CALIBRANT_DATA` and the user's cache that is given."""
    chosen = data_dir or os.environ.get("CALIBRANT_DATA")
    return Path(chosen).expanduser() if chosen else cache_dir()


def locate(
    name: str, reader: Reader, *, data_dir: str | Path | None = None, system: tuple[str, ...] = ()
) -> Source | None:
    """Find a named set: `NAME.npz` or its official files, in each folder or in a folder `NAME` inside it.

    Args:
        name: Name of the set.
        reader: Knows what the official files are called.
        data_dir: Folder to look in first.
        system: Folders in which a distribution installs the set, looked at last.
    """
    for folder in _places(name, data_dir, system):
        arrays = folder / f"{name}.npz"
        if arrays.is_file():
            return Source("npz", (arrays,))
        source = reader.find(folder)
        if source is not None:
            return source
    return None


def _places(name: str, data_dir: str | Path | None, system: tuple[str, ...]) -> Iterator[Path]:
    for folder in data_dirs(data_dir):
        yield from (place for place in (folder, folder / name) if place.is_dir())
    yield from (Path(place) for place in system if Path(place).is_dir())
