"""Another mix of classes at deployment than in training: probabilities corrected for it (prior shift)."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import invalid
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
_TOLERANCE, _ROUNDS = 1e-10, 100_000


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
    def estimate(cls, probabilities: Any, trained: Any) -> Self:
        """Estimate the shares from what the model says about cases at deployment, which need no labels.

        They are the shares under which these probabilities are most likely (Saerens et al. 2002).

        Args:
            probabilities: Calibrated, shape (n, K), or predictions; their labels are not looked at.
            trained: As for the class.
        """
        seen, old = _matrix(probabilities), _shares("trained", trained, positive=True)
        if seen.shape[1] != len(old):
            raise invalid("trained", f"have one number for each of the {seen.shape[1]} classes", len(old))
        shares = old
        # Expectation maximisation; the likelihood has no other optimum.
        for _ in range(_ROUNDS):
            new = _corrected(seen, shares / old).mean(axis=0)
            moved = np.abs(new - shares).max()
            shares = new
            if moved < _TOLERANCE:
                break
        return cls(old, shares)

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


def _corrected(probabilities: Floats, ratio: Floats) -> Floats:
    weighted = probabilities * ratio
    total = weighted.sum(axis=1, keepdims=True)
    if not (total > 0).all():
        row = int(np.flatnonzero(total[:, 0] <= 0)[0])
        hint = "A class whose share is 0 cannot be certain: calibrate first."
        raise invalid("probabilities", "leave something for classes that occur", f"none in row {row}", hint)
    return np.asarray(weighted / total)


def _shares(argument: str, values: Any, *, positive: bool = False) -> Floats:
    found = as_array(argument, values)
    fine = found.dtype.kind in "iuf" and found.ndim == 1 and len(found) > 1
    if (
        not fine
        or not np.isfinite(found).all()
        or found.min() < 0
        or found.max() <= 0
        or (positive and not found.all())
    ):
        rule = f"be one number per class, {'above 0' if positive else 'not negative'}"
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
