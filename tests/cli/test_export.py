import json
import shutil

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_digits

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, RoutingRule
from calibrant.decisions.policy import as_policy
from calibrant.deployment.networks import weights_digest
from calibrant.deployment.onnx_export import Exported
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
    policy = Policy.load(run_folder / "policy.json")
    said = Run(run_folder).predictions("test")
    images = load_dataset("digits").test.images.numpy().astype(np.float32) / 255
    probabilities, predicted, automate = session(run_folder / "model.onnx", images)
    routed = policy.decide(said)
    assert (predicted == routed.predicted).mean() > 0.999
    np.testing.assert_allclose(probabilities.max(axis=1), routed.confidence, atol=1e-4)
    clear = np.abs(routed.confidence - policy.rule.threshold) > 1e-4
    assert (automate == routed.automate)[clear].all()
    assert automate.any()


def calibrated(p, temperature):
    powered = p.astype(float) ** (1 / temperature)
    return powered / powered.sum(axis=1, keepdims=True)


@pytest.fixture
def fresh_run(run_folder, tmp_path):
    """A copy without a policy, whose validation and test predictions are long enough for a promise."""
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy, ignore=shutil.ignore_patterns("policy.json", "*.onnx"))
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
    """Put the weights' name in the place of the ONNX file: which policy belongs into it is decided before."""

    def write(model, path, *, policy, **_):
        path.write_text(weights_digest(model))
        found = Policy(10) if policy is None else as_policy(policy)
        return Exported(cases=1, automated=0, largest_difference=0.0, decisions_differ=0, path=path, policy=found)

    monkeypatch.setattr("calibrant.deployment.onnx_export.export_onnx", write)


@pytest.mark.usefixtures("untraced")
def test_the_commands_in_their_order_lead_to_an_export(calibrant, fresh_run):
    assert calibrant("calibrate", fresh_run, "--share", 0.2)[0] == 0
    assert calibrant("route", "fit", fresh_run, "--target-accuracy", 0.9)[0] == 0
    policy = Policy.load(fresh_run / "policy.json")
    code, out, err = calibrant("export", fresh_run)
    assert (code, err) == (0, "")
    assert f"Scores are calibrated by the temperature {policy.calibrator.temperature_:.4f}." in out
    assert policy.rule.note in out
    code, out, err = calibrant("export", fresh_run, "--raw", "--json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["automates"], json.loads(out)["calibrated"]) == (False, False)


def test_the_calibrator_of_the_run_is_taken_and_its_absence_is_said(calibrant, fresh_run, tmp_path):
    images = (load_digits().images[:50, None] / 16).astype(np.float32)
    _, out, _ = calibrant("export", fresh_run, "-o", tmp_path / "plain.onnx")
    assert "Scores are not calibrated." in out
    assert calibrant("calibrate", fresh_run)[0] == 0
    temperature = Policy.load(fresh_run / "policy.json").calibrator.temperature_
    calibrant("export", fresh_run, "-o", tmp_path / "cool.onnx")
    plain, cool = (session(tmp_path / name, images)[0] for name in ("plain.onnx", "cool.onnx"))
    np.testing.assert_allclose(cool, calibrated(plain, temperature), atol=1e-4)
    _, out, _ = calibrant("export", fresh_run, "-o", tmp_path / "raw.onnx", "--raw", "--json")
    assert json.loads(out)["calibrated"] is False
    np.testing.assert_array_equal(session(tmp_path / "raw.onnx", images)[0], plain)


def test_a_map_of_many_numbers_and_its_rule_go_into_one_file(calibrant, run_folder, fresh_run):
    assert calibrant("calibrate", fresh_run, "--method", "vector", "--share", 0.3)[0] == 0
    assert calibrant("route", "fit", fresh_run, "--target-accuracy", 0.9)[0] == 0
    code, out, err = calibrant("export", fresh_run)
    assert (code, err) == (0, "")
    assert "calibrated by the vector map" in out
    images = load_dataset("digits").test.images.numpy().astype(np.float32) / 255
    probabilities, _, automate = session(fresh_run / "model.onnx", images)
    # The copy has drawn predictions; what its network says stands in the run that it was copied from.
    policy = Policy.load(fresh_run / "policy.json")
    expected = policy.calibrator.transform(Run(run_folder).predictions("test").logits)
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
    clear = np.abs(expected.max(axis=1) - policy.rule.threshold) > 1e-4
    assert (automate == (expected.max(axis=1) >= policy.rule.threshold))[clear].all()


@pytest.mark.usefixtures("untraced")
def test_what_was_fitted_before_the_run_was_trained_again_is_refused(calibrant, fresh_run, tmp_path):
    assert calibrant("route", "fit", fresh_run, "--target-accuracy", 0.9, "--calibrate")[0] == 0
    assert calibrant("export", fresh_run)[0] == 0
    before = (fresh_run / "model.onnx").read_bytes()
    for split in ("val", "test"):
        predictions = Predictions.load(predictions_of(fresh_run, split))
        Predictions.from_logits(2 * predictions.logits, predictions.targets).save(predictions_of(fresh_run, split))
    code, _, err = calibrant("export", fresh_run)
    assert code == 2
    assert "policy.json must be fitted on predictions of its run" in err
    assert err.count("\n") == 1
    assert (fresh_run / "model.onnx").read_bytes() == before
    # Kept elsewhere and named, it is the user's own decision.
    shutil.move(fresh_run / "policy.json", tmp_path / "policy.json")
    assert calibrant("export", fresh_run, "--policy", tmp_path / "policy.json")[0] == 0


def predictions_of(run, split):
    return run / "predictions" / f"{split}.npz"


def test_a_run_that_is_not_finished_is_refused(calibrant, fresh_run, tmp_path):
    (fresh_run / "summary.json").unlink()
    code, _, err = calibrant("export", fresh_run, "-o", tmp_path / "model.onnx")
    assert code == 2
    assert "is not finished. Continue it with: calibrant train --resume" in err
    assert not (tmp_path / "model.onnx").exists()


def test_without_a_rule_and_with_a_temperature(calibrant, run_folder, tmp_path):
    Policy(10, TemperatureScaling.known(2.5, 10)).save(tmp_path / "t.json")
    plain, cool = tmp_path / "plain.onnx", tmp_path / "cool.onnx"
    code, out, _ = calibrant("export", run_folder, "-o", plain, "--raw")
    assert code == 0
    assert "every case goes to a person" in out
    code, out, _ = calibrant("export", run_folder, "-o", cool, "--policy", tmp_path / "t.json", "--json")
    assert json.loads(out)["largest_difference"] <= 1e-5
    images = (load_digits().images[:50, None] / 16).astype(np.float32)
    p, q = session(plain, images)[0].astype(float), session(cool, images)[0]
    np.testing.assert_allclose(q, calibrated(p, 2.5), atol=1e-4)


def test_bad_input(calibrant, run_folder, tmp_path):
    Policy(3, rule=RoutingRule(threshold=0.9, n_classes=3)).save(tmp_path / "three.json")
    Policy(10, rule=RoutingRule(threshold=0.9, n_classes=10)).save(tmp_path / "r.onnx")
    logits = np.eye(3)[[0, 1, 2, 0]] + np.arange(12).reshape(4, 3) / 7
    Predictions.from_logits(logits, [0, 1, 2, 1]).save(tmp_path / "p.npz")
    for arguments, message in [
        ([tmp_path], "recipe.toml"),
        ([run_folder, "--policy", tmp_path / "three.json"], "be made for the model's 10 classes"),
        ([run_folder, "--model", "mine:net"], "be a run folder or --model module:function, got both"),
        ([], "be a run folder or --model module:function, got neither"),
        ([run_folder, "--weights", tmp_path / "w.safetensors"], "weights must be left out for a run"),
        ([run_folder, "--example", tmp_path / "p.npz"], "must be left out for a run"),
        ([run_folder, "--range", "images"], "range must be written as name=low:high, got 'images'"),
        ([run_folder, "--policy", tmp_path / "r.onnx", "-o", tmp_path / "r.onnx"], "which is read here"),
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
    assert calibrant("export", run_folder, "-o", tmp_path / "model.onnx", "--raw")[0] == 0
    assert len(read) == 1
