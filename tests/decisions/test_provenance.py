import warnings

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import (
    RoutingRule,
    calibrator_for,
    cheapest_threshold,
    choose_threshold,
    chosen_behind,
    unseen,
)
from calibrant.errors import CalibrantWarning, InvalidInput


def _promised(cases):
    return choose_threshold(cases, 0.95)


def _cheapest(cases):
    return cheapest_threshold(cases, cost_error=50.0, cost_review=1.0)


@pytest.fixture
def read(tmp_path):
    """Overconfident predictions, read from a file."""
    rng = np.random.default_rng(0)
    z = 8.0 * rng.normal(size=(2000, 3))
    rows = Predictions.from_logits(2.0 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))
    rows.save(tmp_path / "val.npz")
    return Predictions.load(tmp_path / "val.npz")


def test_a_rule_knows_what_it_was_chosen_on_and_behind(read, tmp_path):
    some, rest = read.split(0.2, seed=3)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.95)
    assert (rule.fitted_on, rule.calibrated_by) == (read.origin.sha256, calibrator.digest)
    rule.save(tmp_path / "rule.json")
    assert chosen_behind(RoutingRule.load(tmp_path / "rule.json"), calibrator)
    assert not chosen_behind(rule, TemperatureScaling().fit(rest))
    assert not chosen_behind(choose_threshold(read, 0.95), calibrator)


def test_a_rule_is_chosen_on_what_the_calibrator_has_not_seen(read):
    some, rest = read.split(0.2, seed=3)
    left = unseen(TemperatureScaling().fit(some), read)
    np.testing.assert_array_equal(left.logits, rest.logits)
    np.testing.assert_array_equal(unseen(TemperatureScaling().fit(rest), read).logits, some.logits)
    with pytest.raises(InvalidInput, match="predictions"):
        unseen(TemperatureScaling().fit(read), read)
    # Of arrays nobody can tell.
    assert unseen(TemperatureScaling().fit(read.logits, read.targets), read) is read


def test_another_calibrator_is_refused_and_a_missing_one_is_named(read, tmp_path):
    some, rest = read.split(0.2, seed=3)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.95)
    other = Predictions.from_logits(read.logits, read.targets)
    assert calibrator_for(rule, calibrator, other.origin) is calibrator
    with pytest.raises(InvalidInput, match="calibrator"):
        calibrator_for(rule, TemperatureScaling().fit(rest), other.origin)
    calibrator.save(tmp_path / "calibrator.json")
    with pytest.warns(CalibrantWarning, match="add --calibrator"):
        assert calibrator_for(rule, None, other.origin, near=[tmp_path / "calibrator.json"]) is None


def test_raw_scores_for_a_rule_of_calibrated_ones_are_named_without_the_calibrator(read):
    some, rest = read.split(0.2, seed=3)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.95)
    with pytest.warns(CalibrantWarning, match="a calibrator made, .* If .*val.npz holds raw scores"):
        calibrator_for(rule, None, read.origin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator_for(rule, None, calibrator(rest).origin)
        calibrator_for(choose_threshold(rest, 0.95), None, read.origin)


def _calibrated(read, some, folder):
    """A calibrator that was fitted on some cases, all cases behind it as a file, and the calibrator's file."""
    calibrator, file = TemperatureScaling().fit(some), folder / "val.calibrated.npz"
    calibrator(read).save(file)
    calibrator.provenance_ = calibrator.provenance_.applied(folder / "val.npz", file)
    calibrator.save(folder / "calibrator.json")
    return calibrator, Predictions.load(file), [folder / "calibrator.json"]


def test_calibrated_scores_for_a_rule_of_raw_ones_are_named(read, tmp_path):
    some, rest = read.split(0.2, seed=3)
    rule = choose_threshold(rest, 0.95)
    _, made, near = _calibrated(read, some, tmp_path)
    with pytest.warns(CalibrantWarning, match="calibrator.json made .*val.calibrated.npz, but the rule does not say"):
        calibrator_for(rule, None, made.origin, near=near)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator_for(rule, None, read.origin, near=near)
        calibrator_for(choose_threshold(made, 0.95), None, made.origin, near=near)
        calibrator_for(RoutingRule(threshold=0.9, n_classes=3), None, made.origin, near=near)  # written by hand


@pytest.mark.parametrize("choose", [_promised, _cheapest])
def test_a_rule_saved_from_python_warns_as_one_of_the_command(choose, read, tmp_path):
    calibrator, made, near = _calibrated(read, read, tmp_path)
    arrays = Predictions.from_logits(read.logits, read.targets)
    choose(arrays).save(tmp_path / "rule.json")
    rule, behind = RoutingRule.load(tmp_path / "rule.json"), choose(calibrator(arrays))
    with pytest.warns(CalibrantWarning, match="the rule does not say that it was fitted on its scores"):
        calibrator_for(rule, None, made.origin, near=near)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator_for(rule, None, arrays.origin, near=near)
        calibrator_for(behind, None, made.origin, near=near)
    # Where a file or a calibrator says it, nothing is added to the rule.
    assert [each.of_arrays for each in (rule, choose(read), behind)] == [True, None, None]
