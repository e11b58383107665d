"""The epoch log `metrics.jsonl`: one JSON object per line, one line per epoch, checked when it is read."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput
from calibrant.files import output_error, parse_json, reading, write_text
from calibrant.runs import check_json
from calibrant.training.schema import EpochLine

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
        path: The file; without one the log is what is `saved`.
        saved: The lines of the first epochs where a checkpoint holds them, which has a digest: they are not read again.
        epochs: Read this many lines, and refuse a log with fewer. With None all are read but a last line without an
            end, which a kill tore.
    """
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise InvalidInput(f"{path} is larger than {_LARGEST // 2**20} MB: it is no log of a run.")
    with reading(path):
        found = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    lines = list(saved)[:epochs]
    for number, text in enumerate(found[len(lines) : epochs], len(lines) + 1):
        lines.append(_parsed(text, number, f"{path}, line {number},"))
    if epochs is not None and len(lines) < epochs:
        raise InvalidInput(f"{path} is damaged: it has {len(lines)} whole lines for {epochs} epochs. {_WAY_OUT}")
    return lines


_WAY_OUT = "Put a sound copy of it back; train --resume writes it anew where a checkpoint of this version is there."


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
