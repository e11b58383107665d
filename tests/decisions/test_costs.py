import json

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, choose_threshold, read_cost_matrix
from calibrant.errors import InvalidInput

COSTS = np.array([[0.0, 5.0, 1.0], [50.0, 0.5, 2.0], [3.0, 1.0, 0.0]])


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    z = 5 * rng.normal(size=(3000, 3))
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), class_names=["a", "b", "c"])


def slow_cost(cases, threshold, costs, review):
    total = 0.0
    for confidence, predicted, target in zip(cases.confidence, cases.predicted, cases.targets, strict=True):
        if threshold is None or confidence < threshold:
            total += review
        else:
            total += costs[target][predicted]
    return 1000 * total / len(cases)


@pytest.mark.parametrize(
    ("settings", "costs"), [({"cost_matrix": COSTS}, COSTS), ({"cost_error": 20.0}, 20.0 * (1 - np.eye(3)))]
)
def test_the_cheapest_threshold_is_that_of_a_plain_search(cases, settings, costs):
    """A target of a half is kept at every threshold, so that only costs decide."""
    thresholds = np.unique(cases.confidence)[::50]
    rule = choose_threshold(cases, 0.5, cost_review=2.0, thresholds=thresholds, **settings)
    cheapest = min(slow_cost(cases, t, costs, 2.0) for t in [None, *thresholds])
    assert rule.costs.per_1000 == pytest.approx(cheapest)
    assert rule.costs.per_1000 == pytest.approx(slow_cost(cases, rule.threshold, costs, 2.0))
    assert rule.costs.per_1000_all_review == 2000.0


def test_a_person_looks_where_automating_saves_nothing():
    predictions = Predictions.from_probabilities([[0.9, 0.1]] * 100, [0] * 50 + [1] * 50)
    rules = [choose_threshold(predictions, 0.1, cost_error=error, cost_review=1.0) for error in (2.0, 1.9)]
    assert [rule.automates for rule in rules] == [False, True]
    assert rules[0].costs.per_1000 == rules[0].costs.per_1000_all_review == 1000.0


def test_the_cheapest_promised_threshold_keeps_the_promise(cases):
    free = choose_threshold(cases, 0.9)
    paid = choose_threshold(cases, 0.9, cost_matrix=3 * COSTS, cost_review=2.0)
    assert paid.threshold > free.threshold
    assert paid.costs.per_1000 == pytest.approx(slow_cost(cases, paid.threshold, 3 * COSTS, 2.0))
    assert paid.costs.per_1000 <= slow_cost(cases, free.threshold, 3 * COSTS, 2.0)
    assert RoutingRule.from_dict(json.loads(json.dumps(paid.to_dict()))) == paid
    assert paid.costs.error[1] == (150.0, 1.5, 6.0)


@pytest.mark.parametrize("per_class", [False, True])
def test_equal_costs_are_those_of_one_number(cases, per_class):
    by_matrix = choose_threshold(cases, 0.8, per_class=per_class, cost_matrix=10 * (1 - np.eye(3)), cost_review=1)
    by_number = choose_threshold(cases, 0.8, per_class=per_class, cost_error=10, cost_review=1)
    assert by_matrix.automates
    assert by_matrix.threshold == by_number.threshold
    assert by_matrix.class_thresholds == by_number.class_thresholds
    assert by_matrix.costs.per_1000 == pytest.approx(by_number.costs.per_1000)


def test_classes_of_a_file_are_found_by_name(cases, tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("true,c,a,b\nb,2,50,0.5\na,1,0,5\nc,0,3,1\n")
    assert read_cost_matrix(path, cases).tolist() == COSTS.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true,a,b\na,0,1\nb,1,0\n",
        "true,a,b,c\na,0,1\n",
        "true,a,b,c\na,0,1,1\n,1,0,1\nc,1,1,0\n",
        "true,a,b,c\na,0,1,1\nb,1,x,1\nc,1,1,0\n",
    ],
)
def test_bad_files_are_one_line(cases, tmp_path, text):
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"costs\.csv"):
        read_cost_matrix(path, cases)
    with pytest.raises(InvalidInput, match="missing"):
        read_cost_matrix(tmp_path / "missing.csv", cases)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost_error": 2.0}, "both costs"),
        ({"cost_review": 1.0}, "both costs"),
        ({"cost_error": 2.0, "cost_review": 0}, "cost_review must be finite and positive"),
        ({"cost_matrix": COSTS}, "both costs"),
        ({"cost_matrix": COSTS, "cost_review": 1, "cost_error": 2}, "cost_error must be left out"),
        ({"cost_matrix": COSTS[:2], "cost_review": 1}, r"finite costs of at least 0 of shape \(3, 3\)"),
        ({"cost_matrix": -COSTS, "cost_review": 1}, "finite costs of at least 0"),
        ({"cost_matrix": COSTS * np.nan, "cost_review": 1}, "finite costs of at least 0"),
        ({"cost_matrix": [["x"] * 3] * 3, "cost_review": 1}, "cost_matrix"),
    ],
)
def test_bad_costs_are_refused(cases, settings, message):
    with pytest.raises(InvalidInput, match=message):
        choose_threshold(cases, 0.9, **settings)
