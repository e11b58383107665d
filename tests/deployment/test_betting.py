"""Capitals against plain loops over bets, and their expectation against every stream there is."""

import itertools
import math

import numpy as np
import pytest

from calibrant.deployment import betting
from calibrant.deployment.betting import (
    error_bounds,
    first_cases,
    likeliest_start,
    log_ratios,
    not_begun,
    promise_capital,
    rank_capital,
)


def slow_promise(errors, promised):
    """Every bet by itself: one for each first case and each error rate."""
    n, capitals = len(errors), []
    rates = [1 / (1 + 1 / (odds * promised / (1 - promised))) for odds in np.geomspace(1.1, 50, 12)]
    for now in range(1, n + 1):
        total = 1 / (1 + math.log(now + 1))
        for first in range(1, now + 1):
            share = 1 / (1 + math.log(first)) - 1 / (1 + math.log(first + 1))
            for q in rates:
                own = share / 12
                for wrong in errors[first - 1 : now]:
                    own *= q / promised if wrong else (1 - q) / (1 - promised)
                total += own
        capitals.append(math.log(total))
    return capitals


def test_promise_capital_is_that_of_all_bets():
    errors = np.random.default_rng(0).random(30) < 0.2
    assert promise_capital(errors, 0.1) == pytest.approx(slow_promise(errors.tolist(), 0.1), abs=1e-10)


def test_streams_along_other_axes_are_independent():
    errors = np.random.default_rng(0).random((2, 3, 20)) < 0.3
    together = promise_capital(errors, 0.1)
    assert together[1, 2] == pytest.approx(promise_capital(errors[1, 2], 0.1), abs=1e-12)


@pytest.mark.parametrize(("true", "most"), [(0.2, 1.0), (0.1, 1.0), (0.0, 1.0)])
def test_capital_is_not_expected_to_grow_while_the_promise_holds(true, most):
    """Over all 2^10 streams, at the promised rate and below: exact, not simulated."""
    streams = np.array(list(itertools.product([False, True], repeat=10)))
    probability = np.where(streams, true, 1 - true).prod(axis=1)
    expected = (probability[:, None] * np.exp(promise_capital(streams, 0.2))).sum(axis=0)
    assert (expected <= most + 1e-12).all()
    if true == 0.2:
        assert expected == pytest.approx(np.ones(10), abs=1e-12)
    assert (np.diff(expected) <= 1e-12).all()


def test_capital_grows_where_the_promise_is_broken():
    errors = np.random.default_rng(0).random(2000) < 0.3
    assert promise_capital(errors, 0.2)[-1] > 20


def test_shares_of_all_bets_make_one():
    cases = np.arange(1, 10_001)
    assert (not_begun(cases) - not_begun(cases + 1)).sum() + not_begun(np.array([10_001]))[0] == pytest.approx(1.0)


def test_error_bounds_are_where_the_mixture_reaches_the_level():
    errors, cases, level = np.array([0, 3, 40]), np.array([10, 100, 1000]), 0.05
    low, high = error_bounds(errors, cases, level)
    for s, n, end in zip(errors, cases, low, strict=True):
        mixture = np.mean(
            [math.exp(x * s - n * math.log(1 - end + end * math.exp(x))) for x in np.geomspace(0.01, 5, 20)]
        )
        assert end == 0.0 if s == 0 else mixture == pytest.approx(40, rel=1e-6)
    assert (low <= errors / cases).all()
    assert (errors / cases <= high).all()
    assert high[0] > 0.25


def test_bounds_hold_at_every_case_also_while_the_rate_changes():
    """Of 400 streams whose error rate climbs, at most 5 % may ever leave the band; fewer do."""
    rng, n = np.random.default_rng(3), 600
    rates = np.linspace(0.0, 0.3, n)
    mean, at = np.cumsum(rates) / np.arange(1, n + 1), np.arange(9, n, 10)
    missed = 0
    for _ in range(400):
        errors = np.cumsum(rng.random(n) < rates)
        low, high = error_bounds(errors[at], at + 1, 0.2)
        missed += bool(((mean[at] < low) | (mean[at] > high)).any())
    assert 0 < missed <= 0.2 * 400


def slow_rank_capital(ranks):
    starts = first_cases(len(ranks)).tolist()
    shares = [not_begun(np.array([at + 1]))[0] for at in [*starts, len(ranks)]]
    found = []
    for now in range(1, len(ranks) + 1):
        total = 0.0
        for at, start in enumerate(starts):
            share = shares[at] - shares[at + 1]
            if start >= now:
                total += share
                continue
            for bins in (2, 6, 20):
                own, counts = 1.0, [0] * bins
                for rank in ranks[start:now]:
                    place = min(int(rank * bins), bins - 1)
                    own *= bins * (counts[place] + 10) / (sum(counts) + 10 * bins)
                    counts[place] += 1
                total += share * own / 3
        found.append(math.log(total + shares[-1]))
    return found


def test_rank_capital_is_that_of_all_bets():
    ranks = np.random.default_rng(0).random(40) ** 2
    assert rank_capital(ranks) == pytest.approx(slow_rank_capital(ranks.tolist()), abs=1e-10)


def test_rank_capital_of_several_streams():
    ranks = np.random.default_rng(0).random((3, 50))
    assert rank_capital(ranks)[2] == pytest.approx(rank_capital(ranks[2]), abs=1e-12)


def test_each_bet_on_ranks_is_fair():
    """One step: the mean over bins of what it multiplies the capital by is 1."""
    rng = np.random.default_rng(1)
    past = rng.random(30)
    for bins in betting._RESOLUTIONS:
        nexts = (np.arange(bins) + 0.5) / bins
        streams = np.concatenate([np.tile(past, (bins, 1)), nexts[:, None]], axis=1)
        capital = betting._Histogram(streams, bins).capital(3)
        assert np.exp(capital[:, -1] - capital[:, -2]).mean() == pytest.approx(1.0)


def test_likeliest_start_finds_a_planted_change():
    rng = np.random.default_rng(0)
    ranks = np.concatenate([rng.random(700), rng.random(300) ** 3])
    assert abs(likeliest_start(ranks) - 700) <= 25


def test_log_ratios_name_every_rate():
    rows = log_ratios(np.array([True, False]), 0.01)
    assert len(rows) == 12
    assert all(row[0] > 0 > row[1] for row in rows)
