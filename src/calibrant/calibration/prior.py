"""Another mix of classes at deployment than in training: probabilities corrected for it (prior shift)."""

from typing import Any, Self

import numpy as np

from calibrant.calibration.operations import Floats
from calibrant.checks import as_array
from calibrant.errors import invalid
from calibrant.predictions import Predictions

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
        self.trained, self.shares = _shares("trained", trained), _shares("shares", shares)
        if not self.trained.all():
            raise invalid("trained", "be above 0 for every class", self.trained.tolist())
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
        correction = cls(trained, trained)
        seen = correction._checked(probabilities)
        # Expectation maximisation; the likelihood has no other optimum.
        for _ in range(_ROUNDS):
            shares = correction._corrected(seen).mean(axis=0)
            moved = np.abs(shares - correction.shares).max()
            correction.shares = shares
            if moved < _TOLERANCE:
                break
        return correction

    def probabilities(self, probabilities: Any) -> Floats:
        """Corrected probabilities, shape (n, K)."""
        return self._corrected(self._checked(probabilities))

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same cases with corrected probabilities."""
        return Predictions.from_probabilities(
            self.probabilities(predictions),
            predictions.targets,
            ids=predictions.ids,
            class_names=predictions.class_names,
            extras=predictions.extras,
        )

    def _checked(self, probabilities: Any) -> Floats:
        if not isinstance(probabilities, Predictions):
            # Predictions check that they are probabilities; nothing looks at the labels.
            probabilities = Predictions.from_probabilities(probabilities, np.zeros(len(probabilities), np.int64))
        values = np.asarray(probabilities.probabilities, dtype=np.float64)
        if values.shape[1] != len(self.shares):
            raise invalid("probabilities", f"have {len(self.shares)} columns", values.shape[1])
        return values

    def _corrected(self, probabilities: Floats) -> Floats:
        weighted = probabilities * (self.shares / self.trained)
        total = weighted.sum(axis=1, keepdims=True)
        if not (total > 0).all():
            row = int(np.argmin(total[:, 0]))
            hint = "A class whose share is 0 cannot be certain: calibrate first."
            raise invalid("probabilities", "leave something for classes that occur", f"none in row {row}", hint)
        return np.asarray(weighted / total)


def _shares(argument: str, values: Any) -> Floats:
    numbers = as_array(argument, values)
    fine = numbers.dtype.kind in "iuf" and numbers.ndim == 1 and len(numbers) > 1 and np.isfinite(numbers).all()
    if not fine or numbers.min() < 0 or not numbers.any():
        raise invalid(argument, "be one number per class, not negative and not all 0", numbers.tolist())
    return np.asarray(numbers / numbers.sum(), dtype=np.float64)
