"""Policies: parts that fit together, decisions on raw scores, and files that were changed."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling, make_calibrator
from calibrant.decisions import (
    Policy,
    RoutingRule,
    check_policy,
    choose_binary_rule,
    choose_shortlist,
    choose_threshold,
    fit_policy,
)
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import parse_json


@pytest.fixture
def read(tmp_path, draw):
    """Overconfident predictions, read from a file."""
    draw(2000, temperature=2.0, class_names=["a", "b", "c"]).save(tmp_path / "val.npz")
    return Predictions.load(tmp_path / "val.npz")


@pytest.fixture(scope="module")
def policy(draw):
    cases = draw(1500, class_names=["a", "b", "c"], temperature=1.5)
    some, rest = cases.split(0.2, seed=0)
    start = Policy(3, TemperatureScaling().fit(some)).with_rule(None)
    start = start.with_rule(choose_threshold(start.calibrate(rest), 0.95))
    other = start.calibrate(draw(1500, seed=1, class_names=["a", "b", "c"], temperature=1.5))
    return replace(start, shortlist=choose_shortlist(other, rule=start.routing))


def test_decisions_are_those_of_the_calibrated_probabilities(draw):
    raw = draw(500, temperature=3.0)
    policy = Policy(3, TemperatureScaling.known(3.0, 3), RoutingRule(0.9, 3))
    # An independent way: softmax(logits / 3).
    scaled = np.exp(raw.logits / 3.0 - (raw.logits / 3.0).max(axis=1, keepdims=True))
    probabilities = scaled / scaled.sum(axis=1, keepdims=True)
    routed = policy.decide(raw)
    np.testing.assert_allclose(routed.confidence, probabilities.max(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(routed.automate, probabilities.max(axis=1) >= 0.9)
    np.testing.assert_array_equal(policy.decide(raw.logits, "logits").automate, routed.automate)
    np.testing.assert_allclose(
        policy.decide(raw.probabilities, "probabilities").confidence, routed.confidence, rtol=1e-9
    )


def test_fit_policy_keeps_the_cases_of_the_calibrator_and_of_the_rule_apart(read):
    policy = fit_policy(read, 0.95, share=0.2, seed=3)
    some, rest = read.split(0.2, seed=3)
    expected = TemperatureScaling().fit(some)
    assert policy.calibrator.temperature_ == expected.temperature_
    assert policy.rule == choose_threshold(expected(rest), 0.95)
    assert policy.rule.fitted_on == read.origin.sha256
    plain = fit_policy(read, 0.95, calibrator=None)
    assert (plain.calibrator, plain.rule) == (None, choose_threshold(read, 0.95))


def test_a_rule_may_be_chosen_only_on_what_the_calibrator_has_not_seen(read):
    some, rest = read.split(0.2, seed=3)
    left = Policy(3, TemperatureScaling().fit(some)).unseen(read)
    np.testing.assert_array_equal(left.logits, rest.logits)
    np.testing.assert_array_equal(Policy(3, TemperatureScaling().fit(rest)).unseen(read).logits, some.logits)
    with pytest.raises(InvalidInput, match="predictions"):
        Policy(3, TemperatureScaling().fit(read)).unseen(read)
    # Nobody can tell this of arrays.
    assert Policy(3, TemperatureScaling().fit(read.logits, read.targets)).unseen(read) is read


def test_nothing_is_calibrated_twice(read, tmp_path):
    policy = Policy(3, TemperatureScaling().fit(read))
    calibrated = policy.calibrate(read)
    with pytest.raises(InvalidInput, match="calibrated already"):
        policy.calibrate(calibrated)
    calibrated.save(tmp_path / "val.calibrated.npz")
    with pytest.raises(InvalidInput, match="calibrated already"):
        policy.calibrate(Predictions.load(tmp_path / "val.calibrated.npz"))


def test_a_warning_says_which_parts_have_seen_the_cases(read, tmp_path):
    policy = fit_policy(read, 0.95, share=0.2)
    with pytest.warns(CalibrantWarning, match="the calibrator and the rule of this policy saw cases of"):
        check_policy(policy, read)
    fresh = Predictions.from_logits(read.logits, read.targets, class_names=read.class_names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_policy(policy, fresh)


def test_another_calibrator_takes_the_rule_away(policy, read):
    assert policy.with_calibrator(policy.calibrator).rule == policy.rule
    other = policy.with_calibrator(TemperatureScaling().fit(read))
    assert (other.rule, other.shortlist) == (None, None)
    assert policy.with_rule(RoutingRule(0.5, 3)).shortlist is None


def test_names_decide_the_order_of_columns(policy, draw):
    raw = draw(300, seed=5, class_names=["a", "b", "c"])
    turned = Predictions.from_logits(
        raw.logits[:, [2, 0, 1]], np.array([1, 2, 0])[raw.targets], class_names=["c", "a", "b"]
    )
    np.testing.assert_array_equal(policy.decide(turned).predicted, policy.decide(raw).predicted)
    with pytest.raises(InvalidInput, match="classes"):
        policy.decide(draw(10, class_names=["a", "b", "x"]))


def test_names_decide_the_order_of_the_columns_of_a_frame(policy, draw):
    raw = draw(300, seed=5)
    frame = pd.DataFrame(raw.logits, columns=["a", "b", "c"])
    turned = policy.decide(frame[["c", "a", "b"]], "logits")
    np.testing.assert_array_equal(turned.predicted, policy.decide(raw.logits, "logits").predicted)


def test_without_a_rule_every_case_goes_to_a_person(draw):
    policy = Policy(3, TemperatureScaling.known(2.0, 3))
    assert not policy.automates
    assert not policy.decide(draw(50)).automate.any()
    assert "every case goes to a person" in policy.describe()


def test_a_rule_for_sensitivity_is_kept_and_refused_where_it_cannot_decide(tmp_path, draw):
    cases = Predictions.from_binary(np.linspace(-4, 4, 400), (np.arange(400) % 3 == 0).astype(int), kind="logits")
    policy = Policy(2, rule=choose_binary_rule(cases, sensitivity=0.9))
    policy.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").rule == policy.rule
    assert "sensitivity" in repr(policy)
    with pytest.raises(InvalidInput, match="route binary"):
        policy.decide(cases)


@pytest.mark.parametrize(
    "parts",
    [
        {"n_classes": 1},
        {"n_classes": "3"},
        {"calibrator": TemperatureScaling.known(2.0, 4)},
        {"calibrator": TemperatureScaling()},
        {"rule": RoutingRule(0.9, 4)},
        {"rule": RoutingRule(0.9, 3, class_names=("a", "b", "c")), "class_names": ("a", "c", "b")},
        {"class_names": ("a", "b")},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts):
    with pytest.raises(InvalidInput):
        Policy(**{"n_classes": 3, **parts})


def test_a_shortlist_of_another_rule_is_refused(policy):
    with pytest.raises(InvalidInput, match="shortlist"):
        replace(policy, rule=RoutingRule(0.123, 3))


@pytest.mark.parametrize("method", ["none", "temperature", "vector", "beta", "isotonic", "histogram-top"])
def test_what_is_saved_is_loaded_and_decides_the_same(tmp_path, draw, method):
    raw = draw(600, temperature=0.5)
    policy = Policy(3, make_calibrator(method).fit(raw), RoutingRule(0.8, 3))
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert again.digest == policy.digest
    assert again.to_dict() == policy.to_dict()
    np.testing.assert_array_equal(again.decide(raw).confidence, policy.decide(raw).confidence)


def test_the_digest_names_what_decides(policy):
    assert replace(policy, rule=replace(policy.rule, threshold=0.77), shortlist=None).digest != policy.digest
    assert replace(policy, shortlist=None).digest != policy.digest
    warmer = TemperatureScaling.known(policy.calibrator.temperature_ + 1e-9, 3)
    assert replace(policy, calibrator=warmer).digest != policy.digest


def test_a_flipped_bit_is_refused_or_changes_nothing(policy, tmp_path):
    """The same number has several spellings (1e-07 and 1E-07): those alone are read."""
    policy.save(tmp_path / "policy.json")
    content = (tmp_path / "policy.json").read_bytes()
    for place in range(0, 8 * len(content), 3):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            found = Policy.from_dict(parse_json(bytes(damaged), "here"))
        except InvalidInput:
            continue
        assert found.to_dict() == policy.to_dict()


def test_a_file_without_a_digest_is_refused(policy, tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(policy.to_dict()))
    with pytest.raises(InvalidInput, match="digest"):
        Policy.load(tmp_path / "policy.json")


@pytest.mark.parametrize("content", [None, [], "policy", 3, {}, {"format": "calibrant-policy", "version": 9}])
def test_something_else_is_refused(content):
    with pytest.raises(InvalidInput, match=r"policy written by calibrant|version"):
        Policy.from_dict(content)


STRANGE = [None, True, -1, 0, 0.5, 1e308, 10**30, "x", "", [], {}, [[]], ["a"] * 3, {"a": 1}]


def test_any_value_in_any_place_is_refused_or_can_be_used(policy, draw):
    """Reading and using edited content gives an answer or one short sentence, nothing else."""
    predictions, content = draw(50, class_names=["a", "b", "c"], temperature=1.5), policy.to_dict()
    used, refusals = 0, []
    owners = [content, *(part for part in content.values() if isinstance(part, dict))]
    owners += [inner for part in owners[1:] for inner in part.values() if isinstance(inner, dict)]
    for owner in owners:
        for name in list(owner):
            kept = owner[name]
            for value in STRANGE:
                owner[name] = value
                try:
                    found = Policy.from_dict(content, where="here")
                    found.decide(predictions)
                    repr(found)
                    used += 1
                except InvalidInput as error:
                    refusals.append(str(error))
            owner[name] = kept
    assert used > 10
    assert max(map(len, refusals)) < 400


def test_evidence_that_no_cases_can_give_is_refused(draw):
    content = choose_threshold(draw(), 0.95).to_dict()
    for counts in ({"cases": 0, "automated": 0, "errors": 0}, {"automated": 10**6}, {"errors": -1}):
        with pytest.raises(InvalidInput, match="evidence"):
            RoutingRule.from_dict(content | {"evidence": content["evidence"] | counts})
    for damage in ({"cases": "many"}, {"extra": 1}, {"errors": None}):
        with pytest.raises(InvalidInput, match=f"evidence.{next(iter(damage))}"):
            RoutingRule.from_dict(content | {"evidence": content["evidence"] | damage})


def test_bad_scores_are_named(policy):
    with pytest.raises(InvalidInput, match="kind"):
        policy.decide(np.zeros((2, 3)))
    with pytest.raises(InvalidInput, match="3 classes"):
        policy.decide(np.zeros((2, 4)), "logits")
    with pytest.raises(InvalidInput, match="row 1"):
        policy.decide(np.array([[0.0, 1.0, 2.0], [0.0, np.nan, 1.0]]), "logits")


def test_a_calibrator_that_is_a_class_or_is_not_fitted_is_refused():
    with pytest.raises(InvalidInput, match="calibrator must be a fitted calibrator, got <class"):
        Policy(2, TemperatureScaling)
    with pytest.raises(InvalidInput, match="not fitted yet: call fit"):
        Policy(2, TemperatureScaling())
