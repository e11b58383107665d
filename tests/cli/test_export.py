import json
import shutil

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_digits

from calibrant import Predictions
from calibrant.calibration import Calibrator, IsotonicCalibration, TemperatureScaling
from calibrant.decisions import RoutingRule
from calibrant.deployment import onnx
from calibrant.deployment.contents import weights_digest
from calibrant.deployment.onnx import Exported
from calibrant.training import Run, checkpoint
from calibrant.training.data import load_dataset


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    from calibrant.cli import run

    folder = tmp_path_factory.mktemp("export") / "run"
    settings = ["--method", "nll", "--epochs", "2", "--seed", "0", "--set", "calibration.method=none"]
    assert run(["train", "--data", "digits", *settings, "--out", str(folder)]) == 0
    return folder


def session(path, images):
    return onnxruntime.InferenceSession(str(path)).run(["probabilities", "predicted", "automate"], {"images": images})


def test_a_run_becomes_one_file_that_says_what_the_run_said(calibrant, run_folder):
    assert calibrant("route", "fit", run_folder, "--target-accuracy", 0.7, "--calibrate")[0] == 0
    code, out, err = calibrant("export", run_folder)
    assert (code, err) == (0, "")
    assert "it equals Python to" in out
    rule = RoutingRule.load(run_folder / "rule.json")
    said = Run.open(run_folder).predictions("test")
    images = load_dataset("digits").test.images.numpy().astype(np.float32) / 255
    probabilities, predicted, automate = session(run_folder / "model.onnx", images)
    routed = rule.route_logits(said.logits)
    assert (predicted == routed.predicted).mean() > 0.999
    np.testing.assert_allclose(probabilities.max(axis=1), routed.confidence, atol=1e-4)
    clear = np.abs(routed.confidence - rule.threshold) > 1e-4
    assert (automate == routed.automate)[clear].all()
    assert automate.any()


def calibrated(p, temperature):
    powered = p.astype(float) ** (1 / temperature)
    return powered / powered.sum(axis=1, keepdims=True)


@pytest.fixture
def fresh_run(run_folder, tmp_path):
    """A copy without calibrator and rule, whose validation and test predictions are long enough for a promise."""
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy, ignore=shutil.ignore_patterns("rule.json", "calibrator.json", "*.onnx"))
    for seed, split in enumerate(("val", "test")):
        rng = np.random.default_rng(seed)
        z = 6 * rng.normal(size=(2000, 10))
        logits = 1.5 * z
        Predictions.from_logits(logits, (z + rng.gumbel(size=z.shape)).argmax(axis=1)).save(
            copy / "predictions" / f"{split}.npz"
        )
    return copy


@pytest.fixture
def untraced(monkeypatch):
    """Put the weights' name in the place of the ONNX file: which parts belong into it is decided before."""

    def write(model, path, parts, *_):
        path.write_text(weights_digest(model))
        return Exported(cases=1, automated=0, largest_difference=0.0, decisions_differ=0, path=path, parts=parts)

    monkeypatch.setattr(onnx, "_export_module", write)


@pytest.mark.usefixtures("untraced")
def test_the_commands_in_their_order_lead_to_an_export(calibrant, fresh_run):
    val = fresh_run / "predictions" / "val.npz"
    assert calibrant("calibrate", fresh_run)[0] == 0
    assert calibrant("route", "fit", val, "--target-accuracy", 0.9, "--calibrate")[0] == 0
    rule = RoutingRule.load(fresh_run / "rule.json")
    code, out, err = calibrant("export", fresh_run)
    assert (code, err) == (0, "")
    assert f"calibrated by the rule's temperature, {rule.temperature:.4f}" in out
    assert f"{fresh_run / 'calibrator.json'} is left out" in out
    assert f"Routing is by {fresh_run / 'rule.json'}" in out


def test_the_calibrator_of_the_run_is_taken_and_its_absence_is_said(calibrant, fresh_run, tmp_path):
    images = (load_digits().images[:50, None] / 16).astype(np.float32)
    _, out, _ = calibrant("export", fresh_run, "-o", tmp_path / "plain.onnx")
    assert "Probabilities are NOT calibrated" in out
    assert calibrant("calibrate", fresh_run)[0] == 0
    scaling = TemperatureScaling.load(fresh_run / "calibrator.json")
    _, out, _ = calibrant("export", fresh_run, "-o", tmp_path / "cool.onnx")
    assert f"calibrated by the temperature {scaling.temperature_:.4f} of {fresh_run / 'calibrator.json'}" in out
    plain, cool = (session(tmp_path / name, images)[0] for name in ("plain.onnx", "cool.onnx"))
    np.testing.assert_allclose(cool, calibrated(plain, scaling.temperature_), atol=1e-4)
    _, out, _ = calibrant("export", fresh_run, "-o", tmp_path / "raw.onnx", "--uncalibrated", "--json")
    assert json.loads(out)["calibrator"] is None
    assert json.loads(out)["calibrated"] is False
    np.testing.assert_array_equal(session(tmp_path / "raw.onnx", images)[0], plain)


def test_a_map_of_many_numbers_and_a_rule_chosen_behind_it_go_into_one_file(calibrant, run_folder, fresh_run):
    assert calibrant("calibrate", fresh_run, "--method", "vector")[0] == 0
    made = fresh_run / "predictions" / "test.calibrated.npz"
    assert calibrant("route", "fit", made, "--target-accuracy", 0.9)[0] == 0
    code, out, err = calibrant("export", fresh_run)
    assert (code, err) == (0, "")
    assert f"calibrated by the vector map of {fresh_run / 'calibrator.json'}" in out
    images = load_dataset("digits").test.images.numpy().astype(np.float32) / 255
    probabilities, _, automate = session(fresh_run / "model.onnx", images)
    # The copy has drawn predictions; what its network says stands in the run that it was copied from.
    said = Run.open(run_folder).predictions("test").logits
    expected = Calibrator.load(fresh_run / "calibrator.json").transform(said)
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
    threshold = RoutingRule.load(fresh_run / "rule.json").threshold
    clear = np.abs(expected.max(axis=1) - threshold) > 1e-4
    assert (automate == (expected.max(axis=1) >= threshold))[clear].all()


@pytest.mark.usefixtures("untraced")
def test_a_rule_chosen_behind_a_calibrator_is_not_exported_without_it(calibrant, fresh_run, tmp_path):
    assert calibrant("calibrate", fresh_run, "--method", "vector")[0] == 0
    made = fresh_run / "predictions" / "test.calibrated.npz"
    assert calibrant("route", "fit", made, "--target-accuracy", 0.9)[0] == 0
    moved = tmp_path / "calibrator.json"
    shutil.move(fresh_run / "calibrator.json", moved)
    # Whatever way the folder is spelled.
    for run in (fresh_run, fresh_run / ".." / fresh_run.name):
        code, _, err = calibrant("export", run, "--rule", fresh_run / "rule.json")
        assert code == 2
        assert "rule.json must be fitted on predictions of its run" in err
    assert calibrant("export", fresh_run, "--calibrator", moved)[0] == 0


@pytest.mark.usefixtures("untraced")
def test_a_rule_goes_only_with_the_calibrator_that_made_its_predictions(calibrant, fresh_run, tmp_path):
    predictions = fresh_run / "predictions"
    assert calibrant("calibrate", fresh_run)[0] == 0
    code, _, err = calibrant("route", "fit", fresh_run, "--target-accuracy", 0.9)
    assert code == 0
    assert "did not make these predictions" in err
    code, _, err = calibrant("export", fresh_run)
    assert code == 2
    assert "did not make: its promise does not hold" in err
    assert err.count("\n") == 1
    assert calibrant("export", fresh_run, "--uncalibrated")[0] == 0
    # Chosen on what the calibrator made, it belongs.
    code, _, err = calibrant("route", "fit", predictions / "test.calibrated.npz", "--target-accuracy", 0.9)
    assert (code, err) == (0, "")
    code, out, err = calibrant("export", fresh_run, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["calibrator"] == str(fresh_run / "calibrator.json")
    assert json.loads(out)["automates"] is True
    assert calibrant("export", fresh_run, "--uncalibrated")[0] == 2
    # A rule that says nothing of its origin is taken with a warning.
    RoutingRule(threshold=0.9, n_classes=10).save(fresh_run / "rule.json")
    code, _, err = calibrant("export", fresh_run)
    assert code == 0
    assert "does not say what it was fitted on" in err


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("name", ["calibrator.json", "rule.json"])
def test_what_was_fitted_before_the_run_was_trained_again_is_refused(calibrant, fresh_run, tmp_path, name):
    if name == "calibrator.json":
        assert calibrant("calibrate", fresh_run)[0] == 0
    else:
        assert calibrant("route", "fit", fresh_run, "--target-accuracy", 0.9, "--calibrate")[0] == 0
    assert calibrant("export", fresh_run)[0] == 0
    before = (fresh_run / "model.onnx").read_bytes()
    for split in ("val", "test"):
        predictions = Predictions.load(predictions_of(fresh_run, split))
        Predictions.from_logits(2 * predictions.logits, predictions.targets).save(predictions_of(fresh_run, split))
    code, _, err = calibrant("export", fresh_run)
    assert code == 2
    assert f"{name} must be fitted on predictions of its run, got others" in err
    assert err.count("\n") == 1
    assert (fresh_run / "model.onnx").read_bytes() == before
    # Kept elsewhere and named, it is the user's own decision.
    shutil.move(fresh_run / name, tmp_path / name)
    flag = "--calibrator" if name == "calibrator.json" else "--rule"
    assert calibrant("export", fresh_run, flag, tmp_path / name)[0] == 0


def predictions_of(run, split):
    return run / "predictions" / f"{split}.npz"


def test_a_run_that_is_not_finished_is_refused(calibrant, fresh_run, tmp_path):
    (fresh_run / "summary.json").unlink()
    code, _, err = calibrant("export", fresh_run, "-o", tmp_path / "model.onnx")
    assert code == 2
    assert "is not finished: 2 of 2 epochs are done. Continue it with: calibrant train --resume" in err
    assert not (tmp_path / "model.onnx").exists()


def test_without_a_rule_and_with_a_temperature(calibrant, run_folder, tmp_path):
    (run_folder / "rule.json").unlink(missing_ok=True)
    logits = np.random.default_rng(0).normal(size=(200, 10))
    targets = (logits + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(axis=1)
    scaling = TemperatureScaling().fit(3 * logits, targets)
    scaling.save(tmp_path / "t.json")
    plain, cool = tmp_path / "plain.onnx", tmp_path / "cool.onnx"
    code, out, _ = calibrant("export", run_folder, "-o", plain, "--uncalibrated")
    assert code == 0
    assert "automates nothing" in out
    code, out, _ = calibrant("export", run_folder, "-o", cool, "--calibrator", tmp_path / "t.json", "--json")
    assert json.loads(out)["largest_difference"] <= 1e-5
    images = (load_digits().images[:50, None] / 16).astype(np.float32)
    p, q = session(plain, images)[0].astype(float), session(cool, images)[0]
    np.testing.assert_allclose(q, calibrated(p, scaling.temperature_), atol=1e-4)


def test_bad_input(calibrant, run_folder, tmp_path):
    RoutingRule(threshold=0.9, n_classes=3).save(tmp_path / "three.json")
    RoutingRule(threshold=0.9, n_classes=10).save(tmp_path / "r.onnx")
    RoutingRule(threshold=0.9, n_classes=10, temperature=2.0).save(tmp_path / "warm.json")
    logits = np.eye(3)[[0, 1, 2, 0]] + np.arange(12).reshape(4, 3) / 7
    IsotonicCalibration(mode="top-label").fit(logits, [0, 1, 2, 1]).save(tmp_path / "isotonic.json")
    TemperatureScaling().fit(logits, [0, 1, 2, 1]).save(tmp_path / "t.json")
    Predictions.from_logits(logits, [0, 1, 2, 1]).save(tmp_path / "p.npz")
    for arguments, message in [
        ([tmp_path], "recipe.toml"),
        ([run_folder, "--rule", tmp_path / "three.json"], "made for 3 classes and cannot be applied to 10"),
        ([run_folder, "--calibrator", tmp_path / "isotonic.json"], "be made for the 10 classes"),
        ([run_folder, "--model", "mine:net"], "be a run folder or --model module:function, got both"),
        ([], "be a run folder or --model module:function, got neither"),
        ([run_folder, "--weights", tmp_path / "w.safetensors"], "weights must be left out for a run"),
        ([run_folder, "--example", tmp_path / "p.npz"], "must be left out for a run"),
        ([run_folder, "--range", "images"], "range must be written as name=low:high, got 'images'"),
        ([run_folder, "--rule", tmp_path / "warm.json", "--calibrator", tmp_path / "t.json"], "its own temperature"),
        ([run_folder, "--calibrator", tmp_path / "t.json"], "be made for the 10 classes"),
        ([run_folder, "--calibrator", tmp_path / "t.json", "--uncalibrated"], "uncalibrated must be left out"),
        ([run_folder, "--rule", tmp_path / "r.onnx", "-o", tmp_path / "r.onnx"], "which is read here"),
        ([run_folder, "-o", tmp_path / "model.pt"], "end in .onnx"),
    ]:
        code, _, err = calibrant("export", *arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.usefixtures("untraced")
def test_the_checkpoint_is_read_once(calibrant, run_folder, tmp_path, monkeypatch):
    read = []
    load = checkpoint.load_checkpoint
    monkeypatch.setattr(checkpoint, "load_checkpoint", lambda path: read.append(path) or load(path))
    assert calibrant("export", run_folder, "-o", tmp_path / "model.onnx", "--uncalibrated")[0] == 0
    assert len(read) == 1
