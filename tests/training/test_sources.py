import pytest

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.training import (
    Recipe,
    Run,
    calibrated_paths,
    calibration_sources,
    calibrators_near,
    load_predictions,
    rule_path,
    source_path,
)

ROWS = Predictions.from_logits([[2.0, 1.0], [0.0, 3.0]], [0, 1])


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path / "run", Recipe())
    for split in ("val", "test"):
        ROWS.save(made.predictions_path(split))
    return made


def test_a_run_stands_for_its_predictions_and_a_file_for_itself(run, tmp_path):
    assert source_path(run.path, "val") == run.predictions_path("val")
    assert source_path(tmp_path / "p.csv") == tmp_path / "p.csv"
    assert load_predictions(run.path, "test").origin.path == run.predictions_path("test")
    run.predictions_path("test").unlink()
    with pytest.raises(InvalidInput, match="has no test predictions yet"):
        source_path(run.path, "test")


def test_what_is_made_from_a_run_is_kept_in_it(run, tmp_path):
    val, test = run.predictions_path("val"), run.predictions_path("test")
    assert rule_path(val) == run.rule_path
    assert calibration_sources(run.path) == (val, test)
    assert calibrated_paths(val, test) == (run.predictions_path("test", calibrated=True), run.calibrator_path)
    elsewhere = calibrated_paths(val, test, tmp_path / "better.npz")
    assert elsewhere == (tmp_path / "better.npz", tmp_path / "better.calibrator.json")


def test_what_is_made_from_a_file_is_kept_beside_it(tmp_path):
    one, other = tmp_path / "val.csv", tmp_path / "test.csv"
    assert rule_path(one) == tmp_path / "rule.json"
    assert calibrated_paths(one, other) == (tmp_path / "test.calibrated.npz", tmp_path / "test.calibrator.json")
    with pytest.raises(InvalidInput, match="apply"):
        calibration_sources(one)
    with pytest.raises(InvalidInput, match="out"):
        calibrated_paths(one, other, tmp_path / "better.csv")


def test_predictions_of_a_run_are_never_overwritten(run, tmp_path):
    with pytest.raises(InvalidInput, match="out"):
        calibrated_paths(run.predictions_path("val"), tmp_path / "other.npz", run.predictions_path("test"))


def test_calibrators_are_found_beside_a_rule_and_in_the_run_of_predictions(run, tmp_path):
    (tmp_path / "calibrator.json").touch()
    assert calibrators_near(tmp_path / "rule.json", run.predictions_path("test")) == [tmp_path / "calibrator.json"]
    run.calibrator_path.touch()
    found = calibrators_near(tmp_path / "rule.json", run.predictions_path("test"), None)
    assert found == [tmp_path / "calibrator.json", run.calibrator_path]


def test_the_calibrator_of_calibrated_predictions_is_found_and_the_working_directory_has_none(tmp_path, monkeypatch):
    (tmp_path / "p.calibrator.json").touch()
    for name in ("p.npz", "p.calibrated.npz"):
        assert calibrators_near(tmp_path / name) == [tmp_path / "p.calibrator.json"]
    assert calibrators_near(tmp_path / "q.npz") == []
    monkeypatch.chdir(tmp_path)
    assert calibrators_near(".") == []
