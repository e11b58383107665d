"""Newton's method for a convex function of a few hundred numbers."""

from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from calibrant.calibration._arrays import Floats

_MAX_ITERATIONS = 100
_GRADIENT = 1e-9


class Convex(Protocol):
    """A function with its first and second derivatives."""

    def __call__(self, parameters: Floats) -> tuple[float, Floats]:
        """Value and gradient."""

    def hessian(self, parameters: Floats) -> Floats:
        """Second derivatives."""


def newton(function: Convex, start: Floats, *, tolerance: float) -> tuple[Floats, Floats, int]:
    """Minimise by damped Newton steps.

    Args:
        function: What is minimised.
        start: Where to begin.
        tolerance: Ends where a step lowers the value by less than this share of it.

    Returns:
        The minimum, the gradient there, and the number of steps.
    """
    found = start.copy()
    value, gradient = function(found)
    for steps in range(_MAX_ITERATIONS):
        if np.abs(gradient).max() <= _GRADIENT:
            return found, gradient, steps
        direction = _direction(function.hessian(found), gradient)
        slope, length = float(gradient @ direction), 1.0
        while True:
            candidate = found + length * direction
            new_value, new_gradient = function(candidate)
            if new_value <= value + 1e-4 * length * slope:
                break
            length /= 2.0
            if length < 1e-8:  # rounding decides from here on
                return found, gradient, steps
        gain, found, value, gradient = value - new_value, candidate, new_value, new_gradient
        if gain <= tolerance * max(abs(value), 1.0):
            return found, gradient, steps + 1
    return found, gradient, _MAX_ITERATIONS


def _direction(hessian: Floats, gradient: Floats) -> Floats:
    """The Newton step; a little is added to the diagonal until the matrix can be factored.

    Adding the same numbers to the scores of all classes changes no probability, so the matrix may be singular.
    """
    scale = float(np.trace(hessian)) / len(hessian)
    ridge = 1e-12 * scale
    while True:
        try:
            factor = cho_factor(hessian + ridge * np.eye(len(hessian)))
            return -np.asarray(cho_solve(factor, gradient))
        except LinAlgError:
            ridge = max(ridge * 100.0, 1e-300)
