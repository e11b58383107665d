"""Name, type, shape and range of each input of a model, and the checks of cases against them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions import Npz

Arrays = dict[str, NDArray[Any]]
IMAGES, INPUTS = "images", "inputs"
# Rounding in a resized image may leave the scale from 0 to 1 by this much.
IMAGE_SLACK = 1e-3
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TYPES = ("float32", "float64", "int64", "int32")


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
        if hasattr(values, "detach"):  # a torch tensor, perhaps on another device
            values = values.detach().cpu()
        _check_rows(self, values)
        try:
            array = np.asarray(values)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.refuse(type(values).__name__) from error
        if array.dtype.kind not in "iuf" or (self.whole and array.dtype.kind == "f"):
            raise self.refuse(f"dtype {array.dtype}")
        if array.ndim == 0 or array.shape[1:] != self.shape:
            raise self.refuse(array.shape)
        if self.whole and array.size:
            limits = np.iinfo(self.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise invalid(f"input {self.name!r}", f"hold numbers of {self.dtype}", "larger ones")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=self.dtype)

    def refuse(self, found: object) -> InvalidInput:
        """The error for what has another type or shape."""
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
    named = _named(specs, given)
    arrays = {spec.name: spec.arrange(named[spec.name]) for spec in specs}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise invalid("inputs", "have as many cases each", lengths)
    if not next(iter(lengths.values())):
        raise invalid("inputs", "hold at least one case", "none")
    return arrays


def _named(specs: Sequence[InputSpec], given: Any) -> Mapping[str, Any]:
    names = [spec.name for spec in specs]
    if not isinstance(given, Mapping) and len(names) == 1:
        return {names[0]: given}
    known = []
    if isinstance(given, Mapping):
        known = list(map(str, given))
    if set(known) != set(names):
        raise invalid("inputs", f"be given by name ({', '.join(names)})", ", ".join(known) or type(given).__name__)
    return given


def _check_rows(spec: InputSpec, values: Any) -> None:
    """Refuse lists with anything but numbers in the shape of the input, before they become an array.

    NumPy stores every text with the length of the longest: a megabyte of text among a thousand cases takes gigabytes.
    """
    level = [values]
    for size in (None, *spec.shape):
        if all(isinstance(row, np.ndarray) or hasattr(row, "detach") for row in level):
            return  # their types and shapes are checked later
        for row in level:
            if not isinstance(row, list | tuple):
                raise spec.refuse(type(row).__name__)
            if size is not None and len(row) != size:
                raise spec.refuse(f"a row of {len(row)}")
        level = list(chain.from_iterable(level))
    for kind in set(map(type, level)):
        numeric = issubclass(kind, int | float | np.number | np.ndarray) or hasattr(kind, "detach")
        if kind is bool or not numeric:
            raise spec.refuse(kind.__name__)


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
        limits = known.get(name, _range_of(values))
        try:
            low, high = map(float, limits)
        except (TypeError, ValueError) as error:
            raise invalid(f"range of input {name!r}", "be two numbers", limits) from error
        specs.append(InputSpec(name, dtype, tuple(values.shape[1:]), low, high))
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
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or array.ndim == 0:
            raise invalid(f"{path}: {name[:40]}", "hold numbers, one row for each case", f"{array.dtype} {array.shape}")
    if not arrays:
        raise invalid(str(path), "hold an array for each input", "none")
    for name in (IMAGES, INPUTS):
        if list(arrays) == [name]:
            return arrays[name]
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
