"""An exported file: what it says about itself, the seal that shows whether it was changed, and how it is run."""

import hashlib
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.contents import Contents
from calibrant.deployment.inputs import Arrays
from calibrant.errors import InvalidInput, importing, invalid, one_line
from calibrant.files import as_path, reading

OUTPUTS = ("probabilities", "predicted", "automate")
SCORES = "scores"
SHORTLIST = "shortlist"
CONTENTS, SEAL = "calibrant.contents", "calibrant.sha256"
_EMPTY_SEAL = "0" * 64
# How protobuf writes the entry: its key, then field 2 (0x12) of 64 (0x40) bytes.
_ENTRY = re.compile(re.escape(SEAL.encode()) + rb"\x12\x40([0-9a-f]{64})")
_AGAIN = "Export it again: calibrant export."


def library(name: str, extra: str = "export") -> Any:
    """Import a library when it is used, with one line on how to install it if it is missing."""
    with importing("this", name, extra):
        return import_module(name)


def add_facts(proto: Any, facts: dict[str, str]) -> None:
    """Write metadata into a model, and a placeholder for the seal."""
    for key, value in {**facts, SEAL: _EMPTY_SEAL}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value


def sealed(content: bytes) -> bytes:
    """The bytes of a file with the SHA-256 of all its other bytes in their place."""
    start, end = _seal(content, "the file")
    return content[:start] + hashlib.sha256(content).hexdigest().encode() + content[end:]


def _seal(content: bytes, where: str) -> tuple[int, int]:
    found = list(_ENTRY.finditer(content))
    if len(found) != 1:
        raise invalid(where, "be an ONNX file written by this calibrant", "another file", _AGAIN)
    return found[0].span(1)


def read_onnx(path: str | Path) -> bytes:
    """The bytes of an exported file; one that was changed after it was written is refused."""
    source = as_path(path)
    with reading(path):
        content = source.read_bytes()
    start, end = _seal(content, str(path))
    blank = content[:start] + _EMPTY_SEAL.encode() + content[end:]
    if hashlib.sha256(blank).hexdigest().encode() != content[start:end]:
        raise invalid(str(path), "be an undamaged file", "one that was changed after it was written", _AGAIN)
    return content


def open_session(content: bytes, where: str) -> Any:
    """A session of onnxruntime for a model."""
    runtime = library("onnxruntime", "serve")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # it prints what it raises as well
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        message = one_line(error, most=200).removesuffix(".")
        raise InvalidInput(f"{where} cannot be run by onnxruntime: {message}.") from error


def open_onnx(path: str | Path) -> tuple[Contents, Callable[[Arrays], NDArray[Any]]]:
    """What an exported file holds, and its network as a function of arrays."""
    session = open_session(read_onnx(path), str(path))
    text = session.get_modelmeta().custom_metadata_map.get(CONTENTS, "")
    contents = Contents.from_text(text, where=str(path))

    def score(arrays: Arrays) -> NDArray[Any]:
        return np.asarray(session.run([SCORES], arrays)[0])

    return contents, score
