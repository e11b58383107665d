"""Affine maps before the softmax: vector, matrix and Dirichlet scaling, with ODIR regularisation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import minimize

from calibrant.calibration.base import Calibrator, Progress, finite_array
from calibrant.calibration.operations import NUMPY, Floats, Integers, Matrix, Operations, log_softmax, mean_nll
from calibrant.calibration.temperature import softening
from calibrant.checks import whole
from calibrant.errors import invalid

# Strongest first: each fit starts from the result of its stricter neighbour. The terms are means over K^2 or K numbers,
# so many classes need large values: 50 classes and 3,000 cases are best near 100,000.
REGULARISATION_GRID = (1e5, 1e4, 1e3, 1e2, 10.0, 1.0, 0.1, 0.01, 0.001)
_MAX_ITERATIONS = 2000
# Up to so many numbers to learn (38 classes) a trust region with second derivatives is some 20 times as fast as L-BFGS,
# whose steps are cheap but many: features of a trained network are strongly correlated. Beyond it the second
# derivatives cost too much.
_MOST_FOR_NEWTON = 1500
# A gradient whose largest entry is at most this large belongs to an optimum.
_FLAT = 1e-4
# Norms of the gradient at which a search ends: in the cross-validation, where a rougher search would favour the
# strength that it starts with, and in the final fit.
_ROUGH, _EXACT = 1e-6, 1e-9
_NUMBERS_AT_ONCE = 2**20


@dataclass(kw_only=True, eq=False, repr=False)
class _AffineScaling(Calibrator):
    """softmax(W x + b). Subclasses say what x is and whether W is diagonal.

    Nothing in the authors' objective bounds the diagonal: on separable cases it grows without bound. So doing nothing
    always competes in the cross-validation, and a map that separates the fit set comes with a warning.

    The likelihood alone would give a class without a case the probability 0. It keeps its probability instead, and the
    map shares out the rest among the classes that the fit set has.

    Args:
        reg_lambda: Strength of the pull on the weights; "cv" chooses from `REGULARISATION_GRID` by held-out NLL.
        reg_mu: Strength of the pull of the biases towards 0; None takes the value of `reg_lambda`.
        folds: Folds of the cross-validation.
        seed: Seed of the folds.

    Attributes:
        seen_: The S classes with a case in the fit set, as a rule all K; the others keep their probabilities.
        weight_: Shape (S,) if W is diagonal, else (S, S).
        bias_: Shape (S,).
        reg_lambda_: Strength in use, like `reg_mu_`.
        cv_nll_: Held-out NLL for each strength tried; empty with a strength of your own.
    """

    _diagonal: ClassVar[bool] = False

    reg_lambda: float | Literal["cv"] = "cv"
    reg_mu: float | None = None
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        for name, value, word in (("reg_lambda", self.reg_lambda, "cv"), ("reg_mu", self.reg_mu, None)):
            if value != word and not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise invalid(name, f"be {word!r} or a finite number of at least 0", repr(value))
        whole("folds", self.folds, 2)
        whole("seed", self.seed, 0)

    def numbers_to_learn(self, n_classes: int) -> int:
        """K^2 weights and K biases of a full matrix."""
        if self._diagonal:
            return 0
        return n_classes * (n_classes + 1)

    @staticmethod
    def _features(operations: Operations, logits: Any) -> Any:  # noqa: ARG004 (Dirichlet scaling uses them)
        """What the map is applied to."""
        return logits

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        self.seen_, targets = np.unique(targets, return_inverse=True)
        features = self._features(NUMPY, logits[:, self.seen_].astype(np.float64))
        progress = self._fit_seen(features, targets, weights)
        missing = sorted({*range(self.n_classes_)} - {*self.seen_.tolist()})
        if missing:
            count = f"{len(missing)} of {self.n_classes_} classes (first: {missing[0]})"
            note = f"{count} without a case in the fit set: their probabilities are kept, the rest is shared out anew"
            progress.notes = (*progress.notes, note)
        return progress

    def _fit_seen(self, features: Floats, targets: Integers, weights: Floats) -> Progress:
        self.cv_nll_: dict[float, float] = {}
        self.reg_lambda_ = REGULARISATION_GRID[0]
        if self.reg_lambda != "cv":
            self.reg_lambda_ = float(self.reg_lambda)
        if _all_right(features, targets):
            return self._keep_none(
                "every case is classified correctly, so the likelihood has no optimum: none is kept. Fit on more cases"
            )
        if self.reg_lambda == "cv":
            self.cv_nll_ = self._cross_validate(features, targets, weights)
            self.reg_lambda_ = min(self.cv_nll_, key=self.cv_nll_.__getitem__)
            # Doing nothing learns nothing, so its NLL on the fit set is its NLL on held-out cases.
            best, none = self.cv_nll_[self.reg_lambda_], mean_nll(log_softmax(features), targets, weights)
            if not best < none:
                return self._keep_none(
                    f"on held-out folds the best map has an NLL of {best:.4g}, none has {none:.4g}: none is kept. "
                    "Fit on more cases, or use TemperatureScaling"
                )
        self.reg_mu_ = self._mu(self.reg_lambda_)
        objective = _Objective(features, targets, weights, diagonal=self._diagonal)
        solution = objective.minimise(self.reg_lambda_, self.reg_mu_, objective.start(), tolerance=_EXACT)
        self.weight_, self.bias_ = solution.weight, solution.bias
        separated = _all_right(_affine(features, self.weight_, self.bias_), targets)
        at_end = self.cv_nll_ != {} and self.reg_lambda_ in (REGULARISATION_GRID[0], REGULARISATION_GRID[-1])
        notes = []
        if not solution.converged:
            notes.append(f"the optimum was not reached in {solution.iterations} iterations")
        if separated:
            notes.append(
                "the map classifies every case of the fit set correctly (it is separable), so nothing bounds its "
                "confidence, and one error elsewhere can cost any NLL. Fit on more cases, or use TemperatureScaling"
            )
        return Progress(solution.converged, separated or at_end, solution.iterations, tuple(notes))

    def _keep_none(self, why: str) -> Progress:
        """Keep the identity instead of a map that has a larger NLL on held-out cases."""
        self.identity_ = True
        self.reg_mu_ = self._mu(self.reg_lambda_)
        classes = len(self.seen_)
        self.weight_ = np.eye(classes)
        if self._diagonal:
            self.weight_ = np.ones(classes)
        self.bias_ = np.zeros(classes)
        return Progress(at_bound=True, notes=(why,))

    def _mu(self, reg_lambda: float) -> float:
        if self.reg_mu is None:
            return reg_lambda
        return float(self.reg_mu)

    def _cross_validate(self, features: Floats, targets: Integers, weights: Floats) -> dict[float, float]:
        """Mean held-out NLL for each strength of the grid."""
        fold = stratified_folds(targets, self.folds, self.seed)
        folds = []
        for held_out in range(self.folds):
            inside = fold != held_out
            objective = _Objective(features[inside], targets[inside], weights[inside], diagonal=self._diagonal)
            folds.append((objective, features[~inside], targets[~inside], weights[~inside]))
        starts = [objective.start() for objective, *_ in folds]
        cv_nll: dict[float, float] = {}
        for reg in REGULARISATION_GRID:
            total = 0.0
            for number, (objective, held_out_features, *others) in enumerate(folds):
                solution = objective.minimise(reg, self._mu(reg), starts[number], tolerance=_ROUGH)
                starts[number] = solution.x
                scores = log_softmax(_affine(held_out_features, solution.weight, solution.bias))
                total += mean_nll(scores, *others) * len(scores)
            cv_nll[reg] = total / len(targets)
            # The weakest fits overfit most and take longest: two steps uphill end the search.
            best = min(cv_nll, key=cv_nll.__getitem__)
            if list(cv_nll).index(best) < len(cv_nll) - 2:
                break
        return cv_nll

    def _formula(self, operations: Operations, logits: Any) -> Any:
        if len(self.seen_) == self.n_classes_:
            return self._map_seen(operations, logits)
        seen = self.seen_.tolist()
        others = [k for k in range(self.n_classes_) if k not in seen]
        logs = operations.log_softmax(logits)
        logs_of_seen = operations.columns(logs, seen)
        # The logarithm of their common probability, which the map shares out.
        largest = operations.row_max(logs_of_seen)
        mass = largest + operations.log(operations.row_sum(operations.exp(logs_of_seen - largest)))
        mapped = self._map_seen(operations, operations.columns(logits, seen)) + mass
        joined = operations.join(mapped, operations.columns(logs, others))
        return operations.columns(joined, np.argsort([*seen, *others]).tolist())

    def _map_seen(self, operations: Operations, logits: Any) -> Any:
        features = self._features(operations, logits)
        if self._diagonal:
            return operations.log_softmax(features * self.weight_ + self.bias_)
        return operations.log_softmax(operations.product(features, self.weight_.T) + self.bias_)

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
        shape: tuple[int, ...] = (classes, classes)
        if self._diagonal:
            shape = (classes,)
        self.weight_ = finite_array(state["weight"], shape)
        self.bias_ = finite_array(state["bias"], (classes,))
        self.reg_lambda_, self.reg_mu_ = float(state["reg_lambda"]), float(state["reg_mu"])
        self.cv_nll_ = {float(reg): float(value) for reg, value in state["cv_nll"]}


class VectorScaling(_AffineScaling):
    """softmax(w * logits + b) with a weight and a bias for each class (Guo et al. 2017).

    Minimises  NLL + lambda * mean((w - mean(w))^2) + mu * mean(b^2):  with strong regularisation it becomes temperature
    scaling. Unlike temperature scaling it can change the predicted class, and it depends on the level of each row.
    """

    method: ClassVar[str] = "vector"
    depends_on_level: ClassVar[bool] = True
    _diagonal = True


class MatrixScaling(_AffineScaling):
    """softmax(W logits + b) with off-diagonal and intercept regularisation, ODIR (Guo et al. 2017, Kull et al. 2019).

    Minimises  NLL + lambda * sum_{i != j} W_ij^2 / (K (K - 1)) + mu * sum_i b_i^2 / K.  The diagonal is free, so the
    identity costs nothing. K^2 numbers need many cases: a few thousand for ten classes.
    """

    method: ClassVar[str] = "matrix"
    depends_on_level: ClassVar[bool] = True


class DirichletScaling(_AffineScaling):
    """softmax(W log(p) + b), p = softmax(logits), with ODIR (Kull et al. 2019, Dirichlet calibration).

    The objective of `MatrixScaling` on log-probabilities instead of logits. It does not depend on the level of a row of
    logits, and it works for models that only give probabilities.
    """

    method: ClassVar[str] = "dirichlet"

    @staticmethod
    def _features(operations: Operations, logits: Any) -> Any:
        return operations.log_softmax(logits)


def _all_right(scores: Floats, targets: Integers) -> bool:
    """Whether every target has its row's largest score: then more sharpness always helps the likelihood."""
    return bool((np.take_along_axis(scores, targets[:, None], axis=1)[:, 0] >= scores.max(axis=1)).all())


def _affine(features: Floats, weight: Floats, bias: Floats) -> Floats:
    if weight.ndim == 1:
        return features * weight + bias
    return features @ weight.T + bias


@dataclass
class _Solution:
    x: Floats  # all numbers, in the units of the objective
    weight: Floats
    bias: Floats
    converged: bool
    iterations: int


class _Objective:
    """NLL + penalties as a function of all weights, then all biases.

    The features, of shape (n, K), are divided by their size, and the weights multiplied by it, so that logits of any
    unit give a well-scaled problem. With `diagonal`, the score of a class depends on its own feature alone.
    """

    def __init__(self, features: Floats, targets: Integers, weights: Floats, *, diagonal: bool) -> None:
        self.unit = float(np.abs(features).max()) / 10.0
        # Classes in rows: sums and maxima over a few classes are then several times as fast.
        self.features = np.ascontiguousarray(features.T) / self.unit
        self.weights = weights / weights.mean()
        # Times the root of the weight, so that products of two have the weight itself.
        self.linear = np.vstack([self.features, np.ones(len(features))]) * np.sqrt(self.weights)
        self.targets = targets
        self.diagonal = diagonal
        self.count = features.shape[1]
        self.softening = softening(features, targets)
        self.cases = np.arange(len(targets))
        self.x = np.empty(0)
        self.curvature: Floats | None = None
        self.sums_of_targets = self._sums(self.weights * np.eye(self.count)[:, targets])

    def start(self) -> Floats:
        """The identity, softened if the model is overconfident: saturated probabilities have no curvature."""
        weight = self.softening * np.eye(self.count)
        if self.diagonal:
            weight = np.full(self.count, self.softening)
        return np.concatenate([weight.ravel() * self.unit, np.zeros(self.count)])

    def minimise(self, reg_lambda: float, reg_mu: float, start: Floats, *, tolerance: float) -> _Solution:
        """The best weights and biases; the search ends if the norm of the gradient is at most `tolerance`."""
        # Second derivative of the penalty in each parameter; see `_penalised`.
        weights = np.full(self.count, 2.0 * reg_lambda / self.count)
        if not self.diagonal:
            off_diagonal = 1.0 - np.eye(self.count).ravel()
            weights = off_diagonal * 2.0 * reg_lambda / (self.count * (self.count - 1))
        self.penalty = np.concatenate([weights / self.unit**2, np.full(self.count, 2.0 * reg_mu / self.count)])
        if len(start) <= _MOST_FOR_NEWTON:
            options: dict[str, Any] = {"gtol": tolerance, "maxiter": _MAX_ITERATIONS, "initial_trust_radius": 10.0}
            result = minimize(self.value, start, jac=True, hess=self.hessian, method="trust-exact", options=options)
        else:
            options = {"maxiter": _MAX_ITERATIONS, "maxfun": 2 * _MAX_ITERATIONS, "ftol": 1e-13, "gtol": 1e-7}
            result = minimize(self.value, start, jac=True, method="L-BFGS-B", options={**options, "maxcor": 20})
        weight, bias = self._split(result.x)
        # A search that stalls at rounding level is an optimum, too, so the gradient decides. With a strong penalty the
        # rounding of a weight makes it large.
        converged = bool(np.abs(result.jac).max() <= _FLAT * max(1.0, float(self.penalty.max())))
        return _Solution(result.x, weight / self.unit, bias, converged, int(result.nit))

    def value(self, x: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        self._visit(x)
        pull = self._penalised(x)
        return self.nll + 0.5 * float(x @ pull), self.gradient + pull

    def _visit(self, x: Floats) -> None:
        """Compute the NLL and its gradient, unless the last visit was to the same place.

        The minimiser asks for the value and the derivatives of a place one after the other, and the search with the
        next strength starts where the last one ended.
        """
        if np.array_equal(x, self.x):
            return
        weight, bias = self._split(x)
        if self.diagonal:
            p = weight[:, None] * self.features + bias[:, None]
        else:
            p = weight @ self.features + bias[:, None]
        p -= p.max(axis=0)
        of_target = p[self.targets, self.cases]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        self.nll = float((self.weights * (np.log(total) - of_target)).mean())
        p /= total
        self.gradient = (self._sums(self.weights * p) - self.sums_of_targets) / len(self.targets)
        self.x, self.p, self.curvature = x.copy(), p, None

    def _sums(self, p: Floats) -> Floats:
        """Sums over cases of p times what the score of a class is linear in."""
        if self.diagonal:
            return np.concatenate([np.einsum("ij,ij->i", p, self.features), p.sum(axis=1)])
        return np.concatenate([(p @ self.features.T).ravel(), p.sum(axis=1)])

    def hessian(self, x: Floats) -> Floats:
        """Second derivatives: the mean over cases of w (diag(p) - p p') (x) f f', and those of the penalty.

        f are the numbers that the score of a class is linear in: its own feature, or all features, and 1.
        """
        self._visit(x)
        if self.curvature is None and self.diagonal:
            self.curvature = self._hessian_of_own_features()
        elif self.curvature is None:
            self.curvature = self._hessian_of_all_features()
        penalty = np.diag(self.penalty)
        if self.diagonal:
            penalty[: self.count, : self.count] -= self.penalty[0] / self.count
        return np.asarray(self.curvature / len(self.targets) + penalty)

    def _hessian_of_own_features(self) -> Floats:
        features, roots = self.linear[:-1], self.linear[-1]
        weighted = self.p * features
        flat = np.vstack([weighted, self.p * roots])
        total = -(flat @ flat.T)
        slopes = np.arange(self.count)
        biases = slopes + self.count
        total[slopes, slopes] += np.einsum("ij,ij->i", weighted, features)
        total[slopes, biases] += (weighted * roots).sum(axis=1)
        total[biases, slopes] += (weighted * roots).sum(axis=1)
        total[biases, biases] += (self.p * self.weights).sum(axis=1)
        return np.asarray(total)

    def _hessian_of_all_features(self) -> Floats:
        count, size = self.count, self.count + 1
        total = np.zeros((count * size, count * size))
        # Large blocks: every product is a barrier for the threads of the linear algebra library.
        cases = max(64, _NUMBERS_AT_ONCE // (count * size))
        for start in range(0, len(self.targets), cases):
            p, linear = self.p[:, start : start + cases], self.linear[:, start : start + cases]
            flat = (p[:, None] * linear[None]).reshape(count * size, -1)
            total -= flat @ flat.T
        # If the scores of all classes rise alike, nothing changes: the blocks of a class and all classes sum to 0.
        blocks = total.reshape(count, size, count, size)
        for k in range(count):
            blocks[k, :, k] = 0.0
            blocks[k, :, k] = -blocks[k].sum(axis=1)
        # From (class, its numbers) to the order of the parameters: all weights, then all biases.
        index = np.arange(len(total)).reshape(count, size)
        order = np.concatenate([index[:, :-1].ravel(), index[:, -1]])
        return np.asarray(total[np.ix_(order, order)])

    def _split(self, x: Floats) -> tuple[Floats, Floats]:
        weight, bias = x[: -self.count], x[-self.count :]
        if not self.diagonal:
            weight = weight.reshape(self.count, self.count)
        return weight, bias

    def _penalised(self, x: Floats) -> Floats:
        """Gradient of the penalty, which is quadratic. Diagonal weights are pulled to their mean, others to 0."""
        pulled = x.copy()
        if self.diagonal:
            pulled[: self.count] -= x[: self.count].mean()
        return self.penalty * pulled


def stratified_folds(targets: Integers, folds: int, seed: int) -> Integers:
    """The fold 0..folds-1 of each case. Every class is spread as evenly as possible.

    Not scikit-learn's, which warns of classes with fewer cases than folds and is not needed by anything else here.
    """
    whole("folds", folds, 2)
    whole("seed", seed, 0)
    order = np.random.default_rng(seed).permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    # Dealt like cards, class after class without a break, so that the folds also end up equally large.
    fold = np.empty(len(targets), dtype=np.int64)
    fold[order] = np.arange(len(targets)) % folds
    for held_out in range(folds):
        rest = targets[fold != held_out]
        if len(rest) == len(targets) or len(rest) == 0 or (rest == rest[0]).all():
            rule = f"hold enough cases of two classes for {folds} folds"
            hint = "Use more cases or fewer folds, or a method that is not cross-validated, such as temperature."
            raise invalid("targets", rule, f"{len(targets)} cases", hint)
    return fold
