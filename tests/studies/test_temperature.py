import numpy as np
import pytest

from calibrant import Predictions
from calibrant.studies.measuring import fit_temperature


def test_a_validation_set_without_mistakes_is_noted_not_fatal():
    logits = np.eye(3)[[0, 1, 2, 0]] * 5
    temperature, notes = fit_temperature(Predictions.from_logits(logits, [0, 1, 2, 0]))
    assert temperature == 1.0
    assert "every case is classified correctly" in notes[0]


@pytest.mark.parametrize(
    ("logits", "targets", "reason"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [1, 1], "targets must hold at least two classes"),
        ([[1.0, 0.0], [1.0, 0.0]], [0, 1], "got the same prediction in every row"),
    ],
)
def test_what_cannot_be_fitted_is_noted_not_fatal(logits, targets, reason):
    temperature, notes = fit_temperature(Predictions.from_logits(logits, targets))
    assert temperature == 1.0
    assert notes[0].startswith("not fitted, the temperature stays 1: ")
    assert reason in notes[0]
