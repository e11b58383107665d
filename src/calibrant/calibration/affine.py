"""Affine maps before the softmax: vector, matrix and Dirichlet scaling, with ODIR regularisation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import minimize

from calibrant.calibration._arrays import Floats, Integers, Matrix, log_softmax, mean_nll
from calibrant.calibration._folds import check_folds, stratified_folds
from calibrant.calibration._hessian import of_all_features, of_own_features
from calibrant.calibration._newton import newton
from calibrant.calibration.base import BLOCK, Calibrator, Progress, finite_array
from calibrant.calibration.module import AffineModule, CalibrationModule, PartialModule
from calibrant.calibration.temperature import softening
from calibrant.errors import InvalidInput, invalid

# Strongest first: each fit starts where its stricter neighbour ended. The terms are means over K^2 or K numbers, so
# many classes want large values: 50 classes and 3,000 cases are best near 100,000.
REGULARISATION_GRID = (1e5, 1e4, 1e3, 1e2, 10.0, 1.0, 0.1, 0.01, 0.001)
_MAX_ITERATIONS = 2000
# Up to so many numbers to learn (38 classes) Newton's method is some 20 times as fast as L-BFGS, whose steps are cheap
# but many: features of a trained network are strongly correlated. Beyond it the Hessian costs too much.
_NEWTON = 1500
# A gradient whose largest entry is at most this large belongs to an optimum.
_FLAT = 1e-4


class _AffineScaling(Calibrator):
    """softmax(W x + b); what x is and how free W is, the subclasses say.

    Nothing in the authors' objective bounds the diagonal: on separable cases it grows for ever. So doing nothing always
    competes in the cross-validation, and a map that separates the fit set comes with a warning.

    A class without a case would be driven to probability 0, since every other answer costs likelihood. It keeps its
    probability instead, and the map shares out the rest among the classes that the fit set has.
    """

    reg_lambda: float | Literal["cv"]
    reg_mu: float | None
    folds: int
    seed: int
    _diagonal: ClassVar[bool] = False

    def __init__(
        self,
        *,
        reg_lambda: float | Literal["cv"] = "cv",
        reg_mu: float | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.reg_lambda = reg_lambda
        self.reg_mu = reg_mu
        self.folds = folds
        self.seed = seed
        self._check_parameters()

    def _check_parameters(self) -> None:
        for name, value, word in (("reg_lambda", self.reg_lambda, "cv"), ("reg_mu", self.reg_mu, None)):
            if value != word and not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise invalid(name, f"be {word!r} or a finite number of at least 0", repr(value))
        check_folds(self.folds, self.seed)

    @staticmethod
    def _features(logits: Matrix) -> Floats:
        """What the map is applied to."""
        return logits.astype(np.float64)

    def _objective(self, features: Floats, targets: Integers, reg: tuple[float, float]) -> "_Objective":
        return _Objective(features, targets, *reg, diagonal=self._diagonal)

    def _fit(self, logits: Matrix, targets: Integers) -> Progress:
        self.seen_, targets = np.unique(targets, return_inverse=True)
        progress = self._fit_seen(self._features(logits[:, self.seen_]), targets)
        missing = sorted({*range(self.n_classes_)} - {*self.seen_.tolist()})
        if missing:
            count = f"{len(missing)} of {self.n_classes_} classes (first: {missing[0]})"
            note = f"{count} without a case in the fit set: their probabilities are kept, the rest is shared out anew"
            progress.notes = (*progress.notes, note)
        return progress

    def _fit_seen(self, features: Floats, targets: Integers) -> Progress:
        self.cv_nll_: dict[float, float] = {}
        self.reg_lambda_ = REGULARISATION_GRID[0] if self.reg_lambda == "cv" else float(self.reg_lambda)
        if _all_right(features, targets):
            return self._keep_none(
                "every case is classified correctly, so the likelihood has no optimum: none is kept. Fit on more cases"
            )
        if self.reg_lambda == "cv":
            self.cv_nll_ = self._cross_validate(features, targets)
            self.reg_lambda_ = min(self.cv_nll_, key=self.cv_nll_.__getitem__)
            # Doing nothing learns nothing, so its NLL on the fit set is its NLL on held-out cases.
            best, none = self.cv_nll_[self.reg_lambda_], mean_nll(log_softmax(features), targets)
            if not best < none:
                return self._keep_none(
                    f"on held-out folds the best map has an NLL of {best:.4g}, none has {none:.4g}: none is kept. "
                    "Fit on more cases, or use TemperatureScaling"
                )
        self.reg_mu_ = self._mu(self.reg_lambda_)
        solution = _solve(self._objective(features, targets, (self.reg_lambda_, self.reg_mu_)))
        self.weight_, self.bias_ = solution.weight, solution.bias
        separated = _all_right(_affine(features, self.weight_, self.bias_), targets)
        at_end = self.cv_nll_ != {} and self.reg_lambda_ in (REGULARISATION_GRID[0], REGULARISATION_GRID[-1])
        return Progress(
            converged=solution.converged,
            at_bound=separated or at_end,
            iterations=solution.iterations,
            notes=tuple(self._notes(solution, separated=separated)),
        )

    def _keep_none(self, why: str) -> Progress:
        """The identity instead of a map that other cases would pay for."""
        self.identity_ = True
        self.reg_mu_ = self._mu(self.reg_lambda_)
        classes = len(self.seen_)
        self.weight_ = np.ones(classes) if self._diagonal else np.eye(classes)
        self.bias_ = np.zeros(classes)
        return Progress(at_bound=True, notes=(why,))

    @staticmethod
    def _notes(solution: "_Solution", *, separated: bool) -> list[str]:
        notes = []
        if not solution.converged:
            notes.append(f"the optimum was not reached in {solution.iterations} iterations")
        if separated:
            notes.append(
                "the map classifies every case of the fit set correctly (it is separable), so nothing in it bounds "
                "the confidence, and one error elsewhere can cost any NLL. Fit on more cases, or use TemperatureScaling"
            )
        return notes

    def _mu(self, reg_lambda: float) -> float:
        return reg_lambda if self.reg_mu is None else float(self.reg_mu)

    def _cross_validate(self, features: Floats, targets: Integers) -> dict[float, float]:
        """Mean held-out NLL for each strength of the grid."""
        try:
            fold = stratified_folds(targets, self.folds, self.seed)
        except InvalidInput as error:
            raise InvalidInput(f"{error} Or give reg_lambda a number: then nothing is cross-validated.") from error
        parts = [(fold != held_out, fold == held_out) for held_out in range(self.folds)]
        starts: list[Floats | None] = [None] * self.folds
        found: dict[float, float] = {}
        for reg in REGULARISATION_GRID:
            total = 0.0
            for part, (inside, outside) in enumerate(parts):
                objective = self._objective(features[inside], targets[inside], (reg, self._mu(reg)))
                # Held-out NLL to six digits is enough to choose by.
                solution = _solve(objective, starts[part], tolerance=1e-9)
                starts[part] = solution.parameters
                scores = log_softmax(_affine(features[outside], solution.weight, solution.bias))
                total += mean_nll(scores, targets[outside]) * int(outside.sum())
            found[reg] = total / len(targets)
            # The weakest fits overfit most and take longest: two steps uphill end the search.
            if list(found).index(min(found, key=found.__getitem__)) < len(found) - 2:
                break
        return found

    def _log_probabilities(self, logits: Matrix) -> Floats:
        # NumPy lays picked columns out by columns; sums over rows would then depend on how many rows there are.
        seen = np.ascontiguousarray(logits[:, self.seen_])
        mapped = log_softmax(_affine(self._features(seen), self.weight_, self.bias_))
        if len(self.seen_) == self.n_classes_:
            return mapped
        logs = log_softmax(logits)
        logs[:, self.seen_] = mapped + np.logaddexp.reduce(logs[:, self.seen_], axis=1, keepdims=True)
        return logs

    def _module(self) -> CalibrationModule:
        mapped = AffineModule(self.weight_, self.bias_, of_log_probabilities=isinstance(self, DirichletScaling))
        if len(self.seen_) == self.n_classes_:
            return mapped
        return PartialModule(mapped, self.seen_, n_classes=self.n_classes_)

    def _state(self) -> dict[str, Any]:
        return {
            "weight": self.weight_.tolist(),
            "bias": self.bias_.tolist(),
            "seen": self.seen_.tolist(),
            "reg_lambda": self.reg_lambda_,
            "reg_mu": self.reg_mu_,
            "cv_nll": [[reg, value] for reg, value in self.cv_nll_.items()],
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        seen = np.array(state.get("seen", range(self.n_classes_)))
        if seen.dtype != np.int64 or not np.isin(seen, np.arange(self.n_classes_)).all() or (np.diff(seen) < 1).any():
            raise ValueError("seen")
        self.seen_ = seen
        classes = len(seen)
        self.weight_ = finite_array(state["weight"], (classes,) if self._diagonal else (classes, classes))
        self.bias_ = finite_array(state["bias"], (classes,))
        self.reg_lambda_, self.reg_mu_ = float(state["reg_lambda"]), float(state["reg_mu"])
        self.cv_nll_ = {float(reg): float(value) for reg, value in state["cv_nll"]}


class VectorScaling(_AffineScaling):
    """softmax(w * logits + b) with a weight and a bias for each class (Guo et al. 2017).

    Minimises  NLL + lambda * mean((w - mean(w))^2) + mu * mean(b^2):  with strong regularisation it becomes temperature
    scaling. Unlike temperature scaling it can change the predicted class, and it depends on the level of each row.

    Args:
        reg_lambda: Pull of the weights towards each other; "cv" chooses from `REGULARISATION_GRID` by held-out NLL.
        reg_mu: Pull of the biases towards 0; None takes the value of `reg_lambda`.
        folds: Folds of the cross-validation.
        seed: Seed of the folds.

    Attributes:
        seen_: The S classes with a case in the fit set, as a rule all K; the others keep their probabilities.
        weight_: Shape (S,).
        bias_: Shape (S,).
        reg_lambda_: Strength in use.
        reg_mu_: Strength in use.
        cv_nll_: Held-out NLL for each strength tried; empty where none was.
    """

    method: ClassVar[str] = "vector"
    _diagonal = True


class MatrixScaling(_AffineScaling):
    """softmax(W logits + b) with off-diagonal and intercept regularisation, ODIR (Guo et al. 2017, Kull et al. 2019).

    Minimises  NLL + lambda * sum_{i != j} W_ij^2 / (K (K - 1)) + mu * sum_i b_i^2 / K.  The diagonal is free, so the
    identity costs nothing. K^2 numbers want many cases: a few thousand for ten classes.

    Args:
        reg_lambda: Weight of the off-diagonal term; "cv" chooses from `REGULARISATION_GRID` by held-out NLL.
        reg_mu: Weight of the intercept term; None takes the value of `reg_lambda`.
        folds: Folds of the cross-validation.
        seed: Seed of the folds.

    Attributes:
        seen_: The S classes with a case in the fit set, as a rule all K; the others keep their probabilities.
        weight_: Shape (S, S).
        bias_: Shape (S,).
        reg_lambda_: Strength in use.
        reg_mu_: Strength in use.
        cv_nll_: Held-out NLL for each strength tried; empty where none was.
    """

    method: ClassVar[str] = "matrix"


class DirichletScaling(_AffineScaling):
    """softmax(W log(p) + b), p = softmax(logits), with ODIR (Kull et al. 2019, Dirichlet calibration).

    The same objective as `MatrixScaling` on log-probabilities instead of logits: it does not depend on the level of a
    row of logits, and it serves models that only give probabilities.

    Arguments and fitted values are those of `MatrixScaling`.
    """

    method: ClassVar[str] = "dirichlet"

    @staticmethod
    def _features(logits: Matrix) -> Floats:
        return log_softmax(logits)


def _all_right(scores: Floats, targets: Integers) -> bool:
    """Whether every target has its row's largest score: then more sharpness always helps the likelihood."""
    return bool((np.take_along_axis(scores, targets[:, None], axis=1)[:, 0] >= scores.max(axis=1)).all())


def _affine(features: Floats, weight: Floats, bias: Floats) -> Floats:
    return features * weight + bias if weight.ndim == 1 else features @ weight.T + bias


@dataclass
class _Objective:
    """Mean NLL plus penalty, with its gradient, over parameters [W..., b]."""

    features: Floats
    targets: Integers
    reg_lambda: float
    reg_mu: float
    diagonal: bool

    @property
    def n_classes(self) -> int:
        return int(self.features.shape[1])

    def identity(self) -> Floats:
        weight = np.ones(self.n_classes) if self.diagonal else np.eye(self.n_classes)
        return np.concatenate([weight.ravel(), np.zeros(self.n_classes)])

    def split(self, parameters: Floats) -> tuple[Floats, Floats]:
        weight, bias = parameters[: -self.n_classes], parameters[-self.n_classes :]
        return weight if self.diagonal else weight.reshape(self.n_classes, self.n_classes), bias

    def __call__(self, parameters: Floats) -> tuple[float, Floats]:
        weight, bias = self.split(parameters)
        value, weight_gradient, bias_gradient = self._penalty(weight, bias)
        cases, rows = len(self.targets), max(16, BLOCK // self.n_classes)
        for start in range(0, cases, rows):
            features, targets = self.features[start : start + rows], self.targets[start : start + rows]
            scores = log_softmax(_affine(features, weight, bias))
            picked = np.arange(len(targets)), targets
            value -= float(scores[picked].sum()) / cases
            residual = np.exp(scores, out=scores)
            residual[picked] -= 1.0
            residual /= cases
            product = np.einsum("ij,ij->j", residual, features) if self.diagonal else residual.T @ features
            weight_gradient += product
            bias_gradient += residual.sum(axis=0)
        return value, np.concatenate([weight_gradient.ravel(), bias_gradient])

    def hessian(self, parameters: Floats) -> Floats:
        """Second derivatives: of the NLL, sum over cases of (diag(p) - p p') (x) f f' / n, and of the penalty.

        f are the numbers that a class's score is linear in: its own feature, or all features, and 1.
        """
        weight, bias = self.split(parameters)
        count, cases = self.n_classes, len(self.targets)
        rows = max(16, BLOCK // (count if self.diagonal else count**2))
        found = np.zeros((len(parameters), len(parameters)))
        for start in range(0, cases, rows):
            features = self.features[start : start + rows]
            p = np.exp(log_softmax(_affine(features, weight, bias)))
            found += of_own_features(p, features) if self.diagonal else of_all_features(p, features)
        total: Floats = found / cases + self._penalty_hessian()
        return total

    def _penalty_hessian(self) -> Floats:
        """Second derivatives of the penalty, which is quadratic."""
        count = self.n_classes
        if self.diagonal:
            weights = (np.eye(count) - 1.0 / count) * 2.0 * self.reg_lambda / count
        else:
            weights = np.diag((1.0 - np.eye(count)).ravel()) * 2.0 * self.reg_lambda / (count * (count - 1))
        found = np.zeros((len(weights) + count, len(weights) + count))
        found[: len(weights), : len(weights)] = weights
        found[len(weights) :, len(weights) :] = np.eye(count) * 2.0 * self.reg_mu / count
        return found

    def _penalty(self, weight: Floats, bias: Floats) -> tuple[float, Floats, Floats]:
        if self.diagonal:
            pulled, scale = weight - weight.mean(), self.reg_lambda / self.n_classes
        else:
            pulled = weight * (1.0 - np.eye(self.n_classes))
            scale = self.reg_lambda / (self.n_classes * (self.n_classes - 1))
        mu = self.reg_mu / self.n_classes
        value = scale * float((pulled**2).sum()) + mu * float((bias**2).sum())
        return value, 2.0 * scale * pulled, 2.0 * mu * bias


@dataclass
class _Solution:
    parameters: Floats
    weight: Floats
    bias: Floats
    converged: bool
    iterations: int


def _solve(objective: _Objective, start: Floats | None = None, *, tolerance: float = 1e-13) -> _Solution:
    start = objective.identity() if start is None else start
    if len(start) <= _NEWTON:
        found, gradient, iterations = newton(objective, start, tolerance=tolerance)
        if np.abs(gradient).max() > _FLAT:
            # Probabilities of 0 and 1, as naive Bayes gives them, have no curvature, and Newton's method gets stuck.
            softer = objective.identity() * softening(objective.features, objective.targets)
            if objective(softer)[0] < objective(found)[0]:
                found, gradient, iterations = newton(objective, softer, tolerance=tolerance)
    else:
        result = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": _MAX_ITERATIONS,
                "maxfun": 2 * _MAX_ITERATIONS,
                "ftol": tolerance,
                "gtol": 1e-7,
                "maxcor": 20,
            },
        )
        found, gradient, iterations = result.x, result.jac, int(result.nit)
    weight, bias = objective.split(found)
    # A search that stalls at rounding level is an optimum too: the gradient decides.
    return _Solution(found, weight, bias, bool(np.abs(gradient).max() <= _FLAT), iterations)
