import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from calibrant.metrics.intervals import exact_interval


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_ends_are_those_of_scipys_exact_test(case, level):
    right, cases = case
    expected = binomtest(right, cases).proportion_ci(level, method="exact")
    assert exact_interval(right, cases, level=level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_ends_are_touched_exactly_and_no_trials_have_no_interval():
    assert exact_interval(0, 7)[0] == 0.0
    assert exact_interval(7, 7)[1] == 1.0
    assert np.isnan(exact_interval(0, 0)).all()


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 3])
@pytest.mark.parametrize("cases", [10, 20, 80, 1000])
def test_every_share_is_held_as_often_as_promised(level, cases):
    counts = np.arange(cases + 1)
    low, high = exact_interval(counts, cases, level=level)
    for share in np.concatenate([np.linspace(0.5, 0.98, 25), 1 - np.geomspace(0.02, 1e-4, 50)]):
        held = (low <= share) & (share <= high)
        assert binom.pmf(counts, cases, share)[held].sum() >= level - 1e-9
