"""Numbers that losses are made with: what is no number, or out of range, is refused in one line."""

import math
from numbers import Integral, Real

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


def at_least_one(argument: str, value: object) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid(argument, "be a whole number", repr(value))
    if value < 1:
        raise invalid(argument, "be at least 1", value)
    return int(value)
