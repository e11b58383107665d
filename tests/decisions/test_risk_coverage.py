import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import cheapest_threshold, risk_coverage
from calibrant.errors import InvalidInput


def test_rows_by_counting(draw):
    predictions = draw(500)
    rows = risk_coverage(predictions, (1.0, 0.5, 0.1))
    assert [row.automated for row in rows] == [500, 250, 50]
    for row in rows:
        chosen = predictions.confidence >= row.threshold
        errors = int((chosen & ~predictions.correct).sum())
        assert row.errors == errors
        assert row.coverage == chosen.mean()
        assert row.accuracy == pytest.approx(predictions.correct[chosen].mean())
        exact = binomtest(row.automated - errors, row.automated).proportion_ci(0.95, method="exact")
        assert (row.accuracy_low, row.accuracy_high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_equal_confidences_stay_together():
    predictions = Predictions.from_probabilities([[0.9, 0.1]] * 3 + [[0.6, 0.4]] * 7, [0] * 10)
    assert [row.automated for row in risk_coverage(predictions, (0.1, 0.2, 0.3, 0.4, 1.0))] == [10, 3]


def test_cheapest_by_trying_all(draw):
    predictions = draw(400)
    for cost_error in (1.5, 5.0, 50.0):
        rule = cheapest_threshold(predictions, cost_error=cost_error, cost_review=1.0)
        costs = {
            t: cost_error * ((predictions.confidence >= t) & ~predictions.correct).sum()
            + (predictions.confidence < t).sum()
            for t in predictions.confidence
        }
        assert rule.costs.per_1000 == pytest.approx(min(*costs.values(), 400) / 0.4)
        assert costs[rule.threshold] == min(costs.values())
        assert rule.target_accuracy is None


def test_cheapest_is_near_the_bayes_threshold(draw):
    rule = cheapest_threshold(draw(40_000), cost_error=10.0, cost_review=1.0)
    assert rule.threshold == pytest.approx(0.9, abs=0.05)


def test_cheapest_may_be_review():
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2]], [1, 1])
    rule = cheapest_threshold(predictions, cost_error=10.0, cost_review=1.0)
    assert rule.threshold is None
    assert rule.costs.per_1000 == rule.costs.per_1000_all_review == 1000.0


def test_a_person_looks_where_automating_saves_nothing():
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.9, 0.1]], [0, 1])
    assert cheapest_threshold(predictions, cost_error=2.0, cost_review=1.0).threshold is None
    assert cheapest_threshold(predictions, cost_error=1.9, cost_review=1.0).threshold == 0.9


@pytest.mark.parametrize("coverages", [(), (0.0,), (1.1,), (np.nan,), 0.5, "x"])
def test_bad_coverages(draw, coverages):
    with pytest.raises(InvalidInput, match="coverages must"):
        risk_coverage(draw(50), coverages)


def test_coverages_may_be_an_array(draw):
    assert risk_coverage(draw(50), np.array([0.5, 1.0])) == risk_coverage(draw(50), (1.0, 0.5))
