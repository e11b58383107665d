import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, choose_threshold
from calibrant.errors import InvalidInput


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    z = 5 * rng.normal(size=(3000, 3))
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), class_names=["a", "b", "c"])


def slow_cost(cases, threshold, error, review):
    total = 0.0
    for confidence, right in zip(cases.confidence, cases.correct, strict=True):
        if threshold is None or confidence < threshold:
            total += review
        elif not right:
            total += error
    return 1000 * total / len(cases)


def test_the_cheapest_threshold_is_that_of_a_plain_search(cases):
    """A target of a half is kept at every threshold, so that only costs decide."""
    thresholds = np.unique(cases.confidence)[::50]
    rule = choose_threshold(cases, 0.5, cost_error=20.0, cost_review=2.0, thresholds=thresholds)
    cheapest = min(slow_cost(cases, t, 20.0, 2.0) for t in [None, *thresholds])
    assert rule.costs.per_1000 == pytest.approx(cheapest)
    assert rule.costs.per_1000 == pytest.approx(slow_cost(cases, rule.threshold, 20.0, 2.0))
    assert rule.costs.per_1000_all_review == 2000.0


def test_a_person_looks_where_automating_saves_nothing():
    predictions = Predictions.from_probabilities([[0.9, 0.1]] * 100, [0] * 50 + [1] * 50)
    rules = [choose_threshold(predictions, 0.1, cost_error=error, cost_review=1.0) for error in (2.0, 1.9)]
    assert [rule.automates for rule in rules] == [False, True]
    assert rules[0].costs.per_1000 == rules[0].costs.per_1000_all_review == 1000.0


def test_the_cheapest_promised_threshold_keeps_the_promise(cases):
    free = choose_threshold(cases, 0.9)
    paid = choose_threshold(cases, 0.9, cost_error=60.0, cost_review=2.0)
    assert paid.threshold > free.threshold
    assert paid.costs.per_1000 == pytest.approx(slow_cost(cases, paid.threshold, 60.0, 2.0))
    assert paid.costs.per_1000 <= slow_cost(cases, free.threshold, 60.0, 2.0)
    assert RoutingRule.from_dict(paid.to_dict()) == paid


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost_error": 2.0}, "cost_review must be a number"),
        ({"cost_review": 1.0}, "cost_error must be a number"),
        ({"cost_error": 2.0, "cost_review": 0}, "cost_review must be finite and positive"),
    ],
)
def test_bad_costs_are_refused(cases, settings, message):
    with pytest.raises(InvalidInput, match=message):
        choose_threshold(cases, 0.9, **settings)
