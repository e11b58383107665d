import numpy as np

from calibrant import Predictions
from calibrant.routing import RoutingRule, describe_rule, risk_coverage


def test_thresholds_that_agree_in_six_digits_are_told_apart():
    confidence = np.array([0.999_999_91, 0.999_999_92, 0.999_999_93, 0.6])
    predictions = Predictions.from_probabilities(np.stack([confidence, 1 - confidence], axis=1), [0, 0, 1, 0])
    text = describe_rule(RoutingRule(confidence[1], 2), risk_coverage(predictions, (1.0, 0.75, 0.5, 0.25)))
    for value in ("0.60000000", "0.99999991", "0.99999992", "0.99999993"):
        assert f" {value} " in text
    assert "Threshold: 0.9999999\n" in f"{text}\n"


def test_ordinary_thresholds_have_six_digits():
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    text = describe_rule(RoutingRule(0.9, 2), risk_coverage(predictions))
    assert " 0.900000 " in text
    assert text.endswith("Threshold: 0.900000")
