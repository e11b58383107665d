"""What can be exported from files: a run, or a model of your own with weights and example."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.deployment.inputs import IMAGES, INPUTS
from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.own_code import load, own_code_at_work
from calibrant.predictions import Npz
from calibrant.training import Run


def open_model(run: str | Path | None = None, factory: str | None = None, weights: str | Path | None = None) -> Any:
    """A run, or what a function of your own returns; what `export_onnx` takes.

    Args:
        run: A run folder.
        factory: `module:function`; called without arguments it gives a `torch.nn.Module` or a fitted scikit-learn
            classifier. Naming it here is to trust it.
        weights: For a torch module: a `.safetensors` file with its state dict.
    """
    if (run is None) == (factory is None):
        got = "neither" if run is None else "both"
        raise invalid("what is exported", "be a run folder or --model module:function", got)
    if run is not None:
        if weights is not None:
            raise invalid("weights", "be left out for a run, which has its own", str(weights))
        return Run.open(run)
    assert factory is not None
    make = load(factory, kind="model", trusted=True)
    with own_code_at_work(f"model {factory} raised"):
        model = make()
    if weights is not None:
        load_weights(model, weights)
    return model


def load_weights(model: Any, path: str | Path) -> None:
    """Fill a torch module with the tensors of a `.safetensors` file, which must be just its own."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not isinstance(model, nn.Module):
        raise invalid("weights", "be left out for what is no torch.nn.Module", type(model).__name__)
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise InvalidInput(f"weights {path} do not exist.") from error
    except (OSError, SafetensorError) as error:
        raise invalid(f"weights {path}", "be a .safetensors file", one_line(error, most=150)) from error
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InvalidInput(f"weights {path} do not fit the model: {one_line(error, most=250)}") from error


def read_example(path: str | Path) -> Tensor | dict[str, Tensor]:
    """Cases from an `.npz`: one array for each input, by its name.

    An array `images` or `inputs` alone is the one input of a model that is not called by name.
    """
    with Npz(path) as opened:
        arrays = {name: opened.read(name) for name in opened.names}
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or array.ndim == 0:
            raise invalid(f"{path}: {name[:40]}", "hold numbers, one row for each case", f"{array.dtype} {array.shape}")
    if not arrays:
        raise invalid(str(path), "hold an array for each input", "none")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    (first, *others) = tensors
    return tensors[first] if not others and first in (IMAGES, INPUTS) else tensors


def parse_ranges(texts: Sequence[str] | None) -> dict[str, tuple[float, float]] | None:
    """Ranges of inputs from text, `name=low:high` each.

    >>> parse_ranges(["input_ids=0:999", "mask=0:1"])
    {'input_ids': (0.0, 999.0), 'mask': (0.0, 1.0)}
    """
    if not texts:
        return None
    ranges = {}
    for text in texts:
        name, _, limits = text.partition("=")
        low, _, high = limits.partition(":")
        try:
            ranges[name] = (float(low), float(high))
        except ValueError as error:
            raise invalid("range", "be written as name=low:high", repr(text)) from error
    return ranges
