"""Image sets in one `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`, all plain numbers, nothing pickled."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.checks import labels
from calibrant.errors import InvalidInput, invalid
from calibrant.predictions import Npz, read_npz
from calibrant.training.data.dataset import Augmentation, Dataset, Images, Splits, channel_statistics

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("class_names", "ids_train", "ids_test")
_MOST_CHANNELS = 4
_SHAPES = "have the shape (N, H, W) or (N, H, W, C), nothing empty"


def read_arrays(path: str | Path) -> Splits:
    """Read an `.npz` set.

    Args:
        path: A file with `x_train`, `x_test` (uint8, `(N, H, W)` or `(N, H, W, C)`), `y_train`, `y_test` (integers
            from 0) and optionally `class_names`, `ids_train`, `ids_test` (text).
    """
    content = read_npz(path, (*_REQUIRED, *_OPTIONAL))
    for key in _REQUIRED:
        if key not in content:
            raise _missing(path, key, content)
    names = _texts(content, "class_names", path)
    return Splits(_split(content, "train", path), _split(content, "test", path), names)


def read_arrays_extent(path: str | Path) -> tuple[int, int, int]:
    """Images to train on, classes, and pixels on the shorter side, from the labels and the headers alone.

    What else may be wrong with the file is found when it is loaded.
    """
    with Npz(path) as archive:
        for key in _REQUIRED:
            if key not in archive:
                raise _missing(path, key, archive.names)
        shape = archive.member("x_train").shape
        if len(shape) not in (3, 4) or 0 in shape:
            raise invalid(f"x_train in {path}", _SHAPES, shape)
        rows = labels(f"y_train in {path}", archive.read("y_train"), rows=shape[0])
        others = labels(f"y_test in {path}", archive.read("y_test"))
        n_classes = max(int(rows.max()), int(others.max())) + 1
        return shape[0], n_classes, min(shape[1:3])


def load_arrays(path: str | Path) -> Dataset:
    """Read the user's own `.npz` set; mean and standard deviation are those of its training images."""
    source = Path(path).expanduser()
    content = read_arrays(source)
    names = content.class_names
    if names is None:
        n_classes = max(int(content.train.labels.max()), int(content.test.labels.max())) + 1
        names = tuple(str(label) for label in range(n_classes))
    mean, std = channel_statistics(content.train.images)
    return Dataset(source.stem, content.train, content.test, names, mean, std, Augmentation(), origin=str(source))


def _missing(path: str | Path, key: str, found: Iterable[str]) -> InvalidInput:
    return invalid(str(path), f"hold {', '.join(_REQUIRED)}", f"no {key} (found: {', '.join(sorted(found))})")


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
