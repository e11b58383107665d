"""What settings and arguments are made of, checked at the door of every room: numbers and tensors, in one line."""

import math
from numbers import Integral, Real

from torch import Tensor

from calibrant.errors import invalid


def number(argument: str, value: object) -> float:
    """Any real number; NumPy's too, but no tensor, whose gradient would be lost."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(argument, "be a number", repr(value))
    return float(value)


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


def whole(argument: str, value: object, least: int) -> int:
    """A whole number of at least `least`; NumPy's too."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid(argument, "be a whole number", repr(value))
    if value < least:
        raise invalid(argument, f"be at least {least}", value)
    return int(value)


def require_tensor(argument: str, value: object) -> None:
    """Refuse lists, NumPy arrays and None: they would cost a copy to the device at every step."""
    if not isinstance(value, Tensor):
        found = "None" if value is None else type(value).__name__
        raise invalid(argument, "be a torch tensor", found, f"Make one with torch.as_tensor({argument}).")
