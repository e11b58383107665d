"""The named public sets: what their publishers state (`public_sets.toml`), where they lie here, and how to get them.

A download can be resumed, is checked, and gets its final name only when the file is complete.
"""

import http.client
import os
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from calibrant import __version__
from calibrant.errors import CalibrantError, InvalidInput, did_you_mean, invalid
from calibrant.files import output_error, typed
from calibrant.training.data.dataset import Augmentation, Progress
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


_BLOCK = 1 << 18
_TIMEOUT = 30.0


class DownloadError(CalibrantError):
    """A download failed. What has arrived is kept, and the next try continues it.

    Args:
        message: What happened and what to do.
        passing: Whether trying again at once may help.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


def fetch_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    mirror: str | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> tuple[Path, ...]:
    """Download the official files of a set into a folder with its name. Nothing else in this package downloads data.

    Complete files are kept, and an interrupted download continues where it ended.

    Args:
        name: One of the public sets.
        data_dir: Folder to put it in; by default `CALIBRANT_DATA`, else the user's cache.
        mirror: Address of a folder with copies of the official files, to use instead of the publisher.
        progress: Given the name of a file, returns a function that is called with the bytes received and the total.
    """
    entry = catalogue_entry(name)
    folder = Path(data_dir or os.environ.get("CALIBRANT_DATA") or cache_dir()).expanduser() / name
    paths = []
    for file in entry.files:
        path = folder / file.name
        paths.append(path)
        if path.is_file():
            if file.digest:
                check_file(path, file.digest)
            continue
        url, report = file.url, None
        if mirror:
            url = f"{mirror.rstrip('/')}/{file.name}"
        if progress is not None:
            report = progress(file.name)
        download(url, path, size=file.size, digest=file.digest, progress=report)
    return tuple(paths)


def download(
    url: str, target: Path, *, size: int = 0, digest: str = "", progress: Progress | None = None, attempts: int = 3
) -> None:
    """Get `url` into `target`.

    Bytes go to `target` plus `.part`; a later call asks the server for the rest. When all of it is there and size and
    digest fit, it is renamed; when they do not, it is deleted.

    Args:
        url: An http or https address.
        target: Path of the file.
        size: Bytes it must have; 0 if unknown.
        digest: `md5:...` or `sha256:...` it must have; empty if unknown.
        progress: Called with the number of bytes received and the total (0 if unknown).
        attempts: How often to go on after a broken connection.
    """
    if not url.startswith(("http://", "https://")):
        raise invalid("url", "start with http:// or https://", repr(url))
    part = target.with_name(f"{target.name}.part")
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    for attempt in range(attempts):
        try:
            _receive(url, part, size, progress)
            break
        except DownloadError as error:
            if not error.passing or attempt == attempts - 1:
                if part.stat().st_size == 0:
                    part.unlink()
                raise
    _check(part, url, size, digest)
    with _writing(target):
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(target)


def _check(part: Path, url: str, size: int, digest: str) -> None:
    """Refuse and delete a file that is not the published one."""
    if size and part.stat().st_size != size:
        got = part.stat().st_size
        part.unlink()
        raise invalid(url, f"have {size} bytes", got, "The publisher may have changed it; nothing was kept.")
    if digest:
        try:
            check_file(part, digest)
        except InvalidInput:
            part.unlink()
            raise


def _receive(url: str, part: Path, size: int, progress: Progress | None) -> None:
    """Append to `part` over one connection, from where the file ends, until everything announced has arrived."""
    start = part.stat().st_size
    if size and start == size:
        return
    headers = {"User-Agent": f"calibrant/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # the scheme is checked by the caller
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310  # as above
            announced = int(response.headers.get("Content-Length") or 0)
            goes_on = response.status == 206 and _range_start(response.headers.get("Content-Range")) == start
            if response.status == 206 and not goes_on:
                part.write_bytes(b"")
                raise DownloadError(f"{url}: the server answers with another range than asked for.", passing=True)
            begin = start if goes_on else 0
            total = begin + announced if announced else size
            with _writing(part), part.open("r+b") as handle:
                # A server without support for ranges sends the whole file: start over.
                handle.truncate(begin)
                handle.seek(begin)
                done, whole = _copy(response, handle, begin, total, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            # The server has no bytes after ours, but the file is not complete: only a fresh start helps.
            part.write_bytes(b"")
        message = f"{url}: the server answers {error.code} {error.reason}. Try again later, or another --source."
        raise DownloadError(message, passing=error.code == 416 or error.code >= 500) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise DownloadError(
            f"{url} cannot be reached ({reason}). Without a network, get the file elsewhere and put it into the data "
            "folder; 'calibrant data list' shows names and folders."
        ) from error
    if not whole:
        way_out = "Run the same command again to go on from there."
        raise DownloadError(
            f"{url}: the connection broke after {done} of {total or '?'} bytes. {way_out}", passing=True
        )


def _copy(
    response: http.client.HTTPResponse, handle: BinaryIO, begin: int, total: int, progress: Progress | None
) -> tuple[int, bool]:
    """Copy the response; returns the number of bytes received and whether the server had finished."""
    done = begin
    while True:
        try:
            block = response.read(_BLOCK)
        except (http.client.HTTPException, TimeoutError, ConnectionError):
            return done, False
        if not block:
            # A connection that ends early looks like the end of the file; only the announced length tells them apart.
            return done, not total or done >= total
        handle.write(block)
        done += len(block)
        if progress is not None:
            progress(done, total)


def _range_start(header: str | None) -> int:
    """First byte of `bytes 10-99/100`; -1 if there is none."""
    text = (header or "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdigit() else -1


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, ConnectionError, urllib.error.URLError):
        raise
    except OSError as error:
        raise output_error(path, error) from error
