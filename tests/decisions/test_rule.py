import numpy as np
import pytest
import torch

from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, RoutingRule, choose_threshold
from calibrant.errors import InvalidInput

ROWS = np.array([[0.9, 0.05, 0.05], [0.1, 0.85, 0.05], [0.2, 0.2, 0.6]])


def test_at_the_threshold_is_automated():
    routed = RoutingRule(threshold=0.85, n_classes=3).route(ROWS)
    assert routed.automate.tolist() == [True, True, False]
    assert routed.predicted.tolist() == [0, 1, 2]
    assert routed.confidence.tolist() == [0.9, 0.85, 0.6]
    assert routed.decisions == ["auto", "auto", "review"]


def test_each_class_its_own():
    rule = RoutingRule(threshold=None, n_classes=3, class_thresholds=(0.95, 0.8, None))
    assert rule.route(ROWS).automate.tolist() == [False, True, False]


def test_nothing_is_automated_without_a_threshold():
    rule = RoutingRule(threshold=None, n_classes=3)
    assert not rule.automates
    assert not rule.route(np.eye(3)).automate.any()
    assert RoutingRule(threshold=0.0, n_classes=3).route(ROWS).automate.all()


def test_torch_and_half_precision():
    rule = RoutingRule(threshold=0.85, n_classes=3)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert rule.route(torch.tensor(ROWS).to(dtype)).predicted.tolist() == [0, 1, 2]
    assert rule.decide(rule.probabilities(torch.tensor(ROWS).log(), "logits")).automate.tolist() == [True, True, False]


def test_a_probability_that_rounding_put_above_one_counts_as_one():
    rows = np.array([[1.0 + 1e-7, 0.0]], dtype=np.float32)
    assert rows.max() > 1
    assert RoutingRule(threshold=1.0, n_classes=2).route(rows).confidence.tolist() == [1.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [None, 0.4, 3.0])
def test_the_largest_logits_stay_numbers(temperature):
    calibrator = None if temperature is None else TemperatureScaling.known(temperature, 3)
    policy = Policy(3, calibrator, RoutingRule(threshold=0.9, n_classes=3))
    logits = np.array([[1e29, -1e29, 0.0], [-1e29, -1e29, -1e29], [-1e29, 0.0, 1.7e29]])
    routed = policy.decide(logits, "logits")
    np.testing.assert_allclose(routed.confidence, [1.0, 1 / 3, 1.0], rtol=1e-12)
    assert routed.decisions == ["auto", "review", "auto"]
    assert routed.predicted.tolist() == [0, 0, 2]


def test_rules_of_every_kind_are_kept(draw):
    for options in ({}, {"per_class": True}, {"cost_error": 5.0, "cost_review": 1.0}):
        rule = choose_threshold(draw(3000, class_names=["a", "b", "c"]), 0.95, **options)
        assert RoutingRule.from_dict(rule.to_dict()) == rule


def test_another_number_of_classes():
    rule = RoutingRule(threshold=0.9, n_classes=3)
    with pytest.raises(InvalidInput, match="made for 3 classes and cannot be applied to 2"):
        rule.route(np.array([[0.5, 0.5]]))


def test_bad_probabilities():
    rule = RoutingRule(threshold=0.9, n_classes=3)
    for probabilities in ([[0.5, 0.2, 0.2]], [[1.5, -0.5, 0.0]], [[np.nan, 0.5, 0.5]], [0.5, 0.3, 0.2]):
        with pytest.raises(InvalidInput):
            rule.route(np.array(probabilities))


@pytest.mark.parametrize(
    "fields",
    [
        {"threshold": 1.5},
        {"threshold": "0.9"},
        {"threshold": float("nan")},
        {"n_classes": 0},
        {"class_names": ("a",)},
        {"class_thresholds": (0.5,), "threshold": None},
        {"class_thresholds": (0.5, 0.5, 0.5)},
        {"class_thresholds": (0.5, 0.5, 2.0), "threshold": None},
        {"target_accuracy": 1.0},
        {"confidence": 0.0},
    ],
)
def test_a_rule_that_cannot_be_applied(fields):
    with pytest.raises(InvalidInput, match="must"):
        RoutingRule(**{"threshold": 0.9, "n_classes": 3, **fields})
