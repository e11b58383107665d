import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.calibration import IsotonicCalibration, TemperatureScaling
from calibrant.decisions import RoutingRule, check_promise, choose_shortlist, choose_threshold
from calibrant.errors import InvalidInput
from calibrant.report import read_entries
from calibrant.report.judged import judged
from calibrant.training import Run


@pytest.fixture
def halves(make):
    """Overconfident predictions: half to fit on, half to show."""
    return make(n=4000, sharpness=3.0).split(0.5, seed=0)


@pytest.fixture
def run(run_folder):
    """A run with a calibrator and a rule that was chosen behind it."""
    run = Run.open(run_folder)
    some, rest = run.predictions("test").split(0.5, seed=0)
    calibrator = TemperatureScaling().fit(some)
    calibrator.save(run.calibrator_path)
    choose_threshold(calibrator(rest), 0.8).save(run.rule_path)
    return run


def test_calibrated_and_raw_stand_side_by_side(halves):
    some, rest = halves
    calibrator = TemperatureScaling().fit(some)
    calibrated, raw = judged(read_entries({"nll": rest}), calibrator=calibrator)
    assert (calibrated.entry.name, raw.entry.name) == ("nll (calibrated)", "nll (raw)")
    assert raw.entry.predictions is rest
    assert calibrated.raw_name == raw.entry.name
    assert calibrated.calibration == f"temperature scaling, T = {calibrator.temperature_:.4g}"
    np.testing.assert_allclose(calibrated.entry.predictions.probabilities, calibrator(rest).probabilities)
    assert evaluate(calibrated.entry.predictions).ece < evaluate(rest).ece


def test_the_rules_promise_is_checked_behind_the_calibrator(halves):
    some, rest = halves
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(some), 0.9)
    shown = judged(read_entries(rest), calibrator=calibrator, rule=rule)[0]
    check = check_promise(rule, calibrator(rest))
    assert check.held
    assert shown.promise[0] == rule.note
    assert f"{100 * check.groups[0].automated / check.cases:.1f}" in shown.promise[1]
    assert "The promise holds here." in shown.promise[1]
    assert shown.threshold == rule.threshold


def test_a_rule_with_a_temperature_brings_its_own_calibration(halves):
    some, rest = halves
    rule = choose_threshold(some, 0.9, temperature=2.5)
    calibrated, raw = judged(read_entries(rest), rule=rule)
    np.testing.assert_allclose(calibrated.entry.predictions.logits, rest.logits / 2.5, rtol=1e-6)
    assert "temperature 2.5" in calibrated.calibration
    assert calibrated.promise[0] == rule.note
    assert raw.promise == ()


def test_in_sample_numbers_are_named_so(halves, tmp_path):
    halves[0].save(tmp_path / "val.npz")
    read = Predictions.load(tmp_path / "val.npz")
    for source, named in ((read, True), (halves[1], False)):
        calibrated, raw = judged(read_entries({"nll": source}), calibrator=TemperatureScaling().fit(read))
        assert any(note.startswith("In-sample") for note in calibrated.notes) is named
        assert raw.notes == ()


def test_a_broken_promise_is_said_so(halves):
    rule = RoutingRule(threshold=0.1, n_classes=4, target_accuracy=0.999, confidence=0.95, note="A promise.")
    (shown,) = judged(read_entries(halves[1]), rule=rule)
    assert "The promise is BROKEN here: the cases contradict it." in shown.promise[1]


def test_a_promise_about_no_case_is_not_said_to_hold():
    rule = RoutingRule(threshold=1.0, n_classes=4, target_accuracy=0.9, confidence=0.95, note="A promise.")
    doubtful = Predictions.from_logits(np.zeros((5, 4)), np.zeros(5, int))
    (shown,) = judged(read_entries(doubtful), rule=rule)
    assert shown.promise[1].endswith("So these cases say nothing about the promise.")
    assert "holds" not in shown.promise[1]


@pytest.mark.parametrize("class_thresholds", [None, (0.5, None, 0.5, 0.9)])
def test_rules_without_one_threshold_or_without_a_promise(halves, class_thresholds):
    rule = RoutingRule(threshold=None, n_classes=4, class_thresholds=class_thresholds, note="A note.")
    (shown,) = judged(read_entries(halves[1]), rule=rule)
    assert shown.threshold is None
    assert shown.promise[0] == "A note."
    assert ("decides no case alone" in shown.promise[1]) == (class_thresholds is None)
    assert not any("promise" in sentence for sentence in shown.promise)


def test_the_runs_own_calibrator_and_rule_are_used_and_named(run):
    calibrated, raw = judged(read_entries(run))
    assert calibrated.entry.name == "nll (calibrated)"
    assert calibrated.notes[0] == "Found in the run and used: calibrator.json, rule.json."
    assert "In-sample: the calibrator was fitted on some of these cases" in calibrated.notes[1]
    assert len(calibrated.notes) == 2
    assert calibrated.promise[0] == RoutingRule.load(run.rule_path).note
    assert raw.promise == ()
    assert [shown.entry.name for shown in judged(read_entries(run), raw=True)] == ["nll"]


def test_what_is_given_stands_in_place_of_the_runs_own(run):
    other = IsotonicCalibration().fit(run.predictions("test"))
    rule = choose_threshold(other(run.predictions("test")), 0.7)
    shown = judged(read_entries(run), calibrator=other, rule=rule)[0]
    assert shown.calibration == "the isotonic map"
    assert not any("Found in the run" in note for note in shown.notes)


def test_calibrated_predictions_are_not_calibrated_again(run):
    path = run.predictions_path("test", calibrated=True)
    TemperatureScaling().fit(run.predictions("test"))(run.predictions("test")).save(path)
    assert [shown.entry.name for shown in judged(read_entries(path))] == ["nll"]


def test_a_rule_of_raw_scores_decides_by_raw_scores(run):
    rule = choose_threshold(run.predictions("test"), 0.7)
    rule.save(run.rule_path)
    raw, calibrated = judged(read_entries(run))
    assert (raw.entry.name, calibrated.entry.name) == ("nll (raw)", "nll (calibrated)")
    assert any("decides by these" in note for note in raw.notes)
    assert "The rule was chosen on these very cases, so they are no test of its promise." in raw.promise[1]


def test_a_rule_without_its_calibrator_is_refused(run):
    run.calibrator_path.unlink()
    with pytest.raises(InvalidInput, match="rule must come with the calibrator"):
        judged(read_entries(run))


def test_a_shortlist_says_how_often_it_held(halves):
    some, rest = halves
    rule = choose_threshold(some, 0.99, confidence=0.5)
    shortlist = choose_shortlist(some, 0.9, rule=rule)
    (shown,) = judged(read_entries(rest), rule=rule, shortlist=shortlist)
    assert shown.promise[2].startswith(f"Shortlist: {shortlist.note} Here it holds the true class of")


def test_one_calibrator_for_several_sources_is_refused(predictions):
    with pytest.raises(InvalidInput, match="calibrator must be given for one source"):
        judged(read_entries([predictions, predictions]), calibrator=TemperatureScaling().fit(predictions))


def test_classes_in_another_order_are_put_right(halves):
    some, rest = halves
    named = [Predictions.from_logits(p.logits, p.targets, class_names=list("abcd")) for p in (some, rest)]
    rule = choose_threshold(named[0], 0.8)
    turned = Predictions.from_logits(rest.logits[:, ::-1], 3 - rest.targets, class_names=list("dcba"))
    assert judged(read_entries(turned), rule=rule)[0].promise == judged(read_entries(named[1]), rule=rule)[0].promise


def test_classes_that_are_never_decided_alone_are_named(halves):
    rest = halves[1]
    rule = RoutingRule(threshold=None, n_classes=4, class_thresholds=(0.5, None, 0.5, None), note="A note.")
    (shown,) = judged(read_entries(rest), rule=rule)
    one, three = (sum(target == k for target in rest.targets) for k in (1, 3))
    assert f"Never decided alone, with their numbers of cases here: 1 ({one:,}), 3 ({three:,})." in shown.never
    (every,) = judged(read_entries(rest), rule=RoutingRule(threshold=0.5, n_classes=4, note="A note."))
    assert every.never == ""
    (no_case,) = judged(read_entries(rest), rule=RoutingRule(threshold=None, n_classes=4, note="A note."))
    assert no_case.never == ""
    named = [f"class {k}" for k in range(30)]
    unmet = Predictions.from_logits(np.eye(30)[:1] * 9, [0], class_names=named)
    many = RoutingRule(threshold=None, n_classes=30, class_thresholds=(0.5, *[None] * 29), class_names=tuple(named))
    assert "class 20 (0) and 9 more." in judged(read_entries(unmet), rule=many)[0].never
