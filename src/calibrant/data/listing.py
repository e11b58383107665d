"""Which image sets there are, and where they lie on this machine."""

from pathlib import Path
from typing import Any

from calibrant.data.catalogue import CATALOGUE
from calibrant.data.load import find_named, load_dataset
from calibrant.data.locate import locate
from calibrant.errors import CheckFailed, InvalidInput

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
        source, problem = None, None
        try:
            source = locate(entry.name, entry.reader, data_dir=data_dir, system=entry.system)
        except InvalidInput as error:
            problem = str(error)
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "train": entry.train,
                "test": entry.test,
                "classes": entry.n_classes,
                "found": source.place if source else None,
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
    found = row["found"] or row["problem"]
    return str(found) if found else f"no; {row['download_bytes'] / 1e6:,.0f} MB to fetch"


def check_dataset(name: str, *, data_dir: str | Path | None = None, progress: Any = None) -> dict[str, Any]:
    """Read a set from disk and compare it with what is published; what it holds.

    Args:
        name: A set of the catalogue, or `arrays:FILE.npz`, `folder:DIR`.
        data_dir: Folder to look in first.
        progress: Called with what is done and all that is to be done.

    Raises:
        InvalidInput: The set is not there, or it is the user's own and cannot be read.
        CheckFailed: A set of the catalogue is there and does not fit what is published.
    """
    # A set that is not there is a mistake in the question; one that does not fit is the answer "no".
    named = find_named(name, data_dir=data_dir) is not None
    try:
        dataset = load_dataset(name, data_dir=data_dir, progress=progress)
    except InvalidInput as error:
        if not named:
            raise
        raise CheckFailed(str(error)) from error
    return {
        "name": dataset.name,
        "origin": dataset.origin,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.n_classes,
        "image_shape": list(dataset.image_shape),
        "verified": dataset.verified or "nothing is published to compare it with",
    }
