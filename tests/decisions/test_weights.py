"""Cases that are drawn by weights: another mix, and promises that hold there."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, check_promise, choose_threshold, sample_by_weights
from calibrant.errors import InvalidInput


def draw(rng, n):
    """Half of the cases in use are hard (82 % right), a tenth of these are; confidence tells nothing."""
    hard = rng.random(n) < 0.1
    right = rng.random(n) < np.where(hard, 0.82, 0.98)
    top = 0.6 + 0.4 * rng.random(n)
    extras = {"weight": np.where(hard, 9.0, 1.0), "hard": hard.astype(int)}
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1), extras=extras)


def test_the_kept_cases_have_the_mix_in_use():
    cases = draw(np.random.default_rng(0), 20_000)
    kept = sample_by_weights(cases, "weight")
    hard = kept.extras["hard"] == 1
    assert hard.sum() == (cases.extras["hard"] == 1).sum()  # the largest weight is always kept
    assert hard.mean() == pytest.approx(0.5, abs=0.03)
    assert np.array_equal(sample_by_weights(cases, np.asarray(cases.extras["weight"]) * 7).targets, kept.targets)
    assert len(sample_by_weights(cases, "weight", seed=1)) != len(kept)


def test_equal_weights_keep_every_case():
    cases = draw(np.random.default_rng(0), 50)
    assert len(sample_by_weights(cases, np.ones(50))) == 50


def test_a_promise_is_kept_in_use_where_the_plain_rule_breaks_it():
    """In use 90 % are right at every threshold, so a promise of 0.91 may be made in 10 % of the draws at most."""
    plain = weighted = 0
    for seed in range(60):
        cases = draw(np.random.default_rng(seed), 1500)
        plain += choose_threshold(cases, 0.91, confidence=0.9).automates
        weighted += choose_threshold(sample_by_weights(cases, "weight", seed=seed), 0.91, confidence=0.9).automates
    assert plain == 60
    assert weighted <= 12


def test_weights_that_keep_nobody_and_bad_ones_are_refused():
    cases = draw(np.random.default_rng(0), 20)
    with pytest.raises(InvalidInput, match="be a column of the predictions"):
        sample_by_weights(cases, "wieght")
    with pytest.raises(InvalidInput, match="not negative"):
        sample_by_weights(cases, -np.ones(20))
    with pytest.raises(InvalidInput, match="seed"):
        sample_by_weights(cases, "weight", seed=-1)


def test_the_largest_weight_need_not_be_among_the_cases():
    cases = Predictions.from_binary(np.full(4000, 0.97), np.ones(4000, int), kind="probabilities")
    assert len(sample_by_weights(cases, np.full(4000, 2.0))) == 4000
    assert 800 < len(sample_by_weights(cases, np.full(4000, 2.0), largest=8.0)) < 1200
    with pytest.raises(InvalidInput, match="largest must be at least the largest weight of these cases, 2"):
        sample_by_weights(cases, np.full(4000, 2.0), largest=1.0)


def test_a_rule_of_drawn_cases_is_checked_on_drawn_cases():
    """Half of the labelled cases are hard (70 % right), but few in use, so that 97.6 % are right there."""
    rule = RoutingRule(0.9, 2, 0.95, 0.95, weight_column="weight", weight_seed=0)
    broken = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        hard = rng.random(1000) < 0.5
        right = rng.random(1000) < np.where(hard, 0.7, 0.99)
        weight = np.where(hard, 1.0, 19.0)
        cases = Predictions.from_binary(np.full(1000, 0.97), right.astype(int), kind="probabilities")
        assert not check_promise(rule, cases).held  # a stream in use that is this bad
        cases = Predictions.from_binary(
            np.full(1000, 0.97), right.astype(int), kind="probabilities", extras={"weight": weight}
        )
        broken += not check_promise(rule, cases).held
    assert broken <= 2
