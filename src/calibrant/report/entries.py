"""What the page is about: named predictions, the run they come from if there is one, and small images of the cases."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput, invalid, printable
from calibrant.predictions import Kind, Npz, Predictions, require_predictions
from calibrant.predictions.readings import shortened
from calibrant.runs import RunFolder

Pixels = NDArray[np.uint8]
# Longest side in the page; smaller images stay as they are, and the browser enlarges them without blurring.
_LONGEST = 96


class ReportEntry(NamedTuple):
    """One method on the page: its name, what it said about the test set, and the run it comes from, if there is one.

    `images` are uint8, (n, H, W) or (n, H, W, C), in the order of the predictions. None: those of the run's data set,
    if that is on this machine.
    """

    name: str
    predictions: Predictions
    run: RunFolder | None = None
    images: Pixels | None = None


Source = RunFolder | Predictions | str | Path | ReportEntry
Sources = Source | Iterable[Source] | Mapping[str, Source]
_FOR_ONE = 'For one model write {"its name": predictions}.'
_ALLOWED = "be a run, a path, predictions, or a list of these"


def read_entries(
    sources: Sources,
    *,
    names: Sequence[str] = (),
    images: str | Path | None = None,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[ReportEntry]:
    """Read runs and predictions.

    Args:
        sources: A run, its folder, a file that `Predictions.load` reads, predictions, a `ReportEntry`, or several of
            these; a mapping gives them names. Of a run the test predictions are read.
        names: One name per source. By default a run has the name of its method, and a file its own.
        images: `.npz` with the images of the test set, for thumbnails.
        kind: What the scores are, for files that do not say.
        columns: Other names of the target and id in tables: `{"target": "label", "id": "case"}`.
    """
    pixels = None if images is None else read_images(images)
    if isinstance(sources, RunFolder | Predictions | str | Path | ReportEntry):
        sources = [sources]
    elif isinstance(sources, Mapping):
        names = list(sources)
        sources = list(sources.values())
    elif not isinstance(sources, Iterable):
        raise invalid("sources", _ALLOWED, type(sources).__name__)
    entries = [_entry(source, kind, columns) for source in sources]
    if not entries:
        raise InvalidInput("report needs at least one run or file with predictions.")
    if names and len(names) != len(entries):
        raise invalid("name", f"be given once for each of the {len(entries)} sources, or not at all", len(names))
    shown_names = [printable(name) for name in names or _distinct_names(entries)]
    if any(not name.strip() for name in shown_names) or len(set(shown_names)) < len(shown_names):
        raise invalid("names", "be distinct and not empty", shown_names)
    entries = [entry._replace(name=name) for entry, name in zip(entries, shown_names, strict=True)]
    if pixels is not None:
        entries = [entry._replace(images=pixels) for entry in entries]
    return entries


def check_methods(methods: Mapping[str, Predictions]) -> None:
    """Refuse anything but a mapping from names to predictions, and an empty one."""
    if not isinstance(methods, Mapping):
        raise invalid("methods", "map names to predictions", type(methods).__name__, _FOR_ONE)
    if not methods:
        raise invalid("methods", "hold at least one method", "an empty mapping")
    for name, predictions in methods.items():
        require_predictions(predictions, f"predictions of {name!r}")


def _entry(source: Source, kind: Kind | None, columns: Mapping[str, str] | None) -> ReportEntry:
    if isinstance(source, ReportEntry):
        require_predictions(source.predictions, f"predictions of {source.name!r}")
        return source
    if isinstance(source, RunFolder):
        return ReportEntry(source.method, source.predictions("test"), source)
    if isinstance(source, Predictions):
        path = source.origin.path
        return ReportEntry("the model" if path is None else path.stem, source)
    if not isinstance(source, str | Path):
        raise invalid("sources", _ALLOWED, type(source).__name__)
    path = Path(source)
    # Also of RUN/predictions/test.npz: otherwise it would have the name "test" and lose its recipe.
    run = RunFolder.of(path)
    if run is None:
        return ReportEntry(path.stem, Predictions.load(path, kind=kind, columns=columns))
    if path.is_dir():
        return _entry(run, kind, columns)
    return ReportEntry(run.method, Predictions.load(path, kind=kind, columns=columns), run)


def _distinct_names(entries: list[ReportEntry]) -> list[str]:
    """Names; those that occur twice get the folder of their run or file, or their place."""
    names = [entry.name for entry in entries]
    distinct = []
    for place, entry in enumerate(entries, start=1):
        name = entry.name
        if names.count(name) > 1:
            path = entry.predictions.origin.path
            if entry.run is not None:
                name = f"{name} ({entry.run.path.name})"
            elif path is not None:
                name = f"{name} ({path.parent.name})"
            else:
                name = f"{name} #{place}"
        distinct.append(name)
    return distinct


def check_images(images: Pixels, rows: int, argument: str = "images") -> Pixels:
    """Images as (n, H, W) or (n, H, W, C) with C of 1, 3 or 4, uint8, one per row of the predictions."""
    good_shape = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] in {1, 3, 4})
    if images.dtype != np.uint8 or not good_shape:
        value = f"{images.dtype} of shape {images.shape}"
        raise invalid(argument, "be uint8 of shape (n, H, W) or (n, H, W, C) with 1, 3 or 4 channels", value)
    if len(images) != rows:
        raise invalid(argument, f"hold one image for each of the {rows} predictions", len(images))
    if images.ndim == 4 and images.shape[-1] == 1:
        return images[..., 0]
    return images


def read_images(path: str | Path) -> Pixels:
    """Read the array `images` (or `x_test`) of an `.npz` file."""
    with Npz(path) as archive:
        for name in ("images", "x_test"):
            if name in archive:
                return archive.read(name)
        raise invalid(str(path), "hold an array named images or x_test", shortened(archive.names) or "nothing")


def data_uri(image: Pixels) -> str:
    """One image as a PNG inside an address; at most 96 pixels on the longest side."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > _LONGEST:
        picture.thumbnail((_LONGEST, _LONGEST))
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
