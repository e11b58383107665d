"""Intervals of differences from those of the parts."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.metrics import percentiles
from calibrant.metrics.intervals import Resampled, _subtract
from calibrant.metrics.inversion import Plausible


def test_independent_parts_add_like_errors_do():
    low, high = _subtract(Plausible(0.2, 0.5, 0.9), Plausible(0.1, 0.2, 0.6), 0.0)
    assert low == pytest.approx(0.3 - np.hypot(0.3, 0.4))
    assert high == pytest.approx(0.3 + np.hypot(0.4, 0.1))


def test_parts_that_move_together_cancel():
    low, high = _subtract(Plausible(0.4, 0.5, 0.6), Plausible(0.2, 0.3, 0.4), 1.0)
    assert (low, high) == pytest.approx((0.2, 0.2))


def test_percentiles_leave_out_what_is_not_defined():
    assert percentiles(np.asarray([np.nan, 1.0, 2.0, 3.0]), 0.95) == (1.0, 3.0)
    assert percentiles(np.asarray([np.nan, np.nan, np.nan, 1.0]), 0.95) is None
    assert percentiles(np.asarray([1.0, np.inf, np.inf]), 0.95) == (1.0, np.inf)


def test_without_draws_of_a_metric_its_parts_count_as_independent():
    evaluation = evaluate(Predictions.from_probabilities([[0.9, 0.1]] * 40, [0, 1] * 20))
    ranges = {"ece": Plausible(0.3, 0.4, 0.5)}
    both = Resampled(evaluation, {}, ranges, 0.95), Resampled(evaluation, {}, ranges, 0.95)
    assert both[0].difference(both[1], "ece") == pytest.approx((-np.hypot(0.1, 0.1), np.hypot(0.1, 0.1)))
    assert both[0].difference(both[1], "mce") is None
