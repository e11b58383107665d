"""Models of your own for the export: the function that makes one, its weights and example cases from files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrant.deployment.inputs import IMAGES, INPUTS
from calibrant.deployment.module import is_module
from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.own_code import load, own_code_at_work
from calibrant.predictions import Npz


def open_model(factory: str, weights: str | Path | None = None) -> Any:
    """What a function of your own returns; `export_onnx` takes it.

    Args:
        factory: `module:function`; called without arguments it gives a `torch.nn.Module` or a fitted scikit-learn
            classifier. Naming it here is to trust it.
        weights: For a torch module: a `.safetensors` file with its state dict.
    """
    make = load(factory, kind="model", trusted=True)
    with own_code_at_work(f"model {factory} raised"):
        model = make()
    if weights is not None:
        load_weights(model, weights)
    return model


def load_weights(model: Any, path: str | Path) -> None:
    """Fill a torch module with the tensors of a `.safetensors` file, which must be just its own."""
    if not is_module(model):
        raise invalid("weights", "be left out for what is no torch.nn.Module", type(model).__name__)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

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


def read_example(path: str | Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
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
    (first, *others) = arrays
    return arrays[first] if not others and first in (IMAGES, INPUTS) else arrays


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
