"""Read a data set by its name."""

from dataclasses import replace
from pathlib import Path

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.training.data.arrays import load_arrays, read_arrays
from calibrant.training.data.catalogue import CATALOGUE, CatalogueEntry
from calibrant.training.data.dataset import Dataset, Splits
from calibrant.training.data.digits import load_digits
from calibrant.training.data.folder import load_folder
from calibrant.training.data.formats.reader import Progress, Source
from calibrant.training.data.locate import data_dirs, locate
from calibrant.training.data.prepared import prepared
from calibrant.training.data.spec import Spec, parse_spec


def load_dataset(spec: str, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """Read an image set.

    Args:
        spec: `digits`; a public set (`calibrant data list` names them); `arrays:FILE.npz`; `folder:DIR`, or
            `folder:DIR?size=64` to resize.
        data_dir: Folder to look in first for a public set, before `CALIBRANT_DATA` and the user's cache. Nothing is
            downloaded here.
        progress: Called with the amount done and the total, where reading takes long.

    >>> dataset = load_dataset("digits")
    >>> len(dataset.train), len(dataset.test), dataset.n_classes, dataset.image_shape
    (1198, 599, 10, (1, 8, 8))
    """
    parsed = parse_spec(spec)
    if parsed.kind in CATALOGUE and not parsed.path:
        return _load_named(CATALOGUE[parsed.kind], parsed, data_dir, progress)
    if parsed.kind == "digits" and not parsed.path:
        parsed.allow()
        return load_digits()
    if parsed.kind == "arrays" and parsed.path:
        parsed.allow()
        return load_arrays(parsed.path)
    if parsed.kind == "folder" and parsed.path:
        return load_folder(parsed, progress=progress)
    raise invalid("data", "name a known set", repr(spec), _way_out(spec))


def _way_out(text: str) -> str:
    """What was meant: a folder or file that is there without the word before its path, or the closest known name."""
    path = Path(text.rpartition("?")[0] or text).expanduser()
    if text and path.is_dir():
        return f"Did you mean 'folder:{text}'?"
    if path.suffix == ".npz" and path.is_file():
        return f"Did you mean 'arrays:{text}'?"
    return did_you_mean(text, ["digits", *CATALOGUE, "arrays:FILE.npz", "folder:DIR"])


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

    return prepared(spec, source, build) if entry.reader.slow else build()


def find_named(spec: str, *, data_dir: str | Path | None = None) -> Source | None:
    """Find a public set on this machine; None for other kinds of set. A public set that is missing is an error."""
    entry = CATALOGUE.get(parse_spec(spec).kind)
    if entry is None:
        return None
    source = locate(entry.name, entry.reader, data_dir=data_dir, system=entry.system)
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
    names = splits.class_names or entry.class_names or tuple(map(str, range(entry.n_classes)))
    return Dataset(
        entry.name,
        splits.train,
        splits.test,
        names,
        entry.mean,
        entry.std,
        entry.augmentation,
        origin=source.place,
        verified=splits.verified,
    )


def _check_counts(entry: CatalogueEntry, splits: Splits, source: Source) -> None:
    found = (len(splits.train), len(splits.test))
    if found != (entry.train, entry.test):
        raise invalid(
            str(source.paths[0]),
            f"hold the {entry.train} training and {entry.test} test images of {entry.name}",
            f"{found[0]} and {found[1]}",
            "Another selection of images can be loaded as arrays:FILE.npz or folder:DIR.",
        )
