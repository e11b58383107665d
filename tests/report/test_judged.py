"""What the page shows of each source: calibrated and raw scores, and what a policy promises."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.calibration import IsotonicCalibration, TemperatureScaling
from calibrant.decisions import Policy, RoutingRule, check_promise, choose_shortlist, choose_threshold, fit_policy
from calibrant.errors import InvalidInput
from calibrant.report import read_entries, write_report
from calibrant.report.judged import judged
from calibrant.training import Run
from tests.report.conftest import build_page


@pytest.fixture
def halves(make):
    """Overconfident predictions: half to fit on, half to show."""
    return make(n=4000, sharpness=3.0).split(0.5, seed=0)


@pytest.fixture
def run(run_folder):
    """A run with a policy."""
    run = Run(run_folder)
    fit_policy(run.predictions("test"), 0.8, share=0.5).save(run.policy_path)
    return run


@pytest.fixture
def promising(run_folder, make):
    """A run whose validation cases allow promises."""
    run = Run(run_folder)
    make(n=4000, seed=1, strength=5.0).save(run.predictions_path("val"))
    make(n=3000, seed=2, strength=5.0).save(run.predictions_path("test"))
    return run


def with_rule(rule):
    return Policy(rule.n_classes, rule=rule)


def test_calibrated_and_raw_stand_side_by_side(halves):
    some, rest = halves
    calibrator = TemperatureScaling().fit(some)
    calibrated, raw = judged(read_entries({"nll": rest}), policy=Policy(4, calibrator))
    assert (calibrated.entry.name, raw.entry.name) == ("nll (calibrated)", "nll (raw)")
    assert raw.entry.predictions is rest
    assert calibrated.raw_name == raw.entry.name
    assert calibrated.calibration == f"the temperature {calibrator.temperature_:.4f}"
    np.testing.assert_allclose(calibrated.entry.predictions.probabilities, calibrator(rest).probabilities)
    assert evaluate(calibrated.entry.predictions).ece < evaluate(rest).ece


def test_the_promise_is_checked_on_calibrated_scores(halves):
    some, rest = halves
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(some), 0.9)
    shown = judged(read_entries(rest), policy=Policy(4, calibrator, rule))[0]
    check = check_promise(rule, calibrator(rest))
    assert check.held
    assert shown.promise[0] == rule.note
    assert f"{100 * check.groups[0].automated / check.cases:.1f}" in shown.promise[1]
    assert "The promise holds here." in shown.promise[1]
    assert shown.threshold == rule.threshold


def test_in_sample_numbers_are_named_so(halves, tmp_path):
    halves[0].save(tmp_path / "val.npz")
    read = Predictions.load(tmp_path / "val.npz")
    for source, named in ((read, True), (halves[1], False)):
        calibrated, raw = judged(read_entries({"nll": source}), policy=Policy(4, TemperatureScaling().fit(read)))
        assert any(note.startswith("In-sample") for note in calibrated.notes) is named
        assert raw.notes == ()


def test_a_broken_promise_is_said_so(halves):
    rule = RoutingRule(threshold=0.1, n_classes=4, target_accuracy=0.999, confidence=0.95, note="A promise.")
    (shown,) = judged(read_entries(halves[1]), policy=with_rule(rule))
    assert "The promise is BROKEN here: the cases contradict it." in shown.promise[1]


def test_a_promise_about_no_case_is_not_said_to_hold():
    rule = RoutingRule(threshold=1.0, n_classes=4, target_accuracy=0.9, confidence=0.95, note="A promise.")
    doubtful = Predictions.from_logits(np.zeros((5, 4)), np.zeros(5, int))
    (shown,) = judged(read_entries(doubtful), policy=with_rule(rule))
    assert shown.promise[1].endswith("So these cases say nothing about the promise.")
    assert "holds" not in shown.promise[1]


@pytest.mark.parametrize("class_thresholds", [None, (0.5, None, 0.5, 0.9)])
def test_rules_without_one_threshold_or_without_a_promise(halves, class_thresholds):
    rule = RoutingRule(threshold=None, n_classes=4, class_thresholds=class_thresholds, note="A note.")
    (shown,) = judged(read_entries(halves[1]), policy=with_rule(rule))
    assert shown.threshold is None
    assert shown.promise[0] == "A note."
    assert ("decides no case alone" in shown.promise[1]) == (class_thresholds is None)
    assert not any("promise" in sentence for sentence in shown.promise)


def test_the_runs_own_policy_is_used_and_named(run):
    calibrated, raw = judged(read_entries(run))
    assert calibrated.entry.name == "nll (calibrated)"
    assert calibrated.notes[0] == "Found in the run and used: policy.json."
    assert "In-sample" in calibrated.notes[1]
    assert len(calibrated.notes) == 2
    assert calibrated.promise[0] == run.policy().rule.note
    assert raw.promise == ()
    assert [shown.entry.name for shown in judged(read_entries(run), raw=True)] == ["nll"]


def test_what_is_given_stands_in_place_of_the_runs_own(run):
    other = IsotonicCalibration().fit(run.predictions("test"))
    rule = choose_threshold(other(run.predictions("test")), 0.7)
    shown = judged(read_entries(run), policy=Policy(10, other, rule))[0]
    assert shown.calibration == "the isotonic map"
    assert not any("Found in the run" in note for note in shown.notes)


def test_calibrated_predictions_are_not_calibrated_again(run):
    path = run.path / "predictions" / "test.calibrated.npz"
    TemperatureScaling().fit(run.predictions("test"))(run.predictions("test")).save(path)
    assert [shown.entry.name for shown in judged(read_entries(path))] == ["nll"]


def test_a_policy_of_other_predictions_in_a_run_is_refused(run, make):
    make(n=50, classes=10).save(run.predictions_path("test"))
    with pytest.raises(InvalidInput, match="policy"):
        judged(read_entries(run))


def test_a_rule_that_was_chosen_on_the_shown_cases_says_so(run):
    with_rule(choose_threshold(run.predictions("test"), 0.7)).save(run.policy_path)
    (shown,) = judged(read_entries(run))
    assert "The rule was chosen on these very cases, so they are no test of its promise." in shown.promise[1]
    assert "The promise holds" not in shown.promise[1]


def test_a_shortlist_says_how_often_it_held(halves):
    some, rest = halves
    rule = choose_threshold(some, 0.99, confidence=0.5)
    shortlist = choose_shortlist(some, 0.9, rule=rule)
    (shown,) = judged(read_entries(rest), policy=Policy(4, rule=rule, shortlist=shortlist))
    assert shown.promise[2].startswith(f"Shortlist: {shortlist.note} Here it holds the true class of")


def test_one_policy_for_several_sources_is_refused(predictions):
    with pytest.raises(InvalidInput, match="policy must be given for one source"):
        judged(read_entries([predictions, predictions]), policy=Policy(4, TemperatureScaling().fit(predictions)))


def test_classes_in_another_order_are_put_right(halves):
    some, rest = halves
    named = [Predictions.from_logits(p.logits, p.targets, class_names=list("abcd")) for p in (some, rest)]
    policy = with_rule(choose_threshold(named[0], 0.8))
    turned = Predictions.from_logits(rest.logits[:, ::-1], 3 - rest.targets, class_names=list("dcba"))
    shown = [judged(read_entries(each), policy=policy)[0].promise for each in (turned, named[1])]
    assert shown[0] == shown[1]


def test_classes_that_are_never_decided_alone_are_named(halves):
    rest = halves[1]
    rule = RoutingRule(threshold=None, n_classes=4, class_thresholds=(0.5, None, 0.5, None), note="A note.")
    (shown,) = judged(read_entries(rest), policy=with_rule(rule))
    one, three = (sum(target == k for target in rest.targets) for k in (1, 3))
    assert f"Never decided alone, with their numbers of cases here: 1 ({one:,}), 3 ({three:,})." in shown.never
    (every,) = judged(read_entries(rest), policy=with_rule(RoutingRule(threshold=0.5, n_classes=4, note="A note.")))
    assert every.never == ""
    (no_case,) = judged(read_entries(rest), policy=with_rule(RoutingRule(threshold=None, n_classes=4, note="A note.")))
    assert no_case.never == ""
    named = [f"class {k}" for k in range(30)]
    unmet = Predictions.from_logits(np.eye(30)[:1] * 9, [0], class_names=named)
    many = RoutingRule(threshold=None, n_classes=30, class_thresholds=(0.5, *[None] * 29), class_names=tuple(named))
    assert "class 20 (0) and 9 more." in judged(read_entries(unmet), policy=with_rule(many))[0].never


# -- what each method may automate at the same promise ---------------------------------------------------------------


def test_each_share_is_that_of_the_rule_from_validation(promising):
    val, test = promising.predictions("val"), promising.predictions("test")
    (shown,) = judged(read_entries(promising))
    for target in (0.98, 0.99):
        threshold = choose_threshold(val, target).threshold
        share, (low, high) = shown.promised[target]
        assert share == np.mean(test.confidence >= threshold) > 0
        assert low < share < high


def test_a_calibrator_leaves_the_cases_that_it_has_not_seen(promising):
    val, test = promising.predictions("val"), promising.predictions("test")
    some, rest = val.split(0.25, seed=3)
    calibrator = TemperatureScaling().fit(some)
    shown = judged(read_entries(promising), policy=Policy(4, calibrator))[0]
    threshold = choose_threshold(calibrator(rest), 0.99).threshold
    assert shown.promised[0.99][0] == np.mean(calibrator(test).confidence >= threshold)
    seen_all = judged(read_entries(promising), policy=Policy(4, TemperatureScaling().fit(val)))[0]
    unknown = TemperatureScaling().fit(Predictions.from_logits(val.logits, val.targets))
    assert (seen_all.promised, judged(read_entries(promising), policy=Policy(4, unknown))[0].promised) == ({}, {})


def test_shares_know_the_clusters_of_the_rule(promising, make):
    """The cases of a patient are one case with four copies: they promise less than four."""
    for split, seed in (("val", 1), ("test", 2)):
        cases = make(n=1500, seed=seed, strength=5.0)
        rows = np.repeat(np.arange(1500), 4)
        patients = Predictions.from_logits(cases.logits[rows], cases.targets[rows], extras={"patient": rows})
        patients.save(promising.predictions_path(split))
    val, test = promising.predictions("val"), promising.predictions("test")
    rule = choose_threshold(val, 0.9, clusters="patient")
    (ignoring,) = judged(read_entries(promising))
    (knowing,) = judged(read_entries(promising), policy=with_rule(rule))
    for target in (0.98, 0.99):
        own = choose_threshold(val, target, clusters="patient")
        assert knowing.promised[target][0] == own.route(test).automate.mean() < ignoring.promised[target][0]
    low, high = knowing.promised[0.98][1]
    assert high - low > 1.5 * np.diff(ignoring.promised[0.98][1])
    bare = Predictions.from_logits(val.logits, val.targets)
    bare.save(promising.predictions_path("val"))
    assert judged(read_entries(promising), policy=with_rule(rule))[0].promised == {}


def test_the_page_compares_at_equal_promises(promising, make, visible_text):
    html = build_page({"a": promising, "b": make(n=3000, seed=5, sharpness=3.0)}, n_resamples=0, pictures=False)
    text = visible_text(html)
    assert "May automate at 98 % promised" in text
    assert "That is known for 1 of 2 methods" in text
    alone = visible_text(build_page({"a": make(seed=1), "b": make(seed=2, sharpness=3.0)}, n_resamples=0))
    assert "cannot be said, because no validation cases are known" in alone
    assert "May automate at" not in alone


def test_the_other_half_of_a_file_is_a_test_of_a_promise(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("predicted,confidence,target\n" + "cat,0.9,cat\n" * 400)
    labelled, later = Predictions.load(path).split(0.5)
    rule = choose_threshold(labelled, 0.9)
    policy = Policy(rule.n_classes, rule=rule)
    seen = "The rule was chosen on these very cases"
    assert seen not in write_report(later, tmp_path / "page.html", policy=policy).read_text()
    assert seen in write_report(path, tmp_path / "page.html", policy=policy).read_text()
