import numpy as np

from calibrant import Predictions
from calibrant.study.temperature import fit_temperature


def test_a_validation_set_without_mistakes_is_noted_not_fatal():
    logits = np.eye(3)[[0, 1, 2, 0]] * 5
    temperature, notes = fit_temperature(Predictions.from_logits(logits, [0, 1, 2, 0]))
    assert temperature == 1.0
    assert "every case is classified correctly" in notes[0]


def test_a_validation_set_of_one_class_is_noted_not_fatal():
    logits = np.array([[1.0, 0.0], [0.0, 2.0]])
    temperature, notes = fit_temperature(Predictions.from_logits(logits, [1, 1]))
    assert temperature == 1.0
    assert "every case is of one class" in notes[0]
