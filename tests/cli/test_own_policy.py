"""Everything after training takes a run's own policy by itself, says so, and leaves it out with --raw."""

import csv
import json

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.training import Run, paper_recipe
from calibrant.training.summary import calibrate_run


@pytest.fixture
def run(tmp_path):
    """A run whose network is three times too sure of itself, with the temperature that it ended with."""
    made = Run.create(tmp_path / "run", paper_recipe("digits"))
    for split, seed in (("val", 0), ("test", 1)):
        generator = np.random.default_rng(seed)
        logits = 3 * generator.normal(size=(2000, 4)).astype(np.float32)
        targets = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
        Predictions.from_logits(3 * logits, targets).save(made.predictions_path(split))
    calibrate_run(made)
    return made


def test_evaluate_shows_calibrated_and_raw_and_judges_what_is_calibrated(calibrant, run):
    code, out, err = calibrant("evaluate", run.path, "--max-ece", "0.04", "--json")
    assert code == 0, err
    (calibrated, better), (raw, worse) = json.loads(out).items()
    assert calibrated.endswith("calibrated by policy.json")
    assert raw.endswith("raw")
    assert better["ece"] < 0.04 < worse["ece"]
    code, out, err = calibrant("evaluate", run.path, "--max-ece", "0.04", "--json", "--raw")
    assert code == 1
    assert json.loads(out) == worse


def test_a_rule_is_chosen_behind_it_on_the_cases_that_it_has_not_seen(calibrant, run):
    code, out, err = calibrant("route", "fit", run.path, "--target-accuracy", "0.9")
    assert code == 0, err
    assert "Scores are calibrated by the temperature" in out
    policy = run.policy()
    assert policy.rule.evidence.cases == 1800
    code, out, err = calibrant("route", "apply", run.policy_path, run.path, "-o", run.path / "decisions.csv")
    assert code == 0, err
    with (run.path / "decisions.csv").open() as handle:
        decided = [float(row["confidence"]) for row in csv.DictReader(handle)]
    calibrated = policy.calibrate(run.predictions("test"))
    np.testing.assert_allclose(decided, calibrated.confidence, atol=1e-9)
    code, out, err = calibrant("route", "check", run.policy_path, run.path, "--json")
    assert code == 0, err
    assert json.loads(out)["cases"] == 2000


def test_on_request_a_rule_does_without_it(calibrant, run):
    old = run.policy().calibrator.digest
    code, out, err = calibrant("route", "fit", run.path, "--target-accuracy", "0.9", "--raw")
    assert code == 0, err
    assert "calibrated" not in out
    assert run.policy().calibrator is None
    assert calibrant("route", "fit", run.path, "--target-accuracy", "0.9", "--calibrate", "--seed", 5)[0] == 0
    assert run.policy().calibrator.digest != old


def test_a_calibrator_that_has_seen_all_cases_is_refused(calibrant, run):
    assert calibrant("calibrate", run.path)[0] == 0
    code, _, err = calibrant("route", "fit", run.path, "--target-accuracy", "0.9")
    assert (code, err.count("\n")) == (2, 1)
    assert "--share 0.2" in err


@pytest.mark.parametrize("command", [("evaluate",), ("route", "fit"), ("report",)])
def test_a_calibrator_whose_classes_do_not_fit_is_one_line(calibrant, run, command, tmp_path):
    other = Run.create(tmp_path / "other", paper_recipe("digits"))
    generator = np.random.default_rng(2)
    logits = 3 * generator.normal(size=(2000, 7)).astype(np.float32)
    targets = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    Predictions.from_logits(logits, targets).save(other.predictions_path("val"))
    calibrate_run(other)
    run.policy_path.write_bytes(other.policy_path.read_bytes())
    code, out, err = calibrant(*command, run.path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "7 classes" in err or "policy" in err
