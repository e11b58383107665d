"""Keep decoded sets as checked `.npz` files in the user's cache, because decoding takes long."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.errors import CalibrantError, CalibrantWarning
from calibrant.files import atomic_write, content_digest, read_json, sha256_of, write_json
from calibrant.training.data.arrays import read_arrays
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.formats.reader import Source
from calibrant.training.data.locate import cache_dir
from calibrant.training.data.spec import Spec

# Increase it when decoding changes, so that older copies are made again.
_VERSION = 1


def prepared(spec: Spec, source: Source, build: Callable[[], Splits]) -> Splits:
    """Return the kept copy of a set, or build it and keep it.

    A copy belongs to one state of the source (paths, sizes, times) and one choice of options. Its SHA-256 is recorded
    when it is written and compared when it is read; a copy that does not fit is built again.
    """
    state = _state(spec, source)
    key = content_digest(state)
    arrays = cache_dir() / "prepared" / f"{spec.kind}-{key[:16]}.npz"
    record = arrays.with_suffix(".json")
    kept = _read(arrays, record, state)
    if kept is not None:
        return kept
    splits = build()
    try:
        with atomic_write(arrays) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **_arrays(splits))
        write_json(record, {"state": state, "sha256": sha256_of(arrays), "verified": splits.verified})
    except CalibrantError as error:
        message = f"the decoded copy of {spec.kind} is not kept, so it is decoded again next time: {error}"
        warnings.warn(message, CalibrantWarning, stacklevel=2)
    return splits


def _read(arrays: Path, record: Path, state: dict[str, Any]) -> Splits | None:
    if not arrays.is_file() or not record.is_file():
        return None
    try:
        known = read_json(record)
        if known["state"] != state or known["sha256"] != sha256_of(arrays):
            return None
        splits = read_arrays(arrays)
    except (CalibrantError, OSError, KeyError, TypeError):
        return None
    return Splits(splits.train, splits.test, splits.class_names, f"{known['verified']}; decoded copy: SHA-256")


def _state(spec: Spec, source: Source) -> dict[str, Any]:
    paths = source.paths if source.form != "folder" else tuple(sorted(source.paths[0].rglob("*")))
    files = [path.stat() for path in paths if path.is_file()]
    return {
        "version": _VERSION,
        "options": dict(spec.options),
        "paths": [str(path.resolve()) for path in source.paths],
        "files": len(files),
        "bytes": sum(file.st_size for file in files),
        "newest": max((file.st_mtime_ns for file in files), default=0),
    }


def _arrays(splits: Splits) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for split, part in (("train", splits.train), ("test", splits.test)):
        content |= _split_arrays(split, part)
    if splits.class_names is not None:
        content["class_names"] = np.array(splits.class_names)
    return content


def _split_arrays(split: str, part: Images) -> dict[str, Any]:
    content = {f"x_{split}": part.images.permute(0, 2, 3, 1).numpy(), f"y_{split}": part.labels.numpy()}
    if part.ids is not None:
        content[f"ids_{split}"] = np.array(part.ids)
    return content
