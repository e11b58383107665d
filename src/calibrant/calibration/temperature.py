"""Temperature scaling: one number that softens or sharpens every prediction alike."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._arrays import Floats, Integers, Matrix, log_softmax
from calibrant.calibration.base import Calibrator, FitSummary, Progress
from calibrant.calibration.module import AffineModule, CalibrationModule
from calibrant.checks import positive, whole
from calibrant.errors import invalid
from calibrant.predictions import stands_for_zero

# Rows per pass: 512 x 100 doubles stay in the second-level cache, which makes a pass twice as fast.
_ROWS = 512
PILOT = 4096
# results/benchmarks/calibration-share.txt: 100 cases are enough for a temperature, 25 do harm.
_ENOUGH_CASES = 100
FEWEST_CASES = 50


def temperature_share(cases: int, least: float = 0.1) -> float:
    """Which share of labelled cases a temperature should have where a threshold is chosen on the rest.

    One number needs few cases, and the more are left, the more can be promised: `least`, or 100 cases where that is
    more, but no more than half for that.

    >>> [temperature_share(cases) for cases in (5000, 500, 120)]
    [0.1, 0.2, 0.5]
    """
    return max(least, min(_ENOUGH_CASES / max(cases, 1), 0.5))


class TemperatureScaling(Calibrator):
    r"""softmax(logits / T) with the T that minimises the negative log-likelihood (Guo et al. 2017).

    The problem is convex in the inverse temperature b = 1/T. It is solved by Newton's method with exact derivatives,

        g(b) = mean(E_p[z] - z_y),   h(b) = mean(Var_p[z]),   p = softmax(b z),

    inside a bracket, started on a small part of the cases, so that about three passes over all of them remain. The
    predicted class never changes.

    Cases whose true class has a probability of exactly 0 are left out, with a warning: no temperature changes it.
    Where every case is classified correctly the likelihood grows for ever as T goes to 0 (the data are separable). No
    temperature is then justified: T stays 1 and a warning says so.

    Args:
        bounds: Smallest and largest T that may be chosen. An optimum outside is set to the nearer one, with a warning.

    Attributes:
        temperature_: The T found.

    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(5000, 3))
    >>> gumbel = rng.gumbel(size=logits.shape)
    >>> targets = (logits + gumbel).argmax(axis=1)          # drawn from softmax(logits)
    >>> scaling = TemperatureScaling().fit(3 * logits, targets)
    >>> round(scaling.temperature_, 1)
    3.0
    """

    method: ClassVar[str] = "temperature"

    def __init__(self, *, bounds: tuple[float, float] = (1e-4, 1e4)) -> None:
        self.bounds = bounds
        self._check_parameters()

    @classmethod
    def known(cls, temperature: float, n_classes: int) -> Self:
        """A calibrator with a temperature that is known from elsewhere.

        >>> TemperatureScaling.known(2.0, n_classes=2).transform([[2.0, 0.0]]).round(3).tolist()
        [[0.731, 0.269]]
        """
        scaling = cls()
        scaling.n_classes_ = whole("n_classes", n_classes, 2)
        scaling.temperature_ = positive("temperature", temperature)
        scaling.identity_ = False
        scaling.summary_ = FitSummary(0, 0.0, 0.0)
        return scaling

    def _check_parameters(self) -> None:
        try:
            low, high = self.bounds
            fine = 0 < low <= 1 <= high < math.inf
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise invalid("bounds", "be (low, high) with 0 < low <= 1 <= high", repr(self.bounds))

    def _telling(self, logits: Matrix, targets: Integers) -> tuple[Matrix, Integers, tuple[str, ...]]:
        possible = possible_rows(logits, targets)
        left_out = impossible_note(len(targets) - int(possible.sum()), len(targets))
        return (logits[possible], targets[possible], left_out) if left_out else (logits, targets, ())

    def _fit(self, logits: Matrix, targets: Integers) -> Progress:
        return self._solve(ScalingProblem.build(logits, targets))

    def _solve(self, problem: "TemperatureProblem") -> Progress:
        self.temperature_ = 1.0
        if problem.is_separable():
            # Every target has its row's largest logit: ties aside, more sharpness always helps.
            self.identity_ = True
            note = (
                "every case is classified correctly, so the likelihood has no optimum (T would go to 0): T = 1 is kept"
            )
            return Progress(at_bound=True, notes=(f"{note}. Fit on more cases",))
        low, high = 1.0 / self.bounds[1], 1.0 / self.bounds[0]
        start, _, _ = _minimise(problem.pilot(), 1.0, low, high)
        inverse, converged, passes = _minimise(problem, start, low, high)
        self.temperature_ = 1.0 / inverse
        notes: list[str] = []
        at_bound = inverse in (low, high)
        if at_bound:
            notes.append(f"the best temperature lies outside bounds; the nearer one, {self.temperature_:g}, is used")
        if not converged:
            notes.append(f"the optimum was not reached in {passes} passes")
        return Progress(converged=converged, at_bound=at_bound, iterations=passes, notes=tuple(notes))

    def _log_probabilities(self, logits: Matrix) -> Floats:
        return log_softmax(logits.astype(np.float64) / self.temperature_)

    def _described(self) -> str:
        return f"the temperature {self.temperature_:.4f}"

    def _module(self) -> CalibrationModule:
        return AffineModule(1.0 / self.temperature_, 0.0)

    def _state(self) -> dict[str, Any]:
        return {"temperature": self.temperature_}

    def _set_state(self, state: dict[str, Any]) -> None:
        temperature = float(state["temperature"])
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature {temperature}")
        self.temperature_ = temperature


def possible_rows(logits: Matrix, targets: Integers) -> NDArray[np.bool_]:
    """Rows whose true class has a probability above 0.

    A probability of 0 (a forest in which no tree votes for the class) stays 0 at every temperature, so such a case
    tells nothing about it. Its stand-in logit, about -744, would rule the fit: 19 of 3,600 cases of a random forest
    made a temperature of 142, and an ECE of 67 %, where the others make 0.66 and 1.3 %.
    """
    return ~stands_for_zero(logits[np.arange(len(targets)), targets])


def impossible_note(left_out: int, cases: int) -> tuple[str, ...]:
    """What is said of cases whose true class has a probability of 0; nothing where there are none."""
    if left_out == cases:
        rule = "give the true class of at least one case a probability above 0"
        raise invalid("predictions", rule, f"0 in all {cases:,} cases", "Check that the classes are in order.")
    if left_out == 0:
        return ()
    note = f"the true class has a probability of 0 in {left_out:,} of {cases:,} cases, which no temperature changes"
    return (f"{note}: they are left out of the fit. The method isotonic can repair such cases",)


class TemperatureProblem(Protocol):
    """The mean NLL of cases as a function of the inverse temperature."""

    def is_separable(self) -> bool:
        """Whether every target has the largest logit of its row."""

    def pilot(self) -> "TemperatureProblem":
        """The same for a few of the cases."""

    def derivatives(self, inverse: float) -> tuple[float, float]:
        """First and second derivative."""


@dataclass
class ScalingProblem:
    """Logits relative to their row's largest: `target` is z_y - max z, at most 0."""

    logits: Matrix
    largest: Matrix
    target: Floats

    @classmethod
    def build(cls, logits: Matrix, targets: Integers) -> "ScalingProblem":
        """Refer each row to its largest logit."""
        largest = logits.max(axis=1, keepdims=True)
        target = np.take_along_axis(logits, targets[:, None], axis=1).astype(np.float64) - largest
        return cls(logits, largest, target[:, 0])

    def is_separable(self) -> bool:
        """Whether every target has the largest logit of its row."""
        return bool(self.target.min() >= 0.0)

    def pilot(self) -> "ScalingProblem":
        """Every n-th case: a start for Newton's method that costs next to nothing."""
        step = max(1, len(self.target) // PILOT)
        pilot = ScalingProblem(self.logits[::step], self.largest[::step], self.target[::step])
        return self if pilot.is_separable() else pilot

    def derivatives(self, inverse: float) -> tuple[float, float]:
        """First and second derivative of the mean NLL in the inverse temperature, in blocks that stay in the cache."""
        slope = curvature = 0.0
        classes = self.logits.shape[1]
        shifted, weights = np.empty((_ROWS, classes)), np.empty((_ROWS, classes))
        for start in range(0, len(self.logits), _ROWS):
            rows = slice(start, start + _ROWS)
            block = self.logits[rows]
            z, e = shifted[: len(block)], weights[: len(block)]
            np.subtract(block, self.largest[rows], out=z, dtype=np.float64)
            np.multiply(z, inverse, out=e)
            np.exp(e, out=e)
            total = e.sum(axis=1)
            e *= z
            mean = e.sum(axis=1) / total
            square = np.einsum("ij,ij->i", e, z) / total
            slope += float((mean - self.target[rows]).sum())
            curvature += float((square - mean * mean).sum())
        return slope / len(self.target), curvature / len(self.target)


def softening(logits: Matrix, targets: Integers) -> float:
    """1 / T for the T of the smallest NLL, where that is above 1, else 1: separable cases would want T = 0."""
    return _minimise(ScalingProblem.build(logits, targets), 1.0, 1e-12, 1.0)[0]


def _minimise(problem: TemperatureProblem, start: float, low: float, high: float) -> tuple[float, bool, int]:
    """Newton's method inside a shrinking bracket: the inverse temperature, whether it converged, the passes made."""
    inverse, bottom, top = min(max(start, low), high), low, high
    untried = {low, high}
    for passes in range(1, 101):
        slope, curvature = problem.derivatives(inverse)
        untried.discard(inverse)
        if (inverse == low and slope >= 0) or (inverse == high and slope <= 0):
            return inverse, True, passes
        bottom, top = (bottom, inverse) if slope > 0 else (inverse, top)
        step = -slope / curvature if curvature > 0 else math.copysign(math.inf, -slope)
        following = inverse + step
        if not bottom <= following <= top:
            # Too bold. Look at the bound once, then halve the bracket on the logarithmic scale.
            end = top if step > 0 else bottom
            following = end if end in untried else math.sqrt(bottom * top)
        elif abs(step) <= 1e-7 * inverse:
            # The error squares with each step: after one this small another pass could only confirm it.
            return following, True, passes
        inverse = following
    return inverse, False, passes
