"""Another mix of classes at deployment than in training: probabilities corrected for it (prior shift)."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import invalid
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
Method = Literal["em", "bbse"]
_TOLERANCE, _ROUNDS = 1e-10, 100_000
# Below this the confusion matrix tells some mixes of classes from each other only by rounding.
_SMALLEST_SINGULAR = 1e-6


class PriorCorrection:
    """p'(k | x) proportional to p(k | x) * shares[k] / trained[k]: the same evidence, another prior.

    It is right if each class looks as it did, only the shares of the classes differ, and the probabilities were
    calibrated for the old shares: calibrate first, then correct.

    Args:
        trained: Share of each class in training or calibration, shape (K,); counts will do.
        shares: Share of each class at deployment, shape (K,); counts will do. `estimate` finds them without labels.

    >>> correct = PriorCorrection([0.5, 0.5], [0.9, 0.1])
    >>> correct.probabilities([[0.5, 0.5]]).round(3).tolist()
    [[0.9, 0.1]]
    """

    def __init__(self, trained: Any, shares: Any) -> None:
        self.trained, self.shares = _shares("trained", trained, positive=True), _shares("shares", shares)
        if len(self.trained) != len(self.shares):
            raise invalid("shares", f"have one number for each of the {len(self.trained)} classes", len(self.shares))

    @classmethod
    def estimate(
        cls, probabilities: Any, trained: Any, *, method: Method = "em", labelled: Predictions | None = None
    ) -> Self:
        """Estimate the shares from what the model says about cases at deployment, which need no labels.

        Args:
            probabilities: Shape (n, K), or predictions; their labels are not looked at.
            trained: As for the class.
            method: "em" takes the shares under which these probabilities are most likely (Saerens et al. 2002) and
                needs calibrated ones. "bbse" solves for the shares that explain how often each class is predicted
                (Lipton et al. 2018); it needs no calibration but labelled cases with the old shares.
            labelled: For "bbse": such cases.
        """
        seen, old = _matrix(probabilities), _shares("trained", trained, positive=True)
        if seen.shape[1] != len(old):
            raise invalid("trained", f"have one number for each of the {seen.shape[1]} classes", len(old))
        if method == "em":
            return cls(old, _most_likely(seen, old))
        if method != "bbse":
            raise invalid("method", "be em or bbse", repr(method))
        if labelled is None or labelled.n_classes != len(old):
            got = "none" if labelled is None else f"{labelled.n_classes} classes"
            raise invalid("labelled", f"be labelled cases of {len(old)} classes for bbse", got)
        return cls(old, _explaining(seen, old, labelled))

    def probabilities(self, probabilities: Any) -> Floats:
        """Corrected probabilities, shape (n, K)."""
        given = _matrix(probabilities)
        if given.shape[1] != len(self.shares):
            raise invalid("probabilities", f"have {len(self.shares)} columns", given.shape[1])
        return _corrected(given, self.shares / self.trained)

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same cases with corrected probabilities."""
        return Predictions.from_probabilities(
            self.probabilities(predictions),
            predictions.targets,
            ids=predictions.ids,
            class_names=predictions.class_names,
            extras=predictions.extras,
        )

    def to_dict(self) -> dict[str, list[float]]:
        """Plain values for JSON."""
        return {"trained": self.trained.tolist(), "shares": self.shares.tolist()}

    def __repr__(self) -> str:
        return f"PriorCorrection(trained={self.trained.round(4).tolist()}, shares={self.shares.round(4).tolist()})"


def _corrected(probabilities: Floats, ratio: Floats) -> Floats:
    weighted = probabilities * ratio
    total = weighted.sum(axis=1, keepdims=True)
    if not (total > 0).all():
        row = int(np.flatnonzero(total[:, 0] <= 0)[0])
        way_out = "A class whose share is 0 cannot be certain: calibrate first."
        raise invalid("probabilities", "leave something for classes that occur", f"none in row {row}", way_out)
    return np.asarray(weighted / total)


def _most_likely(seen: Floats, old: Floats) -> Floats:
    """The shares of the largest likelihood, by expectation maximisation; the problem has no other optimum."""
    shares = old
    for _ in range(_ROUNDS):
        new = _corrected(seen, shares / old).mean(axis=0)
        if np.abs(new - shares).max() < _TOLERANCE:
            return np.asarray(new)
        shares = new
    return np.asarray(shares)


def _explaining(seen: Floats, old: Floats, labelled: Predictions) -> Floats:
    """Shares s with  P(predicted = i) = sum_k P(predicted = i | class k) s_k,  negative ones set to 0."""
    count = len(old)
    cells = np.bincount(labelled.predicted * count + labelled.targets, minlength=count**2).reshape(count, count)
    if (cells.sum(axis=0) == 0).any():
        missing = int(np.flatnonzero(cells.sum(axis=0) == 0)[0])
        raise invalid("labelled", "hold cases of every class", f"none of class {missing}")
    given_class = cells / cells.sum(axis=0)
    if np.linalg.svd(given_class, compute_uv=False)[-1] < _SMALLEST_SINGULAR:
        way_out = "Use em, or a model that tells the classes apart."
        raise invalid("labelled", "show predictions that tell every class from the others", "some it cannot", way_out)
    predicted = np.bincount(seen.argmax(axis=1), minlength=count) / len(seen)
    shares = np.clip(np.linalg.solve(given_class, predicted), 0.0, None)
    return np.asarray(shares / shares.sum())


def _shares(argument: str, values: Any, *, positive: bool = False) -> Floats:
    found = as_array(argument, values)
    rule = f"be one number per class, {'above 0' if positive else 'not negative'}"
    if found.dtype.kind not in "iuf" or found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        raise invalid(argument, rule, f"{found.dtype} of shape {found.shape}")
    if (found < 0).any() or found.sum() <= 0 or (positive and (found == 0).any()):
        raise invalid(argument, rule, found.tolist())
    return np.asarray(found / found.sum(), dtype=np.float64)


def _matrix(values: Any) -> Floats:
    if isinstance(values, Predictions):
        return np.asarray(values.probabilities, dtype=np.float64)
    matrix = as_array("probabilities", values)
    if matrix.ndim != 2:
        raise invalid("probabilities", "have the shape (n, K)", matrix.shape)
    # Predictions check that they are probabilities; their labels are not looked at.
    unlabelled = Predictions.from_probabilities(matrix, np.zeros(len(matrix), np.int64))
    return np.asarray(unlabelled.probabilities, dtype=np.float64)
