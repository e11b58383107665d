import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, cheapest_threshold, choose_threshold, read_cost_matrix, risk_coverage
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
        total += costs[target][predicted] if threshold is not None and confidence >= threshold else review
    return 1000 * total / len(cases)


def test_the_cheapest_threshold_is_that_of_a_plain_search(cases):
    rule = cheapest_threshold(cases, cost_matrix=COSTS, cost_review=2.0)
    tried = [None, *np.unique(cases.confidence)[::50], rule.threshold]
    cheapest = min(slow_cost(cases, t, COSTS, 2.0) for t in tried)
    assert rule.costs.per_1000 == pytest.approx(cheapest)
    assert rule.costs.per_1000 == pytest.approx(slow_cost(cases, rule.threshold, COSTS, 2.0))
    assert rule.costs.per_1000_all_review == 2000.0


def test_the_cheapest_promised_threshold_keeps_the_promise(cases):
    free = choose_threshold(cases, 0.9)
    paid = choose_threshold(cases, 0.9, cost_matrix=3 * COSTS, cost_review=2.0)
    assert paid.threshold > free.threshold
    assert paid.costs.per_1000 == pytest.approx(slow_cost(cases, paid.threshold, 3 * COSTS, 2.0))
    assert paid.costs.per_1000 <= slow_cost(cases, free.threshold, 3 * COSTS, 2.0)


def test_equal_costs_are_those_of_one_number(cases):
    matrix = 10 * (1 - np.eye(3))
    by_matrix = choose_threshold(cases, 0.9, cost_matrix=matrix, cost_review=1)
    by_number = choose_threshold(cases, 0.9, cost_error=10, cost_review=1)
    assert by_matrix.threshold == by_number.threshold
    assert by_matrix.costs.per_1000 == pytest.approx(by_number.costs.per_1000)
    rows = risk_coverage(cases, cost_matrix=matrix, cost_review=1), risk_coverage(cases, cost_error=10, cost_review=1)
    assert [row.cost_per_1000 for row in rows[0]] == pytest.approx([row.cost_per_1000 for row in rows[1]])


def test_a_rule_keeps_its_matrix(cases):
    rule = choose_threshold(cases, 0.9, cost_matrix=COSTS, cost_review=2)
    assert RoutingRule.from_dict(rule.to_dict()) == rule
    assert rule.costs.matrix[1] == (50.0, 0.5, 2.0)


def test_classes_of_a_file_are_found_by_name(cases, tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("true,c,a,b\nb,2,50,0.5\na,1,0,5\nc,0,3,1\n")
    assert read_cost_matrix(path, cases).tolist() == COSTS.tolist()


@pytest.mark.parametrize("text", ["", "true,a,b\na,0,1\nb,1,0\n", "true,a,b,c\na,0,1\n", "true,a,b,c\na,0,x,1\n"])
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
        ({"cost_matrix": COSTS}, "one of the two"),
        ({"cost_matrix": COSTS, "cost_review": 1, "cost_error": 2}, "one of the two"),
        ({"cost_matrix": COSTS[:2], "cost_review": 1}, r"finite costs of at least 0 of shape \(3, 3\)"),
        ({"cost_matrix": -COSTS, "cost_review": 1}, "finite costs of at least 0"),
        ({"cost_matrix": COSTS, "cost_review": 0}, "cost_review must be finite and positive"),
    ],
)
def test_bad_costs_are_refused(cases, settings, message):
    with pytest.raises(InvalidInput, match=message):
        choose_threshold(cases, 0.9, **settings)
