"""A run ends with a temperature that was fitted on a part of its validation cases."""

import numpy as np
import pytest

from calibrant.calibration import TemperatureScaling
from calibrant.errors import InvalidInput
from calibrant.predictions import Predictions, RowsPart
from calibrant.training import Recipe, Run
from calibrant.training.calibration import calibrate_run, calibration_share


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


@pytest.mark.parametrize(("cases", "fitted"), [(2000, 200), (400, 100), (120, 60)])
def test_the_temperature_is_that_of_the_first_part(run, cases, fitted):
    made = run(cases)
    told = calibrate_run(made)
    share = calibration_share(made.recipe, cases)
    some, rest = made.predictions("val").split(share, seed=0)
    assert told["cases"] == len(some) == fitted
    assert len(rest) == cases - fitted
    kept = made.policy().calibrator
    assert kept.temperature_ == told["temperature"] == TemperatureScaling().fit(some).temperature_
    assert kept.provenance_.part == RowsPart(share, 0, 0)
    assert kept.provenance_.fitted_on == some.origin.sha256


def test_another_share_is_taken_as_asked(run):
    assert calibrate_run(run(1000, **{"calibration.share": 0.7}))["cases"] == 700


@pytest.mark.parametrize(("cases", "changes"), [(99, {}), (5000, {"calibration.method": "none"})])
def test_without_enough_cases_or_on_request_there_is_none(run, cases, changes):
    made = run(cases, **changes)
    assert calibrate_run(made) is None
    assert not made.policy_path.exists()


def test_what_the_fit_says_is_a_note_and_no_warning(run):
    made = run(500)
    sure = made.predictions("val")
    Predictions.from_logits(np.eye(4, dtype=np.float32)[sure.targets], sure.targets).save(made.predictions_path("val"))
    told = calibrate_run(made)
    assert told["temperature"] == 1.0
    assert "every case is classified correctly" in told["notes"][0]


@pytest.mark.parametrize("change", [{"calibration.share": 0.0}, {"calibration.method": "isotonic"}])
def test_bad_settings_are_one_line(change):
    with pytest.raises(InvalidInput, match="calibration"):
        Recipe().changed(change)
