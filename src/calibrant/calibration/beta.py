"""Beta calibration: the logistic map of log p and log(1 - p), with two slopes."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from calibrant.calibration._arrays import Floats, Integers, Matrix, log_one_minus, log_softmax
from calibrant.calibration.base import Calibrator, Progress, finite_array
from calibrant.calibration.module import BetaModule, CalibrationModule
from calibrant.errors import invalid

_LARGEST_SLOPE = 1e3


class BetaCalibration(Calibrator):
    """logit q = a log(p) - b log(1 - p) + c,  a, b >= 0  (Kull, Silva Filho and Flach 2017).

    The identity is a = b = 1, c = 0. For more than two classes each class gets its own map against the rest, and rows
    are renormalised. log(1 - p) comes from the logits of the other classes, so nothing is clipped. A class whose cases
    are perfectly separated from the rest has no finite optimum and keeps its probabilities; a warning says so.

    Args:
        parameters: "abm" all three, "am" one slope (a = b), "ab" no shift (1/2 stays 1/2).

    Attributes:
        maps_: Shape (K, 3), the a, b, c of each class; for two classes one row, that of class 1.
    """

    method: ClassVar[str] = "beta"

    def __init__(self, *, parameters: Literal["abm", "am", "ab"] = "abm") -> None:
        self.parameters = parameters
        self._check_parameters()

    def _check_parameters(self) -> None:
        if self.parameters not in ("abm", "am", "ab"):
            raise invalid("parameters", "be 'abm', 'am' or 'ab'", repr(self.parameters))

    def _fit(self, logits: Matrix, targets: Integers) -> Progress:
        logs = log_softmax(logits)
        rest = log_one_minus(logs)
        classes = [1] if self.n_classes_ == 2 else list(range(self.n_classes_))
        self.maps_ = np.tile([1.0, 1.0, 0.0], (len(classes), 1))
        separated, stuck, iterations, at_bound = [], [], 0, False
        for row, k in enumerate(classes):
            hit = targets == k
            if not hit.any() or _separated(logs[:, k], hit):
                separated.append(k)
                continue
            found = _fit_one(logs[:, k], -rest[:, k], hit.astype(np.float64), self.parameters)
            self.maps_[row] = found.x
            iterations = max(iterations, int(found.nit))
            at_bound |= bool((found.x[:2] >= _LARGEST_SLOPE).any())
            if not (found.success or np.abs(found.jac).max() <= 1e-4):
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

    def _log_probabilities(self, logits: Matrix) -> Floats:
        logs = log_softmax(logits)
        rest = log_one_minus(logs)
        if self.n_classes_ == 2:
            a, b, c = self.maps_[0]
            score = a * logs[:, 1] - b * rest[:, 1] + c
            return np.stack([-np.logaddexp(0.0, score), -np.logaddexp(0.0, -score)], axis=1)
        score = self.maps_[:, 0] * logs - self.maps_[:, 1] * rest + self.maps_[:, 2]
        return log_softmax(-np.logaddexp(0.0, -score))

    def _module(self) -> CalibrationModule:
        return BetaModule(self.maps_)

    def _state(self) -> dict[str, Any]:
        return {"maps": self.maps_.tolist()}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.maps_ = finite_array(state["maps"], (1 if self.n_classes_ == 2 else self.n_classes_, 3))
        if (self.maps_[:, :2] < 0).any():
            raise ValueError("slopes of at least 0 are needed")


def _separated(scores: Floats, hit: Any) -> bool:
    return bool(scores[hit].min() > scores[~hit].max())


def _fit_one(log_p: Floats, minus_log_rest: Floats, hit: Floats, parameters: str) -> Any:
    """Minimise the log-loss of one map under its constraints; returns SciPy's result with x = (a, b, c)."""
    # Each column says how one free number enters (a, b, c).
    half = math.log(2.0)
    basis = {
        "abm": np.eye(3),
        "am": np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        "ab": np.array([[1.0, 0.0], [0.0, 1.0], [half, -half]]),
    }[parameters]
    features = np.stack([log_p, minus_log_rest, np.ones_like(log_p)], axis=1) @ basis
    scale = np.maximum(np.abs(features).mean(axis=0), 1e-12)
    scaled = features / scale

    def loss(free: Floats) -> tuple[float, Floats]:
        score = scaled @ free
        value = float(np.logaddexp(0.0, score).mean() - (score * hit).mean())
        return value, scaled.T @ (expit(score) - hit) / len(hit)

    slopes = {"abm": 2, "am": 1, "ab": 2}[parameters]
    bounds = [(0.0, _LARGEST_SLOPE * s) if i < slopes else (None, None) for i, s in enumerate(scale)]
    start = (
        np.array([1.0, 1.0, 0.0] if parameters == "abm" else [1.0, 0.0] if parameters == "am" else [1.0, 1.0]) * scale
    )
    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    found.x = basis @ (found.x / scale)
    return found
