import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from calibrant.decisions.bounds import (
    MOST_CASES,
    cases_at_rate,
    cases_without_error,
    cluster_interval,
    cluster_p_value,
    error_p_value,
    interval,
    lower_bound,
)


def slow_cdf(errors, cases, rate):
    return math.fsum(math.comb(cases, j) * rate**j * (1 - rate) ** (cases - j) for j in range(errors + 1))


@settings(max_examples=50)
@given(cases=st.integers(0, 300), share=st.floats(0, 1), rate=st.floats(0.001, 0.5))
def test_p_value_is_the_binomial_sum(cases, share, rate):
    errors = int(share * cases)
    found = error_p_value(np.array([errors]), np.array([cases]), rate)[0]
    assert found == pytest.approx(slow_cdf(errors, cases, rate), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("hits", "cases"), [(0, 10), (10, 10), (3, 10), (950, 1000)])
def test_interval_equals_scipy(hits, cases):
    expected = binomtest(hits, cases).proportion_ci(confidence_level=0.9, method="exact")
    assert interval(hits, cases, confidence=0.9) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_interval_of_nothing_is_everything():
    assert interval(0, 0) == (0.0, 1.0)


def test_p_value_and_bound_agree():
    for errors in range(8):
        for cases in (50, 100, 200, 400):
            small = error_p_value(np.array([errors]), np.array([cases]), 0.05)[0] <= 0.1
            assert small == (lower_bound(cases - errors, cases, 0.9) >= 0.95)


@pytest.mark.parametrize("target", [0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("level", [0.1, 0.05, 0.01])
def test_cases_without_error(target, level):
    cases = cases_without_error(target, level)
    assert target**cases <= level < target ** (cases - 1)


@pytest.mark.parametrize("rate", [0.0, 0.002, 0.01, 0.03])
def test_cases_at_rate_is_the_first_that_passes(rate):
    def passes(cases):
        return slow_cdf(math.ceil(rate * cases - 1e-12), cases, 0.05) <= 0.05

    found = cases_at_rate(rate, 0.95, 0.05)
    assert passes(found)
    assert not any(passes(cases) for cases in range(1, found))


def test_no_number_of_cases_helps_at_the_target_rate():
    assert cases_at_rate(0.05, 0.95, 0.05) is None
    assert cases_at_rate(0.2, 0.95, 0.05) is None


@pytest.mark.parametrize(("errors", "cases", "target"), [(1, 1001, 0.999), (20, 2001, 0.99), (99, 9901, 0.99)])
def test_an_error_rate_just_below_the_limit_takes_more_cases_than_anybody_has(errors, cases, target):
    assert cases_at_rate(errors / cases, target, 0.05) == MOST_CASES


def test_below_the_cap_the_number_is_exact():
    found = cases_at_rate(0.0099, 0.99, 0.05)
    assert found < MOST_CASES
    errors = math.ceil(0.0099 * found)
    assert binom.cdf(errors, found, 1 - 0.99) <= 0.05 < binom.cdf(errors, found - 1, 1 - 0.99)


def test_a_target_that_takes_more_cases_than_anybody_has_even_without_errors():
    assert cases_at_rate(0.0, 1 - 1e-9, 0.05) == MOST_CASES


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_of_clusters_has_the_rates_that_no_bet_excludes(seed):
    rng = np.random.default_rng(seed)
    cases = rng.integers(1, 6, size=80)
    errors = rng.binomial(cases, 0.1)
    low, high = cluster_interval(cases, errors, 5, confidence=0.9)
    grid = np.linspace(0.0005, 0.9995, 1000)
    kept = [
        accuracy
        for accuracy in grid
        if cluster_p_value(cases, errors, 1 - accuracy, 5) > 0.05
        and cluster_p_value(cases, cases - errors, accuracy, 5) > 0.05
    ]
    assert kept[0] - low == pytest.approx(0, abs=0.002)
    assert kept[-1] - high == pytest.approx(0, abs=0.002)
    assert kept == [accuracy for accuracy in grid if kept[0] <= accuracy <= kept[-1]]
