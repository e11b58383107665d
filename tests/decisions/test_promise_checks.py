import numpy as np
import pytest
import torch
from scipy.stats import beta

from calibrant import Predictions
from calibrant.decisions import RoutingRule, check_promise, choose_threshold
from calibrant.errors import InvalidInput


def cases(right, wrong, confidence=0.95):
    n = right + wrong
    return Predictions.from_probabilities(
        np.tile([confidence, 1 - confidence], (n, 1)), np.repeat([0, 1], [right, wrong])
    )


RULE = RoutingRule(threshold=0.9, n_classes=2, target_accuracy=0.9, confidence=0.95)


@pytest.mark.parametrize(
    ("right", "wrong", "held", "reached"), [(95, 5, True, True), (88, 12, True, False), (70, 30, False, False)]
)
def test_verdicts(right, wrong, held, reached):
    result = check_promise(RULE, cases(right, wrong))
    (line,) = result.groups
    assert (result.held, result.reached) == (held, reached)
    assert (line.automated, line.errors, line.accuracy) == (100, wrong, right / 100)
    assert line.low < line.accuracy < line.high


def test_an_accuracy_that_is_just_the_target_reaches_it():
    for percent in range(1, 100):
        rule = RoutingRule(threshold=0.9, n_classes=2, target_accuracy=percent / 100, confidence=0.95)
        assert check_promise(rule, cases(percent, 100 - percent)).reached, percent
        assert not check_promise(rule, cases(percent - 1, 101 - percent)).reached, percent


def test_the_intervals_of_all_classes_hold_together():
    # Class 0: 48 of 50 right; class 1: 20 of 30. Clopper and Pearson's ends at 1 - 0.1 / 2 for each of the two.
    counts = [(48, 50), (20, 30)]
    scores = np.repeat([[0.95, 0.05], [0.05, 0.95]], [50, 30], axis=0)
    targets = np.repeat([0, 1, 1, 0], [48, 2, 20, 10])
    rule = RoutingRule(threshold=None, n_classes=2, target_accuracy=0.9, class_thresholds=(0.9, 0.9))
    result = check_promise(rule, Predictions.from_probabilities(scores, targets), confidence=0.9)
    for line, (right, n) in zip(result.groups, counts, strict=True):
        assert line.low == pytest.approx(beta.ppf(0.025, right, n - right + 1), rel=1e-9)
        assert line.high == pytest.approx(beta.ppf(0.975, right + 1, n - right), rel=1e-9)
    assert [line.held for line in result.groups] == [True, False]
    assert (result.held, result.reached) == (False, False)


def test_a_case_that_is_just_sure_enough_is_checked():
    rule = RoutingRule(threshold=0.75, n_classes=2, target_accuracy=0.9)
    assert check_promise(rule, cases(3, 1, confidence=0.75)).groups[0].automated == 4


def test_nothing_automated_breaks_nothing():
    result = check_promise(RULE, cases(5, 5, confidence=0.6))
    assert (result.held, result.reached, result.tested) == (True, True, False)
    assert result.groups[0].accuracy is None
    assert check_promise(RULE, cases(5, 5)).tested


def test_a_kept_promise_is_rarely_called_broken():
    rng = np.random.default_rng(0)
    wrong = rng.binomial(200, 0.1, size=1000)
    broken = sum(not check_promise(RULE, cases(200 - k, k)).held for k in wrong)
    assert broken <= 45  # 25 expected at most; 45 is four deviations away


def test_per_class_finds_the_class(draw):
    predictions = draw(3000, class_names=["a", "b", "c"])
    rule = choose_threshold(predictions, 0.9, per_class=True)
    fresh = draw(3000, seed=1)
    assert check_promise(rule, fresh).held
    spoiled = np.where((fresh.predicted == 2) & (np.arange(3000) % 3 == 0), 0, fresh.targets)
    result = check_promise(rule, Predictions.from_logits(fresh.logits, spoiled))
    assert [line.name for line in result.groups if not line.held] == ["c"]
    assert not result.held


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_names_decide_over_the_order_of_columns(draw, kind):
    rule = choose_threshold(draw(3000, class_names=["a", "b", "c"]), 0.9, per_class=True)
    fresh = draw(800, seed=4, class_names=["a", "b", "c"])
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probabilities
    scores = torch.tensor(fresh.logits if kind == "logits" else fresh.probabilities).bfloat16()
    turned = make(scores[:, [2, 0, 1]], np.array([1, 2, 0])[fresh.targets], class_names=["c", "a", "b"])
    expected = check_promise(rule, make(scores, fresh.targets, class_names=["a", "b", "c"]))
    assert check_promise(rule, turned) == expected
    assert expected.reached


def test_numbers_as_names_decide_too(draw):
    rule = choose_threshold(draw(3000), 0.9, per_class=True)
    fresh = draw(800, seed=4)
    turned = Predictions.from_logits(
        fresh.logits[:, [2, 0, 1]], np.array([1, 2, 0])[fresh.targets], class_names=["2", "0", "1"]
    )
    assert check_promise(rule, turned) == check_promise(rule, fresh)


def test_what_cannot_be_checked(draw):
    with pytest.raises(InvalidInput, match="no promise to check"):
        check_promise(RoutingRule(threshold=0.9, n_classes=3), draw(50))
    with pytest.raises(InvalidInput, match="made for 2 classes"):
        check_promise(RULE, draw(50))
    named = choose_threshold(draw(500, class_names=["a", "b", "c"]), 0.9)
    with pytest.raises(InvalidInput, match="name the classes a, b, c, got d"):
        check_promise(named, draw(50, class_names=["a", "c", "d"]))
    nameless = choose_threshold(draw(500), 0.9)
    with pytest.raises(InvalidInput, match=r"name the classes 0\.\.2, got a, b, c\..*fit on predictions"):
        check_promise(nameless, draw(50, class_names=["a", "b", "c"]))
    with pytest.raises(InvalidInput, match="confidence must"):
        check_promise(RULE, cases(5, 5), confidence=1.0)


def patients(seed, right_share, n=60, together=10):
    """Each patient's cases are all right or all wrong; confidences lie around the threshold of the rule."""
    rng = np.random.default_rng(seed)
    right = np.repeat(rng.random(n) < right_share, together)
    top = rng.uniform(0.7, 1.0, size=n * together)
    extras = {"patient": np.arange(n * together) // together}
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1), extras=extras)


def test_a_check_of_a_rule_for_clusters_goes_by_clusters():
    """A kept promise is called broken in at most 2.5 % of draws; by rows it would be in more than a quarter."""
    rule = RoutingRule(0.8, 2, 0.9, 0.95, clusters=60, cluster_column="patient", largest_cluster=10)
    by_row = RoutingRule(0.8, 2, 0.9, 0.95)
    draws = [patients(seed, 0.9) for seed in range(200)]
    assert sum(not check_promise(rule, cases).held for cases in draws) <= 10
    assert sum(not check_promise(by_row, cases).held for cases in draws) > 30
    assert sum(not check_promise(rule, patients(seed, 0.6)).held for seed in range(20)) == 20


def test_a_check_of_a_rule_for_clusters_needs_their_column():
    rule = RoutingRule(0.8, 2, 0.9, 0.95, clusters=60, cluster_column="ward", largest_cluster=10)
    with pytest.raises(InvalidInput, match="clusters must"):
        check_promise(rule, patients(0, 0.9))
