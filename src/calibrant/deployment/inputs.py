"""What a model was exported for: name, type, shape and range of each input, and the checks that follow from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import did_you_mean, invalid

Arrays = dict[str, NDArray[Any]]
IMAGES, INPUTS = "images", "inputs"
# Rounding in a resized image may leave the scale from 0 to 1 by this much.
IMAGE_SLACK = 1e-3
_TYPES = ("float32", "float64", "int64", "int32")
_JSON_KINDS = {str: "text", bool: "true or false", type(None): "null", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: Its name.
        dtype: Type of its numbers: float32, float64, int64 or int32.
        shape: Shape of one case, without the axis of cases.
        low: The smallest number that the model was exported for.
        high: The largest.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what is no input."""
        if self.dtype not in _TYPES:
            raise invalid(f"input {self.name!r}", f"be one of {', '.join(_TYPES)}", self.dtype)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise invalid(f"range of input {self.name!r}", "be two finite numbers that rise", (self.low, self.high))

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole, as token ids are."""
        return self.dtype.startswith("int")

    def arrange(self, values: Any) -> NDArray[Any]:
        """Cases of this input as an array (n, ...) of the right type; refuses another shape or kind of numbers."""
        array = _array(self, values)
        kinds = "iu" if self.whole else "iuf"
        if array.dtype.kind not in kinds or array.dtype == np.bool_:
            wanted = "whole numbers" if self.whole else "numbers"
            raise invalid(f"input {self.name!r}", f"hold {wanted}", f"dtype {array.dtype}")
        if array.ndim == 0 or array.shape[1:] != self.shape:
            shape = ", ".join(("n", *map(str, self.shape)))
            raise invalid(f"input {self.name!r}", f"have the shape ({shape})", array.shape)
        limits = np.iinfo(self.dtype) if self.whole else np.finfo(self.dtype)
        if self.whole and array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise invalid(f"input {self.name!r}", f"hold numbers of {self.dtype}", "larger ones")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=self.dtype)

    def inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Which cases lie in the range; one with NaN does not."""
        flat = array.reshape(len(array), -1)
        return np.asarray(((flat >= self.low) & (flat <= self.high)).all(axis=1))

    @property
    def range_in_words(self) -> str:
        """The range for a person."""
        return f"{self.low:.6g} to {self.high:.6g}"


def arrange(specs: Sequence[InputSpec], given: Any) -> Arrays:
    """Cases for a model as arrays by name; whatever does not fit is refused in one line.

    Args:
        specs: What the model was exported for.
        given: Arrays by name; or, for a model with one input, its array alone.
    """
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
    if not isinstance(given, Mapping):
        if len(names) > 1:
            raise invalid("inputs", f"be given by name ({', '.join(names)})", type(given).__name__)
        return {names[0]: given}
    for name in given:
        if name not in names:
            raise invalid("inputs", "be those of the model", repr(name), did_you_mean(name, names))
    for name in names:
        if name not in given:
            raise invalid("inputs", f"hold {name!r}", f"{', '.join(map(str, given)) or 'nothing'}")
    return given


def _array(spec: InputSpec, values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a torch tensor, perhaps on another device
        values = values.detach().cpu()
    _check_rows(spec, values)
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        rule = "be numbers in rows of equal length"
        raise invalid(f"input {spec.name!r}", rule, type(values).__name__) from error


def _check_rows(spec: InputSpec, values: Any) -> None:
    """Refuse lists that hold anything but numbers in the shape of the input, before they become an array.

    NumPy gives every text the room of the longest: a megabyte of text among a thousand cases takes gigabytes.
    """
    argument, shape = f"input {spec.name!r}", ", ".join(("n", *map(str, spec.shape)))
    rows = [values]
    sizes: list[int] = []
    for depth in range(len(spec.shape) + 1):
        lengths: set[int] = set()
        below: list[Any] = []
        for row in rows:
            if isinstance(row, np.ndarray) or hasattr(row, "detach"):
                continue  # it has a type and a shape of its own, which are checked later
            if isinstance(row, int | float) and not isinstance(row, bool):
                raise invalid(argument, f"have the shape ({shape})", tuple(sizes))
            if not isinstance(row, list | tuple):
                raise invalid(argument, "hold numbers in rows", _in_words(type(row)))
            lengths.add(len(row))
            below.extend(row)
        if len(lengths) > 1:
            raise invalid(argument, "be numbers in rows of equal length", f"{min(lengths)} and {max(lengths)}")
        sizes += lengths
        if depth and lengths and lengths != {spec.shape[depth - 1]}:
            raise invalid(argument, f"have the shape ({shape})", tuple(sizes))
        rows = below
    for kind in set(map(type, rows)):
        numeric = issubclass(kind, int | float | np.number | np.ndarray) or hasattr(kind, "detach")
        if kind is bool or not numeric:
            raise invalid(argument, "hold numbers", _in_words(kind))


def _in_words(kind: type) -> str:
    return _JSON_KINDS.get(kind, kind.__name__)


def read_specs(example: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]] | None) -> tuple[InputSpec, ...]:
    """What the inputs are, as found in an example.

    The range of an input is, unless it is given: from 0 to 1 for images on that scale; for whole numbers from the
    smallest to the largest that was found; for others the same, widened by half at each end, since a few rows seldom
    hold the extremes.

    Args:
        example: Cases by input, shape (n, ...).
        ranges: Ranges that are known, by input.
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
        low, high = _given(name, known[name]) if name in known else _found(values)
        specs.append(InputSpec(name, dtype, tuple(values.shape[1:]), low, high))
    return tuple(specs)


def _found(values: NDArray[Any]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind != "f":
        return low, high
    if values.ndim == 4 and low >= -IMAGE_SLACK and high <= 1.0 + IMAGE_SLACK:
        return -IMAGE_SLACK, 1.0 + IMAGE_SLACK
    spare = 0.5 * (high - low) or 0.5
    return low - spare, high + spare


def _given(name: str, limits: Any) -> tuple[float, float]:
    try:
        low, high = (float(each) for each in limits)
    except (TypeError, ValueError) as error:
        raise invalid(f"range of input {name!r}", "be two numbers", limits) from error
    return low, high
