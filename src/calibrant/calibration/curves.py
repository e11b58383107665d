"""Maps of one probability at a time: isotonic regression, histogram binning and beta calibration."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import Bounds, isotonic_regression, minimize
from scipy.special import expit

from calibrant.calibration.base import Calibrator, Progress, finite_array
from calibrant.calibration.operations import (
    NUMPY,
    Curves,
    Floats,
    Integers,
    Matrix,
    Operations,
    log_of_rest,
    log_softmax,
)
from calibrant.checks import whole
from calibrant.errors import invalid

Mode = Literal["one-vs-rest", "top-label"]
_LARGEST_SLOPE = 1e3


@dataclass(kw_only=True, eq=False, repr=False)
class _CurveCalibration(Calibrator):
    """Bends each class's probability by its own curve, or the top probability by a common one."""

    mode: Mode = "one-vs-rest"

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        if self.mode not in ("one-vs-rest", "top-label"):
            raise invalid("mode", "be 'one-vs-rest' or 'top-label'", repr(self.mode))

    @abstractmethod
    def _curve(self, probability: Floats, hit: Floats, weights: Floats) -> Floats:
        """Learn a curve: row 0 its knots, row 1 its values."""

    @staticmethod
    @abstractmethod
    def _bend(operations: Operations, probabilities: Any, curves: Curves) -> Any:
        """Apply curve k to column k."""

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        p = np.exp(log_softmax(logits))
        # One imagined case, spread evenly over the classes, keeps every probability above 0 and below 1.
        self.prior_weight_ = 1.0 / (len(targets) + 1.0)
        self.curves_: list[Floats | None]
        right = p.argmax(axis=1) == targets
        notes = []
        if right.all():
            note = "every case is classified correctly, which cannot tell over- from underconfidence"
            notes.append(f"{note}. Fit on more cases")
        if self.mode == "top-label":
            self.curves_ = [self._curve(p.max(axis=1), right.astype(np.float64), weights)]
            return Progress(notes=tuple(notes))
        self.curves_, missing = [], []
        for k in _mapped_classes(self.n_classes_):
            hit = (targets == k).astype(np.float64)
            if hit.any():
                self.curves_.append(self._curve(p[:, k], hit, weights))
            else:
                self.curves_.append(None)
                missing.append(k)
        if missing:
            count = f"{len(missing)} of {self.n_classes_} classes (first: {missing[0]})"
            notes.append(f"{count} without a case in the fit set: their probabilities are kept")
        return Progress(notes=tuple(notes))

    def _formula(self, operations: Operations, logits: Any) -> Any:
        p = operations.exp(operations.log_softmax(logits))
        if self.mode == "top-label":
            q = self._top_label(operations, p)
        elif self.n_classes_ == 2:
            one = self._bend(operations, operations.columns(p, [1]), self.curves_)
            q = operations.join(1.0 - one, one)
        else:
            bent = self._bend(operations, p, self.curves_)
            # If every curve says 0, there is nothing to share out, and the row stays as it is.
            bent = operations.where(operations.row_sum(bent) > 0.0, bent, p)
            q = bent / operations.row_sum(bent)
        return operations.log((1.0 - self.prior_weight_) * q + self.prior_weight_ / self.n_classes_)

    def _top_label(self, operations: Operations, p: Any) -> Any:
        """Bend the top probability and share the rest out in the old proportions."""
        where = operations.where
        is_top = operations.is_top(p, self.n_classes_)
        rest = where(is_top, 0.0, p)
        mass = operations.row_sum(rest)
        share = where(mass > 0.0, rest / where(mass > 0.0, mass, 1.0), 1.0 / (self.n_classes_ - 1))
        share = where(is_top, 0.0, share)
        # No lower than what keeps the predicted class on top, by a margin that float32 shows: about 1/2 at most.
        runner_up = operations.row_max(share)
        bent = self._bend(operations, operations.row_max(p), self.curves_)
        bent = operations.maximum(bent, runner_up / (1.0 + runner_up) + 1e-6)
        return where(is_top, bent, share * (1.0 - bent))

    def _state(self) -> dict[str, Any]:
        curves = [curve if curve is None else curve.tolist() for curve in self.curves_]
        return {"curves": curves, "prior_weight": self.prior_weight_}

    def _set_state(self, state: dict[str, Any]) -> None:
        wanted = len(_mapped_classes(self.n_classes_))
        if self.mode == "top-label":
            wanted = 1
        curves: list[Floats | None] = []
        for values in state["curves"]:
            curves.append(None)
            if values is not None:
                knots, heights = curves[-1] = finite_array(values, (2, -1))
                if not len(knots) or (np.diff(knots) < 0).any() or heights.min() < 0 or heights.max() > 1:
                    raise ValueError("a curve with rising knots and values in 0..1 is needed")
        if len(curves) != wanted or (self.mode == "top-label" and curves[0] is None):
            raise ValueError(f"{wanted} curves are needed")
        self.curves_ = curves
        self.prior_weight_ = float(state["prior_weight"])
        if not 0 < self.prior_weight_ < 1:
            raise ValueError(f"prior_weight {self.prior_weight_}")


def _mapped_classes(n_classes: int) -> list[int]:
    """The classes that have a map. Two classes need one: that of class 1 settles both."""
    if n_classes == 2:
        return [1]
    return list(range(n_classes))


class IsotonicCalibration(_CurveCalibration):
    """The best non-decreasing curve from predicted to true frequency (Zadrozny and Elkan 2002).

    Pool-adjacent-violators on the fit set; between its points the curve is interpolated, beyond them it is flat.

    Args:
        mode: "one-vs-rest" bends each class's probability by its own curve and renormalises the row (two classes: one
            curve). "top-label" bends the top probability by one common curve and shares the rest out in the old
            proportions; it never changes the predicted class and wants far fewer cases.

    Attributes:
        curves_: One array (2, knots) for each curve: knots, values. None for a class without a case.
        prior_weight_: 1 / (n + 1): share of the uniform distribution that is mixed in, so that no probability is 0.
    """

    method: ClassVar[str] = "isotonic"

    def _curve(self, probability: Floats, hit: Floats, weights: Floats) -> Floats:
        knots, inverse = np.unique(probability, return_inverse=True)
        # Equal probabilities must get equal values, so they enter as one point with their mean and weight.
        total = np.bincount(inverse, weights=weights)
        means = np.bincount(inverse, weights=weights * hit) / total
        values = np.clip(isotonic_regression(means, weights=total).x, 0.0, 1.0)
        # A level stretch needs only its two ends.
        keep = np.ones(len(knots), dtype=bool)
        keep[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
        return np.stack([knots[keep], values[keep]])

    @staticmethod
    def _bend(operations: Operations, probabilities: Any, curves: Curves) -> Any:
        return operations.interpolate(probabilities, curves)


@dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(_CurveCalibration):
    """The observed frequency of each bin (Zadrozny and Elkan 2001). A bin is (lo, hi]; 0 falls into the first.

    Args:
        n_bins: Number of bins, fewer if probabilities tie. Each holds as many cases, which bounds the error of each
            (Gupta and Ramdas 2021).
        mode: "one-vs-rest" or "top-label", as in `IsotonicCalibration`.

    Attributes:
        curves_, prior_weight_: As in `IsotonicCalibration`; a curve has the upper edges of bins instead of knots.
    """

    method: ClassVar[str] = "histogram"

    n_bins: int = 15

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        super().__post_init__()
        whole("n_bins", self.n_bins, 1)

    def _curve(self, probability: Floats, hit: Floats, weights: Floats) -> Floats:
        # Inner edges are observed probabilities: with (lo, hi] every bin then holds at least one case.
        order = np.argsort(probability, kind="stable")
        up_to = np.cumsum(weights[order])
        shares = np.arange(1, self.n_bins) / self.n_bins
        # A sum of weights that is rounded must still reach the share that it stands for.
        inner = probability[order][np.searchsorted(up_to, shares * up_to[-1] * (1.0 - 1e-12))]
        edges = np.append(np.unique(inner[inner < probability.max()]), 1.0)
        which = np.searchsorted(edges, np.minimum(probability, 1.0), side="left")
        total = np.bincount(which, weights=weights, minlength=len(edges))
        hits = np.bincount(which, weights=weights * hit, minlength=len(edges))
        return np.stack([edges, np.minimum(hits / total, 1.0)])

    @staticmethod
    def _bend(operations: Operations, probabilities: Any, curves: Curves) -> Any:
        return operations.steps(probabilities, curves)


class BetaCalibration(Calibrator):
    """logit q = a log(p) - b log(1 - p) + c,  a, b >= 0  (Kull, Silva Filho and Flach 2017).

    The identity is a = b = 1, c = 0. For more than two classes each class gets its own map against the rest, and rows
    are renormalised. log(1 - p) comes from the logits of the other classes, so nothing is clipped. A class whose cases
    are perfectly separated from the rest has no finite optimum and keeps its probabilities; a warning says so.

    Attributes:
        maps_: Shape (K, 3), the a, b, c of each class; for two classes one row, that of class 1.
    """

    method: ClassVar[str] = "beta"

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        logs = log_softmax(logits)
        rest = log_of_rest(NUMPY, logs)
        classes = _mapped_classes(self.n_classes_)
        self.maps_ = np.tile([1.0, 1.0, 0.0], (len(classes), 1))
        separated, stuck, iterations, at_bound = [], [], 0, False
        for row, k in enumerate(classes):
            hit = targets == k
            if not hit.any() or logs[hit, k].min() > logs[~hit, k].max():
                separated.append(k)
                continue
            result = _fit_one(logs[:, k], -rest[:, k], hit.astype(np.float64), weights)
            self.maps_[row] = result.x
            iterations = max(iterations, int(result.nit))
            at_bound |= bool((result.x[:2] >= _LARGEST_SLOPE).any())
            if not result.success:
                stuck.append(k)
        notes = []
        if separated:
            notes.append(
                f"{len(separated)} of {len(classes)} maps (first: class {separated[0]}) have no case or no overlap "
                "with the rest in the fit set, so no optimum; they stay the identity"
            )
        if stuck:
            notes.append(f"the optimum was not reached for {len(stuck)} classes (first: {stuck[0]})")
        if at_bound:
            notes.append(f"a slope reached its bound of {_LARGEST_SLOPE:g}")
        return Progress(not stuck, at_bound or bool(separated), iterations, tuple(notes))

    def _formula(self, operations: Operations, logits: Any) -> Any:
        logs = operations.log_softmax(logits)
        rest = log_of_rest(operations, logs)
        if self.n_classes_ == 2:
            logs, rest = operations.columns(logs, [1]), operations.columns(rest, [1])
        score = self.maps_[:, 0] * logs - self.maps_[:, 1] * rest + self.maps_[:, 2]
        log_hit = -operations.softplus(-score)
        if self.n_classes_ == 2:
            return operations.join(-operations.softplus(score), log_hit)
        return operations.log_softmax(log_hit)

    def _state(self) -> dict[str, Any]:
        return {"maps": self.maps_.tolist()}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.maps_ = finite_array(state["maps"], (len(_mapped_classes(self.n_classes_)), 3))
        if (self.maps_[:, :2] < 0).any():
            raise ValueError("slopes of at least 0 are needed")


class PlattScaling(Calibrator):
    """A logistic curve of the difference of two logits (Platt 1999): a * z + b with a of at least 0.

    For two classes, and for a class and its score: then z is the score, on any scale.

    Attributes:
        slope_: a.
        shift_: b.
    """

    method: ClassVar[str] = "platt"

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        if self.n_classes_ != 2:
            raise invalid("logits", "have two classes for Platt scaling", self.n_classes_, "Use vector scaling.")
        difference = np.asarray(logits[:, 1], dtype=np.float64) - logits[:, 0]
        hit = (targets == 1).astype(np.float64)
        centre, spread = difference.mean(), max(float(difference.std()), 1e-12)
        scaled = np.stack([(difference - centre) / spread, np.ones_like(difference)], axis=1)
        loss = partial(_log_loss, scaled, hit, weights)
        # No steeper than what two neighbouring cases can tell: separable cases have no optimum.
        bounds = [(0.0, _LARGEST_SLOPE), (-_LARGEST_SLOPE, _LARGEST_SLOPE)]
        result = minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15})
        self.slope_ = float(result.x[0]) / spread
        self.shift_ = float(result.x[1]) - self.slope_ * float(centre)
        at_bound = bool(np.abs(result.x).max() >= _LARGEST_SLOPE)
        return Progress(bool(result.success), at_bound, int(result.nit))

    def _formula(self, operations: Operations, logits: Any) -> Any:
        difference = operations.columns(logits, [1]) - operations.columns(logits, [0])
        score = self.slope_ * difference + self.shift_
        return operations.join(-operations.softplus(score), -operations.softplus(-score))

    def fitted_numbers(self) -> dict[str, float]:
        """Slope and shift."""
        return {"slope": self.slope_, "shift": self.shift_}

    _state = fitted_numbers

    def _set_state(self, state: dict[str, Any]) -> None:
        self.slope_, self.shift_ = finite_array([state["slope"], state["shift"]], (2,)).tolist()
        if self.slope_ < 0 or self.n_classes_ != 2:
            raise ValueError("a slope of at least 0 and two classes are needed")


def _log_loss(features: Floats, hit: Floats, weights: Floats, free: Floats) -> tuple[float, Floats]:
    """Mean log-loss of a logistic curve and its gradient."""
    score = features @ free
    value = float((weights * np.logaddexp(0.0, score)).mean() - (weights * score * hit).mean())
    return value, features.T @ (weights * (expit(score) - hit)) / len(hit)


def _fit_one(log_p: Floats, minus_log_rest: Floats, hit: Floats, weights: Floats) -> Any:
    """Minimise the log-loss of one map under its constraints; returns SciPy's result with x = (a, b, c)."""
    features = np.stack([log_p, minus_log_rest, np.ones_like(log_p)], axis=1)
    scale = np.maximum(np.abs(features).mean(axis=0), 1e-12)
    loss = partial(_log_loss, features / scale, hit, weights)
    low = np.array([0.0, 0.0, -np.inf])
    high = np.array([_LARGEST_SLOPE * scale[0], _LARGEST_SLOPE * scale[1], np.inf])
    start = scale * [1.0, 1.0, 0.0]  # the identity: slopes of 1, no shift
    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9}
    result = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=Bounds(low, high), options=options)
    # Rounding can end the search at the optimum. At a bound only a gradient that points inside counts.
    step = np.clip(result.x - result.jac, low, high) - result.x
    result.success = result.success or np.abs(step).max() <= 1e-4
    result.x = result.x / scale
    return result
