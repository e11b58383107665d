import json

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_digits

from calibrant import Predictions
from calibrant.data import load_dataset
from calibrant.posthoc import TemperatureScaling, VectorScaling
from calibrant.routing import RoutingRule
from calibrant.training import Run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    from calibrant.cli import run

    folder = tmp_path_factory.mktemp("export") / "run"
    assert (
        run(["train", "--data", "digits", "--method", "nll", "--epochs", "2", "--seed", "0", "--out", str(folder)]) == 0
    )
    return folder


def session(path, images):
    return onnxruntime.InferenceSession(str(path)).run(["probabilities", "predicted", "automate"], {"images": images})


def test_a_run_becomes_one_file_that_says_what_the_run_said(calibrant, run_folder):
    assert calibrant("route", "fit", run_folder, "--target-accuracy", 0.7, "--calibrate")[0] == 0
    code, out, err = calibrant("export", run_folder)
    assert (code, err) == (0, "")
    assert "it equals PyTorch to" in out
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


def test_without_a_rule_and_with_a_temperature(calibrant, run_folder, tmp_path):
    (run_folder / "rule.json").unlink(missing_ok=True)
    logits = np.random.default_rng(0).normal(size=(200, 10))
    targets = (logits + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(axis=1)
    scaling = TemperatureScaling().fit(3 * logits, targets)
    scaling.save(tmp_path / "t.json")
    plain, cool = tmp_path / "plain.onnx", tmp_path / "cool.onnx"
    code, out, _ = calibrant("export", run_folder, "-o", plain)
    assert code == 0
    assert "automates nothing" in out
    code, out, _ = calibrant("export", run_folder, "-o", cool, "--calibrator", tmp_path / "t.json", "--json")
    assert json.loads(out)["largest_difference"] <= 1e-5
    images = (load_digits().images[:50, None] / 16).astype(np.float32)
    p, q = session(plain, images)[0].astype(float), session(cool, images)[0]
    powered = p ** (1 / scaling.temperature_)
    np.testing.assert_allclose(q, powered / powered.sum(axis=1, keepdims=True), atol=1e-4)


def test_bad_input(calibrant, run_folder, tmp_path):
    RoutingRule(threshold=0.9, n_classes=3).save(tmp_path / "three.json")
    RoutingRule(threshold=0.9, n_classes=10, temperature=2.0).save(tmp_path / "warm.json")
    logits = np.eye(3)[[0, 1, 2, 0]] + np.arange(12).reshape(4, 3) / 7
    VectorScaling(reg_lambda=1.0).fit(logits, [0, 1, 2, 1]).save(tmp_path / "vector.json")
    TemperatureScaling().fit(logits, [0, 1, 2, 1]).save(tmp_path / "t.json")
    Predictions.from_logits(logits, [0, 1, 2, 1]).save(tmp_path / "p.npz")
    for arguments, message in [
        ([tmp_path], "recipe.toml"),
        ([run_folder, "--rule", tmp_path / "three.json"], "made for 3 classes and cannot be applied to 10"),
        ([run_folder, "--calibrator", tmp_path / "vector.json"], "--calibrator must be a temperature, got vector"),
        ([run_folder, "--rule", tmp_path / "warm.json", "--calibrator", tmp_path / "t.json"], "its own temperature"),
        ([run_folder, "-o", tmp_path / "model.pt"], "end in .onnx"),
    ]:
        code, _, err = calibrant("export", *arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1
