"""What a run saves while it trains: checkpoints that survive a kill at any moment, and the epoch log.

A checkpoint is one safetensors file. Its metadata are the plain values with the digest of everything; it exists once it
is renamed. Nothing is ever unpickled. Anybody may have written these files, so they are checked before they are used.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import (
    atomic_write,
    content_digest,
    output_error,
    parse_json,
    reading,
    write_text,
)
from calibrant.runs import Checked, Count, Epoch, Figures, NotNegative, Number, check_json

if TYPE_CHECKING:
    from calibrant.training.setup import Setup

Line = dict[str, Any]
_KEEP = 2
_METADATA = "calibrant"
Side = Annotated[int, Field(ge=1, le=100_000)]


class EpochLine(Checked):
    """What is read of a line of `metrics.jsonl`."""

    epoch: Epoch
    kept_share: Number
    samples: Count
    samples_scored: Count = 0
    flops: NotNegative
    loss: Number
    train_seconds: NotNegative
    seconds: NotNegative
    # Pydantic reads a missing key as None here; `validation: null` is never written, and harmless.
    validation: Figures | None = None


class CheckpointValues(Checked):
    """What a checkpoint holds beside its tensors."""

    data: str
    settings: dict[str, Any]
    classes: Side
    # Lists in JSON; strict mode would refuse them for tuples.
    image_shape: Annotated[list[Side], Field(min_length=3, max_length=3)]
    mean: list[Number]
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    pruner: dict[str, Any]
    model_input: dict[Literal["size", "mean", "std"], list[Number] | None] | None = None

    @model_validator(mode="after")
    def _one_per_channel(self) -> Self:
        if not len(self.mean) == len(self.std) == self.image_shape[0]:
            raise ValueError("mean and std must hold one number per channel")
        return self


class CheckpointContent(Checked):
    """The metadata of a checkpoint."""

    format: Literal[2]
    epoch: Epoch
    tensors_sha256: str
    values: CheckpointValues


@dataclass(frozen=True)
class Checkpoint:
    """State after a number of finished epochs: tensors by name, and plain values."""

    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, remove all but the newest two, and return its path."""
    path = checkpoint_path(folder, checkpoint.epoch)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    content: dict[str, Any] = {"format": 2, "epoch": checkpoint.epoch, "values": checkpoint.values}
    content["tensors_sha256"] = _tensors_digest(tensors)
    metadata = {_METADATA: json.dumps({**content, "sha256": content_digest(content)}, allow_nan=False)}
    with atomic_write(path) as temporary:
        # Not safetensors' own `save_file`: on a full disk it raises an error of its own instead of the system's.
        temporary.write_bytes(save(tensors, metadata))
    _flush_folder(folder)
    remove_leftovers(folder)
    return path


def checkpoint_path(folder: Path, epoch: int) -> Path:
    """The checkpoint after that many epochs."""
    return folder / f"epoch-{epoch:05d}.safetensors"


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose digests hold; None if there are no checkpoints.

    A damaged one is named in a warning and the one before it is taken. If all are damaged this is an error and not
    a silent new beginning: the folder may be the only trace of days of work.
    """
    found = saved_checkpoints(folder)
    for path in found:
        try:
            return load_checkpoint(path)
        except InvalidInput as error:
            warnings.warn(f"{error} The one before it is used.", CalibrantWarning, stacklevel=2)
    if found:
        raise InvalidInput(
            f"none of the {len(found)} checkpoints in {folder} can be read. "
            f"Put a sound copy there, or delete that folder to train from the beginning."
        )
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint and check its digests."""
    content = _read(path)
    with _undamaged(path):
        tensors = load(path.read_bytes())
    if content["tensors_sha256"] != _tensors_digest(tensors):
        raise InvalidInput(f"checkpoint {path.name} is damaged: its digest does not match.")
    return Checkpoint(content["epoch"], tensors, content["values"])


def trained_data(folder: Path) -> str | None:
    """Fingerprint of the data by the newest checkpoint, without reading its tensors; None without a checkpoint.

    Nothing else in a run folder holds it: without checkpoints (removed to save space, for one) it is unknown.
    """
    for path in saved_checkpoints(folder):
        return str(_read(path)["values"]["data"])
    return None


def remove_leftovers(folder: Path) -> None:
    """Remove checkpoints beyond the newest two."""
    for path in saved_checkpoints(folder)[_KEEP:]:
        path.unlink(missing_ok=True)


def saved_checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, the newest first."""
    return sorted(folder.glob("epoch-*.safetensors"), reverse=True)


def _tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"checkpoint {path.name} is damaged: {type(error).__name__}.") from error


def _read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds beside its tensors; the types are those that the rest of the code relies on."""
    with _undamaged(path), safe_open(path, "pt") as file:
        text = (file.metadata() or {}).get(_METADATA, "null")
    try:
        content: Any = parse_json(text, "its metadata")
    except InvalidInput as error:
        raise InvalidInput(f"checkpoint {path.name} is damaged: {error}") from error
    if not isinstance(content, dict) or content.pop("sha256", None) != content_digest(content):
        raise InvalidInput(f"checkpoint {path.name} is damaged: its digest does not match.")
    check_json(CheckpointContent, content, f"checkpoint {path.name}")
    result: dict[str, Any] = content
    return result


def _flush_folder(folder: Path) -> None:
    """Make the renames durable before anything older is removed: a power cut must leave one whole checkpoint."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders, and makes renames durable by itself
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(setup: "Setup", epoch: int) -> Checkpoint:
    """Everything that the rest of the run depends on. Generators have no state worth keeping: see `derive_seed`."""
    tensors: dict[str, Tensor] = {}
    for owner, part in _owners(setup).items():
        tensors |= {f"{owner}.{name}": value for name, value in part.state_dict().items()}
    for number, slots in setup.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{slot}": value for slot, value in slots.items() if value is not None}
    pruner: dict[str, Any] = {}
    for name, value in setup.pruner.state_dict().items():
        if isinstance(value, Tensor):
            tensors[f"pruner.{name}"] = value
        else:
            pruner[name] = value
    data = setup.data
    values: dict[str, Any] = {"data": data.fingerprint, "settings": setup.recipe.kept()}
    values |= {"classes": data.n_classes, "image_shape": list(data.image_shape)}
    # Export puts the normalisation into the deployed file, which has no data set at hand.
    values |= {"mean": list(data.mean), "std": list(data.std), "pruner": pruner}
    if setup.expected_input is not None:
        values["model_input"] = asdict(setup.expected_input)
    return Checkpoint(epoch, tensors, values)


def unpack(setup: "Setup", checkpoint: Checkpoint) -> None:
    """Put a checkpoint's state into a freshly built setup; one that does not fit is refused in one line."""
    try:
        _unpack(setup, checkpoint)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The digest holds, so no disk did this: the files belong to another run, or were made by hand.
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        name = checkpoint_path(Path(), checkpoint.epoch)
        raise InvalidInput(f"checkpoint {name} does not fit the recipe and the data of its run: {reason}") from error


def _owners(setup: "Setup") -> dict[str, Any]:
    """The parts of a run whose state is tensors alone, by the first word of the tensors' names."""
    owners: dict[str, Any] = {"model": setup.network}
    if setup.average is not None:
        owners["average"] = setup.average
    if setup.loss.follows_validation:
        owners["loss"] = setup.loss
    if setup.best is not None:
        owners["best"] = setup.best
    return owners


def _unpack(setup: "Setup", checkpoint: Checkpoint) -> None:
    owners = _owners(setup)
    states: dict[str, dict[str, Tensor]] = {name: {} for name in (*owners, "optimiser", "pruner")}
    for name, value in checkpoint.tensors.items():
        owner, rest = name.split(".", 1)
        states[owner][rest] = value
    for owner, part in owners.items():
        part.load_state_dict(states[owner])
    # Checkpoints lie between epochs, when all ranks hold the same rows.
    setup.pruner.load_state_dict({**states["pruner"], **checkpoint.values["pruner"]})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in states["optimiser"].items():
        number, slot = name.split(".", 1)
        state.setdefault(int(number), {})[slot] = value
    optimiser = setup.optimiser
    rates = [group["lr"] for group in optimiser.param_groups]
    with torch.no_grad():
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        # Loading copies the groups; on a GPU the rate must stay the very tensor that the engine changes in place.
        group["lr"] = rate
    for parameter, slots in optimiser.state.items():
        for slot, value in slots.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                # Files hold rows in plain order; the fused optimiser wants its buffers laid out like the parameters.
                slots[slot] = torch.empty_like(parameter).copy_(value)


# the epoch log, metrics.jsonl -----------------------------------------------------------------------------------------


def append_line(path: Path, line: Line) -> None:
    """Append one epoch's line, and return when it is on the disk."""
    try:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line, allow_nan=False) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise output_error(path, error) from error


def write_log(path: Path, lines: Sequence[Line]) -> None:
    """Write the whole log anew."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_log(path: Path, *, epochs: int | None = None) -> list[Line]:
    """The lines of the log; the first damaged one is named and refused.

    `epochs` lines are read, and a log with fewer is refused. With None all are read but a last line without an end,
    which a kill tore.
    """
    found: list[bytes] = []
    with reading(path):
        if path.is_file():
            found = path.read_bytes().split(b"\n")[:-1]
    lines: list[Line] = []
    for number, text in enumerate(found[:epochs], 1):
        where = f"{path}, line {number},"
        try:
            line = parse_json(text, where)
            check_json(EpochLine, line, where)
        except InvalidInput as error:
            raise InvalidInput(f"{where} is damaged. Put a sound copy of the file back.") from error
        if line["epoch"] != number:
            raise InvalidInput(f"{where} is damaged: it is about epoch {line['epoch']}.")
        lines.append(line)
    if epochs is not None and len(lines) < epochs:
        raise InvalidInput(
            f"{path} is damaged: it has {len(lines)} whole lines for {epochs} epochs. Put a sound copy of it back."
        )
    return lines
