"""Checks of the numbers, labels and arrays that a user passes. Each rule has one message.

Nothing here imports torch. Tensors are recognised if torch was imported by the caller, and handled by their methods.
"""

import math
import sys
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import invalid

if TYPE_CHECKING:
    from torch import Tensor


def number(argument: str, value: object) -> float:
    """Check a real number, also NumPy's. A tensor is refused, because its gradient would be lost."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(argument, "be a number", repr(value))
    try:
        return float(value)
    except OverflowError as error:
        raise invalid(argument, "be a number that floating point can hold", "a larger one") from error


def not_negative(argument: str, value: object, hint: str = "") -> float:
    """Check a finite number of at least 0."""
    if not 0 <= number(argument, value) < math.inf:
        raise invalid(argument, "be finite and not negative", value, hint)
    return number(argument, value)


def positive(argument: str, value: object) -> float:
    """Check a finite number above 0."""
    if not 0 < number(argument, value) < math.inf:
        raise invalid(argument, "be finite and positive", value)
    return number(argument, value)


def fraction(argument: str, value: object, *, ends: bool = False) -> float:
    """Check a number strictly between 0 and 1. With `ends`, 0 and 1 are allowed too."""
    share = number(argument, value)
    hint = "It is a fraction: 0.95, not 95."
    if ends and not 0 <= share <= 1:
        raise invalid(argument, "lie in 0..1", value, hint)
    if not ends and not 0 < share < 1:
        raise invalid(argument, "lie strictly between 0 and 1", value, hint)
    return share


def whole(argument: str, value: object, least: int, hint: str = "") -> int:
    """Check a whole number of at least `least`, also NumPy's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise invalid(argument, f"be a whole number of at least {least}", repr(value), hint)
    return int(value)


@overload
def labels(argument: str, values: "Tensor", *, rows: int | None = None, n_classes: int | None = None) -> "Tensor": ...
@overload
def labels(argument: str, values: Any, *, rows: int | None = None, n_classes: int | None = None) -> NDArray[Any]: ...
def labels(
    argument: str, values: Any, *, rows: int | None = None, n_classes: int | None = None
) -> "NDArray[Any] | Tensor":
    """Check class indices of shape (n,), n > 0, of any integer type. A tensor stays on its device.

    Without `n_classes` values are not read, so no device has to finish first.
    """
    found: Any = values
    if not is_tensor(values):
        found = as_array(argument, values)
    _check_label_shape(argument, tuple(found.shape), rows)
    if not _is_integer(found):
        hint = "Pass class indices, which are counted from 0."
        if not is_tensor(found) and found.dtype.kind in "USTO":  # text, also that of pandas
            # Not np.unique: if a class has no row, it numbers the others wrongly.
            hint = "Number names by their place among the classes: [class_names.index(name) for name in names]."
        raise invalid(argument, "be integers", f"dtype {found.dtype}", hint)
    if n_classes is not None:
        outside = (found < 0) | (found >= n_classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0][0])
            hint = ""
            if found[row] < 0:
                hint = "Leave rows without a label out."
            rule = f"lie in 0..{n_classes - 1} for {n_classes} classes"
            raise invalid(argument, rule, f"{found[row].item()} in row {row}", hint)
    checked: NDArray[Any] | Tensor = found
    return checked


def _check_label_shape(argument: str, shape: tuple[int, ...], rows: int | None) -> None:
    if len(shape) == 1 and shape[0] > 0 and rows in (None, 0, shape[0]):
        return
    rule = "hold one label per row, at least one"
    if rows:
        rule = f"hold one label per row, {rows} in all"
    hint = ""
    if shape == (rows, 1):
        hint = "Flatten them."
    elif len(shape) == 2:
        hint = "Of one-hot rows take the argmax."
    raise invalid(argument, rule, f"shape {shape}", hint)


def _is_integer(values: Any) -> bool:
    if is_tensor(values):
        # Not str(dtype): torch.compile has to follow this inside the losses.
        return not (values.is_floating_point() or values.is_complex() or values.dtype == sys.modules["torch"].bool)
    return bool(values.dtype.kind in "iu")


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor. Without torch in this process nothing is one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_bfloat16(value: object) -> bool:
    """Whether `value` is a tensor of bfloat16, a type that NumPy lacks."""
    return is_tensor(value) and value.dtype == sys.modules["torch"].bfloat16  # type: ignore[attr-defined]  # a tensor


def as_array(argument: str, values: Any) -> NDArray[Any]:
    """Return a NumPy array, without a copy if possible. bfloat16 becomes float32, which holds each of its values."""
    if is_tensor(values):
        values = values.detach().cpu()
        if is_bfloat16(values):
            values = values.float()
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths, a dataset
        hint = "Give numbers alone, in rows of equal length."
        raise invalid(argument, "be a rectangular array", type(values).__name__, hint) from error


def require_tensor(argument: str, value: object) -> None:
    """Refuse lists, arrays and None, which would cost a copy to the device at every step, and sparse tensors."""
    if not is_tensor(value):
        raise invalid(
            argument, "be a torch tensor", type(value).__name__, f"Make one with torch.as_tensor({argument})."
        )
    layout = value.layout  # type: ignore[attr-defined]  # a tensor
    if layout != sys.modules["torch"].strided:
        raise invalid(argument, "be a dense tensor", layout, f"Call {argument}.to_dense().")
