"""Capitals against plain loops over bets, and their expectation against every stream there is."""

import itertools
import math

import numpy as np
import pytest

from calibrant.deployment.betting import (
    conformal_ranks,
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


def slow_histogram(ranks, bins, imagined):
    capital, counts = 1.0, [0] * bins
    for rank in ranks:
        place = min(int(rank * bins), bins - 1)
        capital *= bins * (counts[place] + imagined) / (sum(counts) + imagined * bins)
        counts[place] += 1
    return capital


def slow_one_bin(ranks, bins, odds):
    """Every bin by itself: its probability becomes `chance`, and the others stay equally likely."""
    chance = odds / (odds + bins - 1)
    capitals = [1.0] * bins
    for rank in ranks:
        place = min(int(rank * bins), bins - 1)
        for number in range(bins):
            probability = chance if number == place else (1 - chance) / (bins - 1)
            capitals[number] *= probability * bins
    return sum(capitals) / bins


def slow_rank_capital(ranks, first=0, classes=None):
    starts = first_cases(len(ranks)).tolist()
    shares = [not_begun(np.array([at + 1]))[0] for at in starts]
    bets = [(slow_histogram, bins, 10) for bins in (2, 6, 20)]
    if classes is not None:
        bets += [(slow_histogram, classes, imagined) for imagined in (2, 10, 40)]
        bets += [(slow_one_bin, classes, odds) for odds in (2, 5)]
    found = []
    for now in range(first + 1, len(ranks) + 1):
        total = shares[-1]
        for at, start in enumerate(starts[:-1]):
            share = shares[at] - shares[at + 1]
            if start >= now:
                total += share
            else:
                total += share * np.mean([bet(ranks[start:now], *settings) for bet, *settings in bets])
        found.append(math.log(total))
    return found


@pytest.mark.parametrize("classes", [None, 2, 7])
def test_rank_capital_is_that_of_all_bets(classes):
    ranks = np.random.default_rng(0).random(40) ** 2
    slow = slow_rank_capital(ranks.tolist(), classes=classes)
    assert rank_capital(ranks, classes=classes) == pytest.approx(slow, abs=1e-10)


@pytest.mark.parametrize("classes", [None, 30])
def test_rank_capital_goes_on_from_block_to_block(classes):
    """The capital after some cases does not depend on the cases that come later."""
    ranks = np.random.default_rng(0).random(700) ** 1.2
    whole = rank_capital(ranks, classes=classes)
    assert whole[:40] == pytest.approx(rank_capital(ranks[:40], classes=classes), abs=1e-10)
    assert whole[-3:] == pytest.approx(slow_rank_capital(ranks.tolist(), 697, classes), abs=1e-9)


@pytest.mark.parametrize("classes", [None, 3])
def test_each_bet_on_ranks_is_fair(classes):
    """One step: the mean of the capital over equally likely next ranks is the capital before."""
    past = np.random.default_rng(1).random(30) ** 2
    nexts = (np.arange(60) + 0.5) / 60  # as many in each bin of 2, 3, 6 and 20
    after = [np.exp(rank_capital(np.append(past, rank), classes=classes)[-1]) for rank in nexts]
    assert np.mean(after) == pytest.approx(np.exp(rank_capital(past, classes=classes)[-1]))


def test_capital_of_many_ranks_in_one_bin_is_finite():
    assert np.isfinite(rank_capital(np.full(5000, 0.99), classes=100)).all()


def test_likeliest_start_finds_a_planted_change():
    rng = np.random.default_rng(0)
    ranks = np.concatenate([rng.random(700), rng.random(300) ** 3])
    assert abs(likeliest_start(ranks) - 700) <= 25


def test_log_ratios_name_every_rate():
    rows = log_ratios(np.array([True, False]), 0.01)
    assert len(rows) == 12
    assert all(row[0] > 0 > row[1] for row in rows)


def slow_ranks(reference, new, draws):
    bag, found = list(reference), []
    for value, u in zip(new, draws, strict=True):
        bag.append(value)
        found.append((sum(v < value for v in bag) + u * sum(v == value for v in bag)) / len(bag))
    return found


@pytest.mark.parametrize("kinds", [3, 10**6])
def test_ranks_are_those_of_a_plain_loop(kinds):
    """With many ties and with none, over more than two blocks."""
    rng = np.random.default_rng(0)
    reference, new = rng.integers(kinds, size=37), rng.integers(kinds, size=1100)
    draws = np.random.default_rng(5).random(1100)
    assert conformal_ranks(reference, new, seed=5) == pytest.approx(slow_ranks(reference, new, draws), abs=1e-12)


def test_ranks_are_uniform_and_unrelated_while_nothing_changes():
    from scipy.stats import kstest

    rng = np.random.default_rng(1)
    ranks = conformal_ranks(rng.integers(2, size=50), rng.integers(2, size=4000))
    assert kstest(ranks, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 0.06
