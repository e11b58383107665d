"""Image sets in one `.npz` file of plain numbers: the user's own, and kept copies of sets that decode slowly."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.checks import labels
from calibrant.errors import CalibrantError, CalibrantWarning, invalid
from calibrant.files import atomic_write, content_digest, read_json, sha256_of, write_json
from calibrant.predictions import Npz, read_npz
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Images,
    Splits,
    channel_histogram,
    channel_statistics,
)
from calibrant.training.data.formats import Source
from calibrant.training.data.spec import Spec

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("class_names", "ids_train", "ids_test")
_MOST_CHANNELS = 4
_SHAPES = "have the shape (N, H, W) or (N, H, W, C), nothing empty"
# Increase it when decoding changes, so that older copies are made again.
_COPY_VERSION = 1


def read_arrays(path: str | Path) -> Splits:
    """Read an `.npz` set.

    Args:
        path: A file with `x_train`, `x_test` (uint8, `(N, H, W)` or `(N, H, W, C)`), `y_train`, `y_test` (integers
            from 0) and optionally `class_names`, `ids_train`, `ids_test` (text).
    """
    content = read_npz(path, (*_REQUIRED, *_OPTIONAL))
    _check_members(path, content)
    names = _texts(content, "class_names", path)
    return Splits(_split(content, "train", path), _split(content, "test", path), names)


def read_arrays_extent(path: str | Path) -> tuple[tuple[int, ...], int]:
    """Training images of each class, and pixels on the shorter side, from the labels and the headers alone."""
    with Npz(path) as archive:
        _check_members(path, archive.names)
        shape = archive.member("x_train").shape
        if len(shape) not in (3, 4) or 0 in shape:
            raise invalid(f"x_train in {path}", _SHAPES, shape)
        train = labels(f"y_train in {path}", archive.read("y_train"), rows=shape[0])
        test = labels(f"y_test in {path}", archive.read("y_test"))
        n_classes = max(int(train.max()), int(test.max())) + 1
        return tuple(np.bincount(train, minlength=n_classes).tolist()), min(shape[1:3])


def load_arrays(path: str | Path) -> Dataset:
    """Read the user's own `.npz` set; mean and standard deviation are those of its training images."""
    source = Path(path).expanduser()
    content = read_arrays(source)
    names = content.class_names
    if names is None:
        n_classes = max(int(content.train.labels.max()), int(content.test.labels.max())) + 1
        names = tuple(str(label) for label in range(n_classes))
    mean, std = channel_statistics(channel_histogram(content.train.images))
    return Dataset(source.stem, content.train, content.test, names, mean, std, Augmentation(), origin=str(source))


def _check_members(path: str | Path, found: Iterable[str]) -> None:
    names = sorted(found)
    for key in _REQUIRED:
        if key not in names:
            raise invalid(str(path), f"hold {', '.join(_REQUIRED)}", f"no {key} (found: {', '.join(names)})")


def _split(content: Mapping[str, Any], split: str, path: str | Path) -> Images:
    images = _pixels(content[f"x_{split}"], f"x_{split} in {path}")
    classes = labels(f"y_{split} in {path}", content[f"y_{split}"], rows=len(images)).astype(np.int64)
    return Images(torch.from_numpy(images), torch.from_numpy(classes), _texts(content, f"ids_{split}", path))


def _pixels(array: np.ndarray[Any, Any], argument: str) -> np.ndarray[Any, Any]:
    """Check uint8 images `(N, H, W)` or `(N, H, W, C)` and return them as contiguous `(N, C, H, W)`."""
    if array.dtype != np.uint8:
        way_out = "Convert first: from 0..1 with (x * 255).round().astype('uint8'), from 0..255 with x.astype('uint8')."
        raise invalid(argument, "be uint8 (0 to 255)", array.dtype, way_out)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or 0 in array.shape:
        raise invalid(argument, _SHAPES, array.shape)
    if array.shape[-1] > _MOST_CHANNELS:
        way_out = ""
        if array.shape[1] <= _MOST_CHANNELS:
            way_out = "The channels seem to come first: use x.transpose(0, 2, 3, 1)."
        raise invalid(argument, f"have at most {_MOST_CHANNELS} channels, in the last place", array.shape, way_out)
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _texts(content: Mapping[str, Any], key: str, path: str | Path) -> tuple[str, ...] | None:
    if key not in content:
        return None
    array = content[key]
    if array.ndim != 1 or array.dtype.kind != "U":
        raise invalid(f"{key} in {path}", "be a list of text", f"{array.dtype} of shape {array.shape}")
    return tuple(str(text) for text in array)


# copies of decoded sets -----------------------------------------------------------------------------------------------


def kept_copy(spec: Spec, source: Source, build: Callable[[], Splits], folder: Path) -> Splits:
    """Return the kept copy of a decoded set, or build the set and keep a copy.

    A copy belongs to one state of the source (paths, sizes, times) and one choice of options. Its SHA-256 is recorded
    when it is written and compared when it is read; a copy that does not fit is built again.

    Args:
        spec: Name and options of the set.
        source: The files it is read from.
        build: Reads the set.
        folder: Where copies are kept.
    """
    state = _state(spec, source)
    arrays = folder / f"{spec.kind}-{content_digest(state)[:16]}.npz"
    record = arrays.with_suffix(".json")
    try:
        known = read_json(record)
        if known["state"] == state and known["sha256"] == sha256_of(arrays):
            found = read_arrays(arrays)
            return Splits(found.train, found.test, found.class_names, f"{known['verified']}; decoded copy: SHA-256")
    except (CalibrantError, OSError, KeyError, TypeError):
        pass  # no copy, or a damaged one
    splits = build()
    try:
        with atomic_write(arrays) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **_members(splits))
        write_json(record, {"state": state, "sha256": sha256_of(arrays), "verified": splits.verified})
    except CalibrantError as error:
        message = f"the decoded copy of {spec.kind} is not kept, so it is decoded again next time: {error}"
        warnings.warn(message, CalibrantWarning, stacklevel=2)
    return splits


def _state(spec: Spec, source: Source) -> dict[str, Any]:
    paths = list(source.paths)
    if source.form == "folder":
        paths = sorted(source.paths[0].rglob("*"))
    files = [path.stat() for path in paths if path.is_file()]
    return {
        "version": _COPY_VERSION,
        "options": dict(spec.options),
        "paths": [str(path.resolve()) for path in source.paths],
        "files": len(files),
        "bytes": sum(file.st_size for file in files),
        "newest": max((file.st_mtime_ns for file in files), default=0),
    }


def _members(splits: Splits) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for split, part in (("train", splits.train), ("test", splits.test)):
        content[f"x_{split}"] = part.images.permute(0, 2, 3, 1).numpy()
        content[f"y_{split}"] = part.labels.numpy()
        if part.ids is not None:
            content[f"ids_{split}"] = np.array(part.ids)
    if splits.class_names is not None:
        content["class_names"] = np.array(splits.class_names)
    return content
