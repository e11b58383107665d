"""Intervals of differences from those of the parts."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.metrics import percentiles
from calibrant.metrics.intervals import Resampled, _subtract
from calibrant.metrics.inversion import Plausible


def test_a_difference_holds_all_differences_of_its_parts():
    low, high = _subtract(Plausible(0.2, 0.5, 0.9), Plausible(0.1, 0.2, 0.6))
    assert (low, high) == pytest.approx((-0.4, 0.8))


def test_percentiles_leave_out_what_is_not_defined():
    assert percentiles(np.asarray([np.nan, 1.0, 2.0, 3.0]), 0.95) == (1.0, 3.0)
    assert percentiles(np.asarray([np.nan, np.nan, np.nan, 1.0]), 0.95) is None
    assert percentiles(np.asarray([1.0, np.inf, np.inf]), 0.95) == (1.0, np.inf)


def test_mce_has_no_interval():
    evaluation = evaluate(Predictions.from_probabilities([[0.9, 0.1]] * 40, [0, 1] * 20))
    ranges = {"ece": Plausible(0.3, 0.4, 0.5)}
    both = Resampled(evaluation, {}, ranges, 0.95), Resampled(evaluation, {}, ranges, 0.95)
    assert both[0].difference(both[1], "ece") == pytest.approx((-0.2, 0.2))
    assert both[0].difference(both[1], "mce") is None
