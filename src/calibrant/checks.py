"""The one place where numbers, labels and tensors that a user passes are checked, each with one message."""

import math
from numbers import Integral, Real
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import invalid


def number(argument: str, value: object) -> float:
    """Any real number; NumPy's too, but no tensor, whose gradient would be lost."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(argument, "be a number", repr(value))
    try:
        return float(value)
    except OverflowError as error:
        raise invalid(argument, "be a number that floating point can hold", "a larger one") from error


def not_negative(argument: str, value: object, way_out: str = "") -> float:
    """A finite number of at least 0."""
    if not 0 <= number(argument, value) < math.inf:
        raise invalid(argument, "be finite and not negative", value, way_out)
    return number(argument, value)


def positive(argument: str, value: object) -> float:
    """A finite number above 0."""
    if not 0 < number(argument, value) < math.inf:
        raise invalid(argument, "be finite and positive", value)
    return number(argument, value)


def fraction(argument: str, value: object, *, ends: bool = False) -> float:
    """A number strictly between 0 and 1, or, with `ends`, from 0 to 1."""
    share = number(argument, value)
    if not (0 <= share <= 1 if ends else 0 < share < 1):
        rule = "lie in 0..1" if ends else "lie strictly between 0 and 1"
        raise invalid(argument, rule, value, "It is a fraction: 0.95, not 95.")
    return share


def whole(argument: str, value: object, least: int, way_out: str = "") -> int:
    """A whole number of at least `least`; NumPy's too."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise invalid(argument, f"be a whole number of at least {least}", repr(value), way_out)
    return int(value)


@overload
def labels(argument: str, values: Tensor, *, rows: int | None = None, n_classes: int | None = None) -> Tensor: ...
@overload
def labels(argument: str, values: Any, *, rows: int | None = None, n_classes: int | None = None) -> NDArray[Any]: ...
def labels(
    argument: str, values: Any, *, rows: int | None = None, n_classes: int | None = None
) -> NDArray[Any] | Tensor:
    """Class indices of shape (n,), n > 0, of any integer type; a tensor stays where it is.

    Args:
        argument: What the user passed them as.
        values: A tensor, an array or a list.
        rows: How many there must be; any number where None.
        n_classes: They must lie in 0..n_classes-1. None leaves values unread, so that no device is waited for.
    """
    found = values if isinstance(values, Tensor) else as_array(argument, values)
    if found.ndim != 1 or len(found) == 0 or len(found) != (rows or len(found)):
        rule = f"hold one label per row, {rows} in all" if rows else "hold one label per row, at least one"
        way_out = "Of one-hot rows take the argmax." if found.ndim == 2 else ""
        way_out = "Flatten them." if tuple(found.shape) == (rows, 1) else way_out
        raise invalid(argument, rule, f"shape {tuple(found.shape)}", way_out)
    if not _is_integer(found):
        way_out = "Pass class indices, which are counted from 0."
        if not isinstance(found, Tensor) and found.dtype.kind in "USTO":  # texts, pandas' among them
            # Not np.unique: where a class has no row, it numbers the others wrongly.
            way_out = "Number names by their place among the classes: [class_names.index(name) for name in names]."
        raise invalid(argument, "be integers", f"dtype {found.dtype}", way_out)
    if n_classes is not None:
        outside = (found < 0) | (found >= n_classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0][0])
            way_out = "Leave rows without a label out." if found[row] < 0 else ""
            rule = f"lie in 0..{n_classes - 1} for {n_classes} classes"
            raise invalid(argument, rule, f"{found[row].item()} in row {row}", way_out)
    return found


def _is_integer(values: NDArray[Any] | Tensor) -> bool:
    if isinstance(values, Tensor):
        return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return values.dtype.kind in "iu"


def as_array(argument: str, values: Any) -> NDArray[Any]:
    """A NumPy view where possible; bfloat16, which NumPy lacks, becomes float32, which holds each of its values."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths, a dataset
        way_out = "Give numbers alone, in rows of equal length."
        raise invalid(argument, "be a rectangular array", type(values).__name__, way_out) from error


def require_tensor(argument: str, value: object) -> None:
    """Refuse lists, NumPy arrays and None, which would cost a copy to the device at every step, and sparse tensors."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise invalid(argument, "be a dense tensor", value.layout, f"Call {argument}.to_dense().")
    else:
        found = "None" if value is None else type(value).__name__
        raise invalid(argument, "be a torch tensor", found, f"Make one with torch.as_tensor({argument}).")
