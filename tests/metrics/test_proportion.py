from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

import calibrant.report
from calibrant.metrics.intervals import jeffreys, wilson


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_solve_the_score_equation(case):
    right, cases = case
    # The ends are, by definition, the p with |share - p| = z sqrt(p (1 - p) / n): the roots of a quadratic in p.
    z2, share = norm.ppf(0.975) ** 2, right / cases
    low, high = sorted(np.roots([1 + z2 / cases, -(2 * share + z2 / cases), share**2]).real)
    assert wilson(right, cases) == pytest.approx((low, high), abs=1e-12)


def test_wilson_touches_the_ends_exactly_and_knows_no_trials():
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0
    assert np.isnan(wilson(0, 0)).all()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_other_levels_have_their_own_quantile(level):
    z = norm.ppf(0.5 + level / 2)
    low, high = wilson(0, 20, level=level)
    assert (float(low), float(high)) == (0.0, pytest.approx(z**2 / (20 + z**2)))


def test_the_report_page_writes_out_the_same_quantile():
    script = Path(calibrant.report.__file__).with_name("assets") / "numbers.js"
    assert f"NORMAL_QUANTILE = {float(norm.ppf(0.975))!r};" in script.read_text()


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_jeffreys_ends_leave_out_as_much_as_the_level_says_and_hold_the_share(case, level):
    right, cases = case
    low, high = jeffreys(right, cases, level=level)
    known = beta(right + 0.5, cases - right + 0.5)
    assert low == 0.0 if right == 0 else known.cdf(low) == pytest.approx((1 - level) / 2)
    assert high == 1.0 if right == cases else known.sf(high) == pytest.approx((1 - level) / 2)
    assert low <= right / cases <= high


@pytest.mark.parametrize("share", [0.8, 0.95, 0.985])
@pytest.mark.parametrize("cases", [26, 80])
def test_jeffreys_holds_the_truth_where_wilson_falls_short(share, cases):
    level, counts = 1 - 0.05 / 3, np.arange(cases + 1)
    held = [low <= share <= high for low, high in (jeffreys(int(k), cases, level=level) for k in counts)]
    assert 0.965 < binom.pmf(counts, cases, share)[held].sum() < 0.996
