"""Which image sets there are, where they lie on this machine, and whether they are complete."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import CheckFailed, InvalidInput
from calibrant.training.data.dataset import Progress
from calibrant.training.data.folder import StreamedDataset, list_folder
from calibrant.training.data.load import find_named, open_dataset
from calibrant.training.data.pictures import unreadable_pictures
from calibrant.training.data.public_sets import CATALOGUE, locate
from calibrant.training.data.spec import Spec, parse_spec

# The set that needs no file: it lies inside scikit-learn.
_DIGITS: dict[str, Any] = {
    "name": "digits",
    "title": "Handwritten digits, 8x8 grey",
    "train": 1198,
    "test": 599,
    "classes": 10,
    "found": "inside scikit-learn",
    "problem": None,
    "download_bytes": 0,
    "files": [],
    "licence": "CC BY 4.0",
    "citation": "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
    "homepage": "https://archive.ics.uci.edu/dataset/80",
}


def list_datasets(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Every set by name: what it is, where it was found or why it was not, how large it is, and its licence.

    Args:
        data_dir: Folder to look in first; then `CALIBRANT_DATA`, then the user's cache.
    """
    rows = [_DIGITS]
    for entry in CATALOGUE.values():
        found, problem = None, None
        try:
            if source := locate(entry, data_dir):
                found = source.place
        except InvalidInput as error:
            problem = str(error)
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "train": entry.train,
                "test": entry.test,
                "classes": entry.n_classes,
                "found": found,
                "problem": problem,
                "download_bytes": sum(file.size for file in entry.files),
                "files": [file.name for file in entry.files],
                "licence": entry.licence,
                "citation": entry.citation,
                "homepage": entry.homepage,
            }
        )
    return rows


def describe_place(row: dict[str, Any]) -> str:
    """Where a set of `list_datasets` lies, or what it takes to have it."""
    return str(row["found"] or row["problem"] or f"no; {row['download_bytes'] / 1e6:,.0f} MB to fetch")


def check_dataset(name: str, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Read a set from disk, compare it with what is published, and say what it holds.

    Args:
        name: A set of the catalogue, or `arrays:FILE.npz`, `folder:DIR`.
        data_dir: Folder to look in first.
        progress: Called with what is done and all that is to be done.

    Returns:
        What it holds, as plain JSON values. If pictures of a folder cannot be read, `unreadable` has a line for each,
        and `problem` counts them; if they stopped the reading, the image shape is None.

    Raises:
        InvalidInput: The set is not there, or it is the user's own and cannot be read.
        CheckFailed: A set of the catalogue is there and does not fit what is published.
    """
    # A set that is not there is a mistake in the question; one that does not fit is the answer "no".
    named = find_named(name, data_dir=data_dir) is not None
    try:
        dataset = open_dataset(name, data_dir=data_dir, progress=progress).data
    except InvalidInput as error:
        if named:
            raise CheckFailed(str(error)) from error
        content = _damaged_folder(parse_spec(name), progress)
        if content is None:
            raise
        return content
    labels = (dataset.train.labels, dataset.test.labels)
    content = _content(dataset.name, dataset.origin, labels, dataset.class_names)
    content["image_shape"] = list(dataset.image_shape)
    if isinstance(dataset, StreamedDataset):  # more than memory holds, of which only a sample was decoded so far
        part = dataset.train
        _add_unreadable(content, unreadable_pictures(part.pictures, part.form.decoder(), progress=progress))
    else:
        content["verified"] = dataset.verified or content["verified"]
    return content


def _damaged_folder(spec: Spec, progress: Progress | None) -> dict[str, Any] | None:
    """What a folder with unreadable pictures holds; None if something else is wrong with it."""
    if spec.kind != "folder" or not spec.path:
        return None
    found = list_folder(spec)
    unreadable = unreadable_pictures(found.pictures, progress=progress)
    if not unreadable:
        return None
    labels = (found.labels[found.train], found.labels[found.test])
    content = _content(found.name, str(found.folder), labels, found.class_names)
    _add_unreadable(content, unreadable)
    return content


def _content(name: str, origin: str, labels: tuple[Tensor, Tensor], class_names: Sequence[str]) -> dict[str, Any]:
    counts = [part.bincount(minlength=len(class_names)).tolist() for part in labels]
    return {
        "name": name,
        "origin": origin,
        "train": len(labels[0]),
        "test": len(labels[1]),
        "classes": len(class_names),
        "image_shape": None,
        "verified": "nothing is published to compare it with",
        "images_per_class": dict(zip(class_names, map(list, zip(*counts, strict=True)), strict=True)),
        "unreadable": [],
        "problem": None,
    }


def _add_unreadable(content: dict[str, Any], unreadable: list[str]) -> None:
    if unreadable:
        total = content["train"] + content["test"]
        content["unreadable"] = unreadable
        content["problem"] = f"{len(unreadable)} of {total} pictures of {content['origin']} cannot be read"


def describe_content(content: dict[str, Any]) -> list[str]:
    """What `check_dataset` found, one line for each thing and for each unreadable picture."""
    lines = []
    for key, value in content.items():
        if key not in ("images_per_class", "unreadable", "problem"):
            lines.append(f"{key.replace('_', ' ')}: {value or 'not known'}")
    for name, (train, test) in content["images_per_class"].items():
        lines.append(f"class {name}: {train} to train on, {test} to test on")
    return [*lines, *content["unreadable"]]
