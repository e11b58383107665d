"""What follows a training: temperature, rule, predictions and page of it, each on cases of its own."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, choose_threshold
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.integrations.any_loop import judge


def some(n, *, seed=0, scale=4.0):
    """Overconfident logits: the labels are drawn from a softmax of half of them."""
    generator = np.random.default_rng(seed)
    logits = scale * generator.normal(size=(n, 3))
    chances = np.exp(logits / 2) / np.exp(logits / 2).sum(axis=1, keepdims=True)
    targets = (chances.cumsum(axis=1) < generator.random((n, 1))).sum(axis=1)
    return Predictions.from_logits(logits, targets, class_names=["a", "b", "c"])


def test_each_part_has_cases_of_its_own_and_everything_is_written(tmp_path):
    validation, test = some(3000), some(1000, seed=1)
    found = judge(tmp_path / "new" / "folder", validation, test, target_accuracy=0.9, name="toy")
    first, rest = validation.split(0.1, seed=0)
    calibrator = TemperatureScaling().fit(first)
    assert found.policy.calibrator.temperature_ == calibrator.temperature_ == pytest.approx(2, abs=0.4)
    assert found.policy.rule.threshold == choose_threshold(calibrator(rest), 0.9).threshold
    assert found.raw == evaluate(test)
    assert found.calibrated == evaluate(calibrator(test))
    assert found.calibrated.nll < found.raw.nll
    folder = tmp_path / "new" / "folder"
    assert found.page == folder / "report.html"
    assert "toy" in found.page.read_text()
    for split, given in (("val", validation), ("test", test)):
        kept = Predictions.load(folder / "predictions" / f"{split}.npz")
        np.testing.assert_array_equal(kept.logits, given.logits)
    assert Policy.load(folder / "policy.json").digest == found.policy.digest
    shown = repr(found).splitlines()
    assert shown[0] == f"Judgement: {found.page}"
    assert shown[-1].split() == ["may", "be", "automated", f"{found.policy.routing.automation_rate:.1%}"]


def test_without_test_cases_the_page_shows_what_the_temperature_has_not_seen(tmp_path):
    validation = some(500)
    found = judge(tmp_path, validation)
    assert found.raw == evaluate(validation.split(0.2, seed=0)[1])
    assert not (tmp_path / "predictions" / "test.npz").exists()


def test_a_temperature_that_harms_the_test_cases_is_told(tmp_path):
    too_sure, too_timid = some(500, scale=4.0), some(500, seed=1)
    timid = Predictions.from_logits(0.2 * too_timid.logits, too_timid.targets, class_names=["a", "b", "c"])
    with pytest.warns(CalibrantWarning, match="made the NLL"):
        judge(tmp_path, too_sure, timid)


def test_bad_input_is_one_line_and_writes_nothing(tmp_path):
    with pytest.raises(InvalidInput, match=r"^target_accuracy must"):
        judge(tmp_path / "out", some(200), target_accuracy=99)
    other = some(200)
    named = Predictions.from_logits(other.logits, other.targets, class_names=["a", "b", "x"])
    with pytest.raises(InvalidInput, match="name the classes a, b, c, got x"):
        judge(tmp_path / "out", some(200), named)
    assert not (tmp_path / "out").exists()


def test_thirty_cases_get_a_cautious_temperature(tmp_path):
    found = judge(tmp_path, some(30, scale=4.0))
    assert found.policy.calibrator.summary_.cases == 15
    fitted = TemperatureScaling(prior_scale=None).fit(some(30, scale=4.0).split(0.5, seed=0)[0])
    assert 1.0 < found.policy.calibrator.temperature_ < fitted.temperature_
