import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import risk_coverage
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


@pytest.mark.parametrize("coverages", [(), (0.0,), (1.1,), (np.nan,), 0.5, "x"])
def test_bad_coverages(draw, coverages):
    with pytest.raises(InvalidInput, match="coverages must"):
        risk_coverage(draw(50), coverages)


def test_coverages_may_be_an_array(draw):
    assert risk_coverage(draw(50), np.array([0.5, 1.0])) == risk_coverage(draw(50), (1.0, 0.5))
