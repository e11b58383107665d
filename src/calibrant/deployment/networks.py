"""Models of users: name, type, shape and range of their inputs, checks of cases, and torch modules.

torch is imported only if a module is given.
"""

import hashlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, is_tensor
from calibrant.errors import InvalidInput, did_you_mean, invalid, one_line
from calibrant.files import reading
from calibrant.own_code import load, own_code_at_work
from calibrant.predictions import Npz

if TYPE_CHECKING:
    from torch import Tensor, nn

Arrays = dict[str, NDArray[Any]]
Score = Callable[[Arrays], NDArray[Any]]
IMAGES, INPUTS = "images", "inputs"
# Rounding in a resized image may leave the scale from 0 to 1 by this much.
IMAGE_SLACK = 1e-3
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TYPES = ("float32", "float64", "int64", "int32")


# -- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: its name, type, shape without the axis of cases, and the range it was exported for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse another type and an empty range."""
        if self.dtype not in _TYPES:
            raise invalid(f"input {self.name!r}", f"be one of {', '.join(_TYPES)}", self.dtype)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise invalid(f"range of input {self.name!r}", "be two finite numbers that rise", (self.low, self.high))

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole, as token ids are."""
        return self.dtype.startswith("int")

    def arrange(self, values: Any) -> NDArray[Any]:
        """Cases of this input as an array (n, ...) of the right type; another shape or kind of numbers is refused."""
        if not isinstance(values, np.ndarray) and not is_tensor(values):
            self._check_rows(values)
        array = as_array(f"input {self.name!r}", values)
        if array.dtype.kind not in "iuf" or (self.whole and array.dtype.kind == "f"):
            raise self._refuse(f"dtype {array.dtype}")
        if array.ndim == 0 or array.shape[1:] != self.shape:
            raise self._refuse(array.shape)
        if self.whole and array.size:
            limits = np.iinfo(self.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise invalid(f"input {self.name!r}", f"hold numbers of {self.dtype}", "larger ones")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=self.dtype)

    def _check_rows(self, values: Any) -> None:
        """Refuse lists with anything but numbers in the shape of the input, before they become an array.

        NumPy stores every text with the length of the longest: a megabyte of text among a thousand cases takes
        gigabytes.
        """
        level = [values]
        for size in (None, *self.shape):
            for row in level:
                if not isinstance(row, list | tuple):
                    raise self._refuse(type(row).__name__)
                if size is not None and len(row) != size:
                    raise self._refuse(f"a row of {len(row)}")
            level = list(chain.from_iterable(level))
        for kind in set(map(type, level)):
            if kind is bool or not issubclass(kind, int | float | np.number):
                raise self._refuse(kind.__name__)

    def _refuse(self, found: object) -> InvalidInput:
        numbers = "whole numbers" if self.whole else "numbers"
        return invalid(f"input {self.name!r}", f"be {numbers} in rows of the shape {self.shape_in_words}", found)

    def inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Which cases lie in the range; one with NaN does not."""
        flat = array.reshape(len(array), -1)
        return np.asarray(((flat >= self.low) & (flat <= self.high)).all(axis=1))

    @property
    def range_in_words(self) -> str:
        """The range for a person."""
        return f"{self.low:.6g} to {self.high:.6g}"

    @property
    def shape_in_words(self) -> str:
        """The shape of a batch for a person, such as (n, 3, 32, 32)."""
        return f"({', '.join(('n', *map(str, self.shape)))})"


def arrange(specs: Sequence[InputSpec], given: Any) -> Arrays:
    """Cases for a model as arrays by name, given by name or, for a model with one input, alone; others are refused."""
    names = [spec.name for spec in specs]
    if len(names) == 1 and not isinstance(given, Mapping):
        given = {names[0]: given}
    if not isinstance(given, Mapping):
        raise invalid("inputs", f"be given by name ({', '.join(names)})", type(given).__name__)
    if set(given) != set(names):
        raise invalid("inputs", f"be given by name ({', '.join(names)})", ", ".join(map(str, given)) or "none")
    arrays = {spec.name: spec.arrange(given[spec.name]) for spec in specs}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise invalid("inputs", "have as many cases each", lengths)
    if not next(iter(lengths.values())):
        raise invalid("inputs", "hold at least one case", "none")
    return arrays


def read_specs(example: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]] | None) -> tuple[InputSpec, ...]:
    """Describe the inputs of a model from an example, cases of shape (n, ...) by input.

    Without a known range, images between 0 and 1 get that range and whole numbers get the smallest to the largest of
    the example. Other numbers get the same, widened by half at each end: a few rows seldom hold the extremes.
    """
    known = dict(ranges or {})
    for name in known:
        if name not in example:
            raise invalid("ranges", "name inputs of the model", repr(name), did_you_mean(name, example))
    specs = []
    for name, given in example.items():
        values = as_array(name, given)
        dtype = str(given.dtype).removeprefix("torch.")
        if values.size == 0 or not np.isfinite(values).all():
            raise invalid(f"example of {name!r}", "hold finite numbers", "none or others")
        low, high = known.get(name, _range_of(values))
        specs.append(InputSpec(name, dtype, tuple(values.shape[1:]), float(low), float(high)))
    return tuple(specs)


def _range_of(values: NDArray[Any]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind != "f":
        return low, high
    if values.ndim == 4 and low >= -IMAGE_SLACK and high <= 1.0 + IMAGE_SLACK:
        return -IMAGE_SLACK, 1.0 + IMAGE_SLACK
    spare = 0.5 * (high - low) or 0.5
    return low - spare, high + spare


def read_example(path: str | Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Read cases from an `.npz` with one array per input, by name.

    A single array called `images` or `inputs` is returned alone, for a model that is not called by name.
    """
    with Npz(path) as opened:
        arrays = {name: opened.read(name) for name in opened.names}
    if not arrays:
        raise invalid(str(path), "hold an array for each input", "none")
    if list(arrays) in ([IMAGES], [INPUTS]):
        return next(iter(arrays.values()))
    return arrays


def parse_ranges(texts: Sequence[str] | None) -> dict[str, tuple[float, float]] | None:
    """Read ranges of inputs from texts such as `input_ids=0:999`.

    >>> parse_ranges(["input_ids=0:999", "mask=0:1"])
    {'input_ids': (0.0, 999.0), 'mask': (0.0, 1.0)}
    """
    if not texts:
        return None
    ranges = {}
    for text in texts:
        name, _, limits = text.partition("=")
        low, _, high = limits.partition(":")
        # Python would take 1_000 and digits of other scripts for numbers, too.
        if not _NUMBER.fullmatch(low) or not _NUMBER.fullmatch(high):
            raise invalid("range", "be written as name=low:high", repr(text))
        ranges[name] = (float(low), float(high))
    return ranges


# -- torch modules ----------------------------------------------------------------------------------------------------


def is_module(model: object) -> bool:
    """Whether a model is a `torch.nn.Module`; asked without importing torch."""
    torch = sys.modules.get("torch")  # without it nobody can have made a module
    return torch is not None and isinstance(model, torch.nn.Module)


def normalised(model: "nn.Module", *, mean: Sequence[float], std: Sequence[float]) -> "nn.Module":
    """Put the normalisation per channel into a network, which then takes images (n, C, H, W) from 0 to 1.

    Use it to export a network whose images are normalised when they are read.
    """
    import torch

    if len(mean) != len(std) or min(std) <= 0:
        raise invalid("mean and std", "give a value per channel, std above 0", f"{mean} and {std}")

    class Normalised(torch.nn.Module):
        mean: "Tensor"
        std: "Tensor"

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

        def forward(self, images: "Tensor") -> Any:
            return self.model((images - self.mean) / self.std)

    return Normalised()


def with_one_signature(model: "nn.Module", names: Sequence[str], *, by_name: bool) -> "nn.Module":
    """A module that takes tensors in the order of the names and returns logits in float32 or float64.

    The model may return an object with `logits`, as Hugging Face's models do.
    """
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: "Tensor") -> "Tensor":
            if by_name:
                logits = self.model(**dict(zip(names, inputs, strict=True)))
            else:
                logits = self.model(*inputs)
            if not isinstance(logits, torch.Tensor):
                logits = logits.logits
            if logits.dtype != torch.float64:
                logits = logits.float()
            result: Tensor = logits
            return result

    return Network().eval()


def input_names(example: Any) -> dict[str, "Tensor"]:
    """An example as tensors by name. One without names holds images or the only input."""
    import torch

    if isinstance(example, Mapping):
        return {name: torch.as_tensor(values) for name, values in example.items()}
    values = torch.as_tensor(example)
    if values.ndim == 4 and values.is_floating_point():
        return {IMAGES: values}
    return {INPUTS: values}


def weights_digest(model: "nn.Module") -> str:
    """SHA-256 of a network's weights and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)};".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


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
    if weights is None:
        return model
    if not is_module(model):
        raise invalid("weights", "be left out for what is no torch.nn.Module", type(model).__name__)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with reading(f"weights {weights}"):
            tensors = load_file(weights)
        model.load_state_dict(tensors)
    except SafetensorError as error:
        raise invalid(f"weights {weights}", "be a .safetensors file", one_line(error, most=150)) from error
    except RuntimeError as error:
        raise InvalidInput(f"weights {weights} do not fit the model: {one_line(error, most=250)}") from error
    return model
