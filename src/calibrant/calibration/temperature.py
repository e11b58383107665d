"""Temperature scaling: one number that softens or sharpens every prediction."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.calibration.base import Calibrator, FitSummary, Progress
from calibrant.calibration.operations import Floats, Integers, Matrix, Operations
from calibrant.checks import positive, whole
from calibrant.errors import invalid
from calibrant.predictions.rows import stands_for_zero

# Smallest and largest 1 / T. A decision function has any unit: T of a perceptron on raw columns is 200,000.
_INVERSES = (1e-9, 1e9)
# Rows per pass: 512 x 100 doubles stay in the second-level cache, which makes a pass twice as fast.
_ROWS = 512
PILOT = 4096
# More than 100 cases go to the threshold instead: 300 would lower the NLL by about 0.004 (docs/posthoc.md).
_ENOUGH_CASES = 100
CAUTIOUS_CASES = 100
"""With fewer cases the prior, not the data, says most about the temperature."""


def temperature_share(cases: int, least: float = 0.1) -> float:
    """Share of labelled cases to fit a temperature on if a threshold is chosen on the others.

    One number needs few cases, and the more are left, the more can be promised: `least`, or 100 cases if that is more,
    but then at most half.

    >>> [temperature_share(cases) for cases in (5000, 500, 120)]
    [0.1, 0.2, 0.5]
    """
    return max(least, min(_ENOUGH_CASES / max(cases, 1), 0.5))


@dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(Calibrator):
    r"""softmax(logits / T) with the T that minimises the negative log-likelihood (Guo et al. 2017).

    The problem is convex in the inverse temperature b = 1/T. It is solved by Newton's method with exact derivatives,

        g(b) = mean(E_p[z] - z_y),   h(b) = mean(Var_p[z]),   p = softmax(b z),

    inside a bracket, started on a small part of the cases. The predicted class never changes.

    A few cases say little about T, so log T has a weak prior, a Cauchy distribution around 0 whose width is
    `prior_scale`. Its tails are heavy: scores on quite another scale keep their temperature. Its weight falls as 1 / n.
    It is meant for logits and softmax probabilities of networks; None is maximum likelihood.

    Cases whose true class has a probability of exactly 0 are left out, with a warning. If every case is classified
    correctly, no temperature is justified: T stays 1 and a warning says so.

    Args:
        prior_scale: Width of the prior on log T; None for maximum likelihood.

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

    prior_scale: float | None = 0.25

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        if self.prior_scale is not None:
            positive("prior_scale", self.prior_scale)

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
        scaling.summary_ = FitSummary(cases=0, nll_before=0.0, nll_after=0.0)
        return scaling

    def _useful(self, logits: Matrix, targets: Integers) -> tuple[Any, tuple[str, ...]]:
        # A probability of 0 (a forest in which no tree votes for the class) stays 0 at every temperature, so such a
        # case says nothing about it. Its stand-in logit, about -744, would dominate the fit: 19 of 3,600 cases of a
        # random forest led to a temperature of 142 and an ECE of 67 %, the others to 0.66 and 1.3 %.
        possible = ~stands_for_zero(logits[np.arange(len(targets)), targets])
        left_out, cases = int((~possible).sum()), len(targets)
        if left_out == 0:
            return slice(None), ()  # no copy of all cases
        if left_out == cases:
            rule = "give the true class of at least one case a probability above 0"
            raise invalid("predictions", rule, f"0 in all {cases:,} cases", "Check that the classes are in order.")
        note = f"the true class has a probability of 0 in {left_out:,} of {cases:,} cases, which no temperature changes"
        return possible, (f"{note}: they are left out of the fit. The method isotonic can repair such cases",)

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        problem, cases = ScalingProblem.build(logits, targets, weights), len(targets)
        self.temperature_ = 1.0
        if problem.is_separable():
            # Every target has its row's largest logit: ties aside, more sharpness always helps.
            self.identity_ = True
            note = "every case is classified correctly, so the likelihood has no optimum (T would go to 0)"
            return Progress(at_bound=True, notes=(f"{note}: T = 1 is kept. Fit on more cases",))
        start, _, _ = _minimise(problem.pilot().derivatives, 1.0, *_INVERSES)
        inverse, converged, passes = _minimise(problem.derivatives, start, *_INVERSES)
        at_bound = inverse in _INVERSES
        scale = self.prior_scale
        if scale is not None and inverse != 1.0 and not at_bound:

            def with_prior(inverse: float) -> tuple[float, float]:
                """The mean NLL plus log(1 + (u / scale)^2) / cases, minus the log density of a Cauchy prior on u."""
                slope, curvature = problem.derivatives(inverse)
                u, square = -math.log(inverse), scale**2
                first = 2.0 * u / (square + u * u)
                second = 2.0 * (square - u * u) / (square + u * u) ** 2
                return slope - first / inverse / cases, curvature + (first + second) / inverse**2 / cases

            # The optimum with a prior lies between that of the likelihood and 1, the most likely T of the prior. If
            # there are two, this finds the one that is nearer to the data.
            inverse, converged, more = _minimise(with_prior, inverse, min(inverse, 1.0), max(inverse, 1.0))
            passes += more
        self.temperature_ = 1.0 / inverse
        notes: list[str] = []
        if at_bound:
            notes.append(f"no temperature is best: the limit {self.temperature_:g} is used")
        if not converged:
            notes.append(f"the optimum was not reached in {passes} passes")
        return Progress(converged=converged, at_bound=at_bound, iterations=passes, notes=tuple(notes))

    def _formula(self, operations: Operations, logits: Any) -> Any:
        return operations.log_softmax(logits / self.temperature_)

    def fitted_numbers(self) -> dict[str, float]:
        """The temperature."""
        return {"temperature": self.temperature_}

    _state = fitted_numbers

    def _set_state(self, state: dict[str, Any]) -> None:
        temperature = float(state["temperature"])
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature {temperature}")
        self.temperature_ = temperature


@dataclass
class ScalingProblem:
    """Logits relative to their row's largest: `target` is z_y - max z, at most 0. Weights have a mean of 1."""

    logits: Matrix
    largest: Matrix
    target: Floats
    weights: Floats

    @classmethod
    def build(cls, logits: Matrix, targets: Integers, weights: Floats) -> "ScalingProblem":
        """Refer each row to its largest logit."""
        largest = logits.max(axis=1, keepdims=True)
        target = np.take_along_axis(logits, targets[:, None], axis=1).astype(np.float64) - largest
        return cls(logits, largest, target[:, 0], weights)

    def is_separable(self) -> bool:
        """Whether every target has the largest logit of its row."""
        return bool(self.target.min() >= 0.0)

    def pilot(self) -> "ScalingProblem":
        """Every n-th case: a start for Newton's method that costs next to nothing."""
        step = max(1, len(self.target) // PILOT)
        pilot = ScalingProblem(self.logits[::step], self.largest[::step], self.target[::step], self.weights[::step])
        if pilot.is_separable():
            return self
        return pilot

    def derivatives(self, inverse: float) -> tuple[float, float]:
        """First and second derivative of the mean NLL in the inverse temperature, in blocks that stay in the cache."""
        slope = curvature = 0.0
        classes = self.logits.shape[1]
        shifted, powers = np.empty((_ROWS, classes)), np.empty((_ROWS, classes))
        for start in range(0, len(self.logits), _ROWS):
            rows = slice(start, start + _ROWS)
            block = self.logits[rows]
            z, e = shifted[: len(block)], powers[: len(block)]
            np.subtract(block, self.largest[rows], out=z, dtype=np.float64)
            np.multiply(z, inverse, out=e)
            np.exp(e, out=e)
            total = e.sum(axis=1)
            e *= z
            mean = e.sum(axis=1) / total
            square = np.einsum("ij,ij->i", e, z) / total
            slope += float((self.weights[rows] * (mean - self.target[rows])).sum())
            curvature += float((self.weights[rows] * (square - mean * mean)).sum())
        return slope / len(self.target), curvature / len(self.target)


def softening(logits: Matrix, targets: Integers) -> float:
    """1 / T for the T of at least 1 with the smallest NLL; separable cases would want T = 0."""
    problem = ScalingProblem.build(logits, targets, np.ones(len(targets)))
    return _minimise(problem.derivatives, 1.0, 1e-12, 1.0)[0]


def _minimise(
    derivatives: Callable[[float], tuple[float, float]], start: float, low: float, high: float
) -> tuple[float, bool, int]:
    """Newton's method inside a shrinking bracket: the inverse temperature, whether it converged, the passes made."""
    inverse = min(max(start, low), high)
    bottom, top = low, high
    untried = {low, high}
    for passes in range(1, 101):
        slope, curvature = derivatives(inverse)
        untried.discard(inverse)
        if (inverse == low and slope >= 0) or (inverse == high and slope <= 0):
            return inverse, True, passes
        if slope > 0:
            top = inverse
        else:
            bottom = inverse
        step = math.copysign(math.inf, -slope)
        if curvature > 0:
            step = -slope / curvature
        following = inverse + step
        if not bottom <= following <= top:
            # Too far. Look at the bound once, then halve the bracket on the logarithmic scale.
            following = math.sqrt(bottom * top)
            if step > 0 and top in untried:
                following = top
            elif step <= 0 and bottom in untried:
                following = bottom
        elif abs(step) <= 1e-7 * inverse:
            # The error squares with each step: after one this small another pass could only confirm it.
            return following, True, passes
        inverse = following
    return inverse, False, passes
