"""Checkpoints that survive a kill at any moment: safetensors for tensors, JSON for the rest, digests for trust.

A checkpoint is two files. The tensors are written and renamed first; the JSON names their digest and its own, and is
renamed last: it is the moment at which the checkpoint exists. Nothing is ever unpickled.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import atomic_write, sha256_of, write_json

_KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """State after a number of finished epochs: tensors by name, and plain values."""

    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove all but the newest two."""
    stem = folder / f"epoch-{checkpoint.epoch:05d}"
    tensors = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    with atomic_write(stem.with_suffix(".safetensors")) as temporary:
        save_file(tensors, temporary)
        digest = sha256_of(temporary)
    content = {"epoch": checkpoint.epoch, "tensors_sha256": digest, "values": checkpoint.values}
    write_json(stem.with_suffix(".json"), {**content, "sha256": _digest(content)})
    for old in _found(folder)[_KEEP:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)
    return stem.with_suffix(".json")


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose digests hold; damaged ones are named in a warning and passed over."""
    for path in _found(folder):
        try:
            return load_checkpoint(path)
        except InvalidInput as error:
            warnings.warn(f"{error} The one before it is used.", CalibrantWarning, stacklevel=2)
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint by the path of its JSON and check both digests."""
    tensors = path.with_suffix(".safetensors")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated = content.pop("sha256")
        if stated != _digest(content) or content["tensors_sha256"] != sha256_of(tensors):
            raise InvalidInput(f"checkpoint {path.name} is damaged: its digest does not match.")
        return Checkpoint(content["epoch"], load_file(tensors), content["values"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"checkpoint {path.name} is damaged: {type(error).__name__}.") from error


def newest_name(folder: Path) -> str | None:
    """File name of the newest checkpoint, for messages."""
    found = _found(folder)
    return found[0].name if found else None


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.json"), reverse=True)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
