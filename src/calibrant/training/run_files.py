"""The JSON files of a run folder: their types and bounds, and the epoch log `metrics.jsonl`.

Anybody may have written these files, so they are checked before they are used.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from calibrant.errors import InvalidInput
from calibrant.files import output_error, parse_json, reading, write_text
from calibrant.runs import Checked, Count, Epoch, Figures, NotNegative, Number, Text, check_json

Side = Annotated[int, Field(ge=1, le=100_000)]


class EpochLine(Checked):
    """A line of `metrics.jsonl`."""

    epoch: Epoch
    lr: Number
    kept: Count
    kept_share: Number
    samples: Count
    samples_scored: Count = 0
    image_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    flops: NotNegative
    loss: Number
    terms: dict[Text, Number]
    accuracy: Number
    ece: Number
    train_seconds: NotNegative
    seconds: NotNegative
    samples_per_second: Number
    selection: Number | None = None
    # Pydantic reads a missing key as None here; `validation: null` is never written, and harmless.
    validation: Figures | None = None


class _BestSoFar(Checked):
    epoch: Epoch
    figure: Number


class _ModelInput(Checked):
    # Lists in JSON, as below.
    size: Annotated[list[Side], Field(min_length=2, max_length=2)] | None = None
    mean: list[Number] | None = None
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None


class CheckpointValues(Checked):
    """The JSON of a checkpoint without its digests."""

    data: str
    classes: Side
    # A list in JSON; strict mode would refuse it for a tuple.
    image_shape: Annotated[list[Side], Field(min_length=3, max_length=3)]
    pruner: dict[str, Any]
    mean: list[Number]
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    # None in very long runs, where the file is the only copy.
    log: list[EpochLine] | None
    best: _BestSoFar | None = None
    model_input: _ModelInput | None = None

    @model_validator(mode="after")
    def _one_per_channel(self) -> Self:
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.image_shape[0]:
                raise ValueError(f"{name} must hold one number per channel")
        return self


class CheckpointContent(Checked):
    """The JSON of a checkpoint."""

    epoch: Epoch
    tensors_sha256: str
    values: CheckpointValues


Line = dict[str, Any]
# About a hundred thousand epochs.
_LARGEST = 2**26


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


def read_log(path: Path, *, saved: Sequence[Line] = (), epochs: int | None = None) -> list[Line]:
    """The lines of the log; the first damaged one is named and refused.

    Args:
        path: The file; if it does not exist, the log is `saved`.
        saved: The lines of the first epochs, if a checkpoint holds them under its digest; they are not read again.
        epochs: Read this many lines, and refuse a log with fewer. With None all are read but a last line without an
            end, which a kill tore.
    """
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise InvalidInput(f"{path} is larger than {_LARGEST // 2**20} MB: it is no log of a run.")
    with reading(path):
        found: list[bytes] = []
        if path.is_file():
            found = path.read_bytes().split(b"\n")[:-1]
    lines = list(saved)[:epochs]
    for number, text in enumerate(found[len(lines) : epochs], len(lines) + 1):
        lines.append(_parsed(text, number, f"{path}, line {number},"))
    if epochs is not None and len(lines) < epochs:
        raise InvalidInput(f"{path} is damaged: it has {len(lines)} whole lines for {epochs} epochs. {_WAY_OUT}")
    return lines


_WAY_OUT = "Put a sound copy of it back; train --resume writes it anew if a checkpoint holds a copy."


def _parsed(text: bytes, number: int, where: str) -> Line:
    try:
        line = parse_json(text, where)
    except InvalidInput as error:
        raise InvalidInput(f"{where} is damaged: it is no JSON. {_WAY_OUT}") from error
    try:
        check_json(EpochLine, line, where)
    except InvalidInput as error:
        raise InvalidInput(f"{error} {_WAY_OUT}") from error
    if line["epoch"] != number:
        raise InvalidInput(f"{where} is damaged: it is about epoch {line['epoch']}. {_WAY_OUT}")
    result: Line = line
    return result
