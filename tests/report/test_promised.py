import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import choose_threshold
from calibrant.report import build_page, read_entries
from calibrant.report.judged import judged
from calibrant.report.promised import promised, promised_by, validation_of
from calibrant.training import Run


@pytest.fixture
def run(run_folder, make):
    """A run whose validation cases allow promises."""
    run = Run.open(run_folder)
    make(n=4000, seed=1, strength=5.0).save(run.predictions_path("val"))
    make(n=3000, seed=2, strength=5.0).save(run.predictions_path("test"))
    return run


def test_each_share_is_that_of_the_rule_from_validation(run):
    val, test = run.predictions("val"), run.predictions("test")
    found = promised(test, validation_of(run, test, None))
    for target in (0.98, 0.99):
        threshold = choose_threshold(val, target).threshold
        assert found[target][0] == np.mean(test.confidence >= threshold) > 0
        low, high = found[target][1]
        assert low < found[target][0] < high


def test_overconfidence_buys_nothing_at_equal_promises(make):
    val, test = make(n=4000, seed=1, strength=5.0), make(n=4000, seed=2, strength=5.0)
    loud = [p.with_logits(3.0 * p.logits) for p in (val, test)]
    at_confidence = (loud[1].confidence >= 0.95).mean() - (test.confidence >= 0.95).mean()
    plain, sure = promised(test, val), promised(loud[1], loud[0])
    for target in (0.98, 0.99):
        # Not 0: the thresholds that are tried lie on a grid of confidences.
        assert abs(sure[target][0] - plain[target][0]) < 0.25 * at_confidence


def test_a_calibrator_leaves_the_cases_that_it_has_not_seen(run):
    val, test = run.predictions("val"), run.predictions("test")
    some, rest = val.split(0.25, seed=3)
    calibrator = TemperatureScaling().fit(some)
    found = validation_of(run, test, calibrator)
    np.testing.assert_array_equal(found.targets, rest.targets)
    np.testing.assert_allclose(found.logits, calibrator(rest).logits)
    assert validation_of(run, test, TemperatureScaling().fit(val)) is None
    unknown = TemperatureScaling().fit(Predictions.from_logits(val.logits, val.targets))
    assert validation_of(run, test, unknown) is None
    assert validation_of(run, val, None) is None
    assert validation_of(None, test, None) is None


def test_a_rule_that_makes_the_promise_stands_for_itself(run):
    val, test = run.predictions("val"), run.predictions("test")
    rule = choose_threshold(val, 0.99)
    assert promised_by(rule, test) == {0.99: promised(test, val)[0.99]}
    assert promised_by(rule, val) == {}
    assert promised_by(choose_threshold(val, 0.97), test) == {}
    assert promised_by(choose_threshold(val, 0.99, per_class=True), test) == {}
    (shown,) = judged(read_entries({"alone": test}), rule=rule)
    assert list(shown.promised) == [0.99]


def test_the_page_compares_at_equal_promises_and_marks_no_share_at_a_confidence(run, make, visible_text):
    html = build_page({"a": run, "b": make(n=3000, seed=5, sharpness=3.0)}, n_resamples=0, pictures=False)
    text = visible_text(html)
    assert "May automate at 98 % promised" in text
    assert "That is known for 1 of 2 methods" in text
    alone = visible_text(build_page({"a": make(seed=1), "b": make(seed=2, sharpness=3.0)}, n_resamples=0))
    assert "cannot be said, because no validation cases are known" in alone
    assert "May automate at" not in alone


def test_where_nothing_can_be_promised_the_share_is_nothing_and_certain(run, make):
    assert promised(run.predictions("test"), make(n=50, seed=1)) == {0.98: (0.0, None), 0.99: (0.0, None)}
