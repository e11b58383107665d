"""The temperature of a run, and the warnings that it ends with."""

import numpy as np
import pytest

from calibrant.calibration import TemperatureScaling
from calibrant.calibration.temperature import temperature_share
from calibrant.errors import InvalidInput
from calibrant.predictions import Predictions, RowsPart
from calibrant.training import Recipe, Run
from calibrant.training.summary import calibrate_run, find_failures


@pytest.fixture
def run(tmp_path):
    def make(cases, **changes):
        made = Run.create(tmp_path / "run", Recipe().changed(changes))
        generator = np.random.default_rng(0)
        logits = generator.normal(size=(cases, 4)).astype(np.float32)
        targets = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
        Predictions.from_logits(3 * logits, targets).save(made.predictions_path("val"))
        return made

    return make


@pytest.mark.parametrize(("cases", "fitted"), [(2000, 200), (400, 100), (120, 60), (30, 15)])
def test_the_temperature_is_that_of_the_first_part(run, cases, fitted):
    made = run(cases)
    written = calibrate_run(made)
    share = temperature_share(cases, made.recipe.calibration.share)
    some, rest = made.predictions("val").split(share, seed=0)
    assert written["cases"] == len(some) == fitted
    assert len(rest) == cases - fitted
    kept = made.policy().calibrator
    assert kept.temperature_ == written["temperature"] == TemperatureScaling().fit(some).temperature_
    assert kept.provenance_.part == RowsPart(share, 0, 0)
    assert kept.provenance_.fitted_on == some.origin.sha256


def test_another_share_is_taken_as_asked(run):
    assert calibrate_run(run(1000, **{"calibration.share": 0.7}))["cases"] == 700


def test_on_request_there_is_none(run):
    made = run(5000, **{"calibration.method": "none"})
    assert calibrate_run(made) is None
    assert not made.policy_path.exists()


def test_what_the_fit_says_is_a_note_and_no_warning(run):
    made = run(500)
    sure = made.predictions("val")
    Predictions.from_logits(np.eye(4, dtype=np.float32)[sure.targets], sure.targets).save(made.predictions_path("val"))
    written = calibrate_run(made)
    assert written["temperature"] == 1.0
    assert "every case is classified correctly" in written["notes"][0]


@pytest.mark.parametrize("change", [{"calibration.share": 0.0}, {"calibration.method": "isotonic"}])
def test_bad_settings_are_one_line(change):
    with pytest.raises(InvalidInput, match="calibration"):
        Recipe().changed(change)


def warnings_of(tmp_path, logits, targets, losses=(2.0, 0.1), samples=100_000, kept_share=1.0, **changes):
    run = Run.create(tmp_path / "run", Recipe().changed(changes))
    Predictions.from_logits(logits, targets, class_names=["cat", "dog"]).save(run.predictions_path("val"))
    log = [{"loss": loss, "samples": samples, "kept_share": kept_share} for loss in losses]
    return find_failures(run, log, calibrate_run(run), compute_share=kept_share)


def scores(n, wrong=0, seed=0):
    """Logits of two classes whose larger one is right but for the first `wrong` cases."""
    rng = np.random.default_rng(seed)
    targets = np.arange(n) % 2
    said = np.where(np.arange(n) < wrong, 1 - targets, targets)
    return np.where(said[:, None] == np.arange(2), 2 + rng.random((n, 2)), 0.0), targets


def test_a_good_run_says_nothing(tmp_path):
    assert warnings_of(tmp_path, *scores(2000, wrong=1)) == []


def test_one_class_for_nearly_all_is_named(tmp_path):
    _, targets = scores(400)
    first, second, third = warnings_of(tmp_path, np.tile([0.0, 3.0], (400, 1)), targets)
    assert first.startswith("The model predicts dog for 100% of the 400 validation cases, of which 50% are dog")
    assert "no better than always naming the most frequent class: 200 of 400" in second
    assert "predictions on them do not differ" in third


@pytest.mark.parametrize(("dogs", "named"), [(940, False), (960, True)])
def test_one_class_for_most_is_not_yet_one_for_nearly_all(tmp_path, dogs, named):
    targets = np.r_[np.ones(500, int), np.zeros(500, int)]
    said = (np.arange(1000) < dogs).astype(int)
    found = warnings_of(tmp_path, np.where(said[:, None] == np.arange(2), 3.0, 0.0), targets)
    assert any(text.startswith("The model predicts dog for 96%") for text in found) is named
    assert any(text.startswith("The model predicts") for text in found) is named


def test_a_rare_class_alone_is_no_failure_but_missing_it_wholly_is(tmp_path):
    targets = np.r_[np.zeros(970, int), np.ones(30, int)]
    right = np.where(targets[:, None] == np.arange(2), 3.0, 0.0)
    assert warnings_of(tmp_path / "a", right, targets) == []
    assert "970 of 1000" in warnings_of(tmp_path / "b", np.tile([3.0, 0.0], (1000, 1)), targets)[0]


@pytest.mark.parametrize(("losses", "said"), [((0.7, 0.7), True), ((0.7, 0.5), False), ((0.7,), False)])
def test_a_loss_that_does_not_fall_is_named(tmp_path, losses, said):
    found = warnings_of(tmp_path, *scores(2000, wrong=1), losses=losses)
    assert any("loss has not fallen" in text for text in found) is said


def test_the_loss_of_the_hard_samples_alone_is_not_compared(tmp_path):
    assert warnings_of(tmp_path, *scores(2000, wrong=1), losses=(0.7, 0.9), kept_share=0.5) == []


def test_few_updates_are_counted(tmp_path):
    (found,) = warnings_of(tmp_path, *scores(2000, wrong=1), samples=129, **{"optimiser.batch_size": 128})
    assert "updated only 4 times" in found


@pytest.mark.parametrize(("kept", "said"), [(0.862, True), (0.605, False)])
def test_a_plan_that_could_not_keep_to_its_budget_says_so(tmp_path, kept, said):
    plan = {"budget": 0.6, "epochs": 2, "method.name": "nll+infobatch"}
    found = warnings_of(tmp_path, *scores(2000, wrong=1), kept_share=kept, **plan)
    assert [text[:63] for text in found] == ["The run took 86.2% of the compute, and its budget was 60.0%: to"] * said


def test_too_few_validation_cases_for_a_promise(tmp_path):
    (only,) = warnings_of(tmp_path / "a", *scores(60, wrong=1))
    assert "No threshold can be promised" in only
    assert "cases would be needed" in only
    assert "Hold out more (--set data.validation=...) or label more." in only


def test_one_validation_case_gives_no_temperature_and_that_is_said(tmp_path):
    found = warnings_of(tmp_path, *scores(1))
    assert any("No temperature was fitted" in text for text in found)


def test_cases_of_one_class_give_no_temperature_and_that_is_said(tmp_path):
    logits, _ = scores(60, wrong=1)
    found = warnings_of(tmp_path, logits, np.zeros(60, int))
    assert any("No temperature was fitted" in text for text in found)


def test_the_promise_rests_on_cases_that_the_temperature_has_not_seen(tmp_path):
    (found,) = warnings_of(tmp_path, *scores(300, wrong=3))
    assert "200 cases" in found
