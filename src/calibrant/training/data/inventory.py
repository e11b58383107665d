"""Which image sets there are, where they lie on this machine, and whether they are complete."""

from contextlib import closing
from pathlib import Path
from typing import Any

from calibrant.errors import CheckFailed, InvalidInput
from calibrant.training.data.dataset import Dataset, Progress
from calibrant.training.data.folder import Listing, list_folder, stream_folder
from calibrant.training.data.load import find_named, load_dataset
from calibrant.training.data.pictures import Unreadable, decoded
from calibrant.training.data.public_sets import CATALOGUE, locate
from calibrant.training.data.spec import parse_spec


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
