import io
import json

import numpy as np
import pytest
from rich.console import Console

from calibrant import Predictions, evaluate
from calibrant.calibration import METHODS, TemperatureScaling
from calibrant.cli import _shared
from calibrant.decisions import Policy


def draw(n, classes=3, *, seed, **extra):
    rng = np.random.default_rng(seed)
    z = 3.0 * rng.normal(size=(n, classes))
    return Predictions.from_logits(2.5 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), **extra)


@pytest.fixture
def files(tmp_path):
    draw(400, seed=0).save(tmp_path / "val.npz")
    draw(500, seed=1, ids=np.arange(500)).save(tmp_path / "test.npz")
    return tmp_path / "val.npz", tmp_path / "test.npz"


def test_temperature_from_file_to_file(calibrant, files, tmp_path):
    code, out, err = calibrant("calibrate", files[0], "--apply", files[1], "-o", tmp_path / "better.npz")
    assert (code, err) == (0, "")
    for word in ("ECE", "NLL", "share, ≥ 95 % sure", "before", "after", "temperature 2."):
        assert word in out
    val, test = Predictions.load(files[0]), Predictions.load(files[1])
    better = Predictions.load(tmp_path / "better.npz")
    expected = TemperatureScaling().fit(val.logits, val.targets).transform(test.logits)
    np.testing.assert_allclose(better.probabilities, expected, rtol=1e-9)
    assert (better.ids == test.ids).all()
    assert evaluate(better).nll < evaluate(test).nll
    assert isinstance(Policy.load(tmp_path / "better.policy.json").calibrator, TemperatureScaling)


def test_a_run_folder(calibrant, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(400, seed=0).save(tmp_path / "predictions" / "val.npz")
    draw(400, seed=1).save(tmp_path / "predictions" / "test.npz")
    code, out, _ = calibrant("calibrate", tmp_path, "--method", "vector", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["method"] == "vector"
    assert content["after"]["nll"] < content["before"]["nll"]
    assert content["predictions"] == str(tmp_path / "predictions" / "test.calibrated.npz")
    assert content["policy"] == str(tmp_path / "policy.json")
    assert Predictions.load(content["predictions"]).n_classes == 3


def test_best_says_why(calibrant, files):
    code, out, _ = calibrant("calibrate", files[0], "--apply", files[1], "--method", "best", "--json")
    content = json.loads(out)
    names = [line["name"] for line in content["selection"]["candidates"]]
    assert code == 0
    assert sorted(names) == sorted(METHODS)
    assert content["method"] == names[0]
    assert content["selection"]["reason"].startswith(f"{names[0]} has the lowest NLL on held-out cases")
    _, out, _ = calibrant("calibrate", files[0], "--apply", files[1], "--method", "best")
    assert "Chosen: " in out
    assert "5-fold cross-validation" in out


def test_best_follows_a_confidence_that_jumps(calibrant, tmp_path):
    """A confidence that jumps: right in 9 of 10 cases above 0.7, in 4 of 10 below, which no smooth map follows."""
    rng = np.random.default_rng(0)
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    for split in ("val", "test"):
        confidence = rng.uniform(0.5, 0.99, 3000)
        logits = np.stack([np.log(confidence / (1 - confidence)), np.zeros(3000)], axis=1)
        targets = (rng.random(3000) > np.where(confidence > 0.7, 0.9, 0.4)).astype(int)
        Predictions.from_logits(logits, targets).save(tmp_path / "predictions" / f"{split}.npz")
    code, out, _ = calibrant("calibrate", tmp_path, "--method", "best", "--json")
    assert code == 0
    assert json.loads(out)["method"].split("-")[0] in ("isotonic", "histogram")


def test_probabilities_are_calibrated_by_their_logarithm(calibrant, files, tmp_path):
    for path in files:
        old = Predictions.load(path)
        p = old.probabilities.astype(np.float32)
        p[0] = [1.0, 0.0, 0.0]
        Predictions.from_probabilities(p, old.targets).save(path)
    code, _, err = calibrant("calibrate", files[0], "--apply", files[1])
    assert code == 0
    assert "the true class has a probability of 0 in 1 of 400 cases" in err
    better = Predictions.load(tmp_path / "test.calibrated.npz")
    assert np.isfinite(better.nll).all()


def test_warnings_are_one_line(calibrant, tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 3))
    Predictions.from_logits(logits, logits.argmax(axis=1)).save(tmp_path / "val.npz")
    code, _, err = calibrant(
        "calibrate", tmp_path / "val.npz", "--apply", tmp_path / "val.npz", "-o", tmp_path / "o.npz"
    )
    assert code == 0
    lines = err.splitlines()
    assert lines[0].startswith("calibrant: warning: TemperatureScaling: every case is classified correctly")
    assert lines[1].startswith(f"calibrant: warning: {tmp_path / 'val.npz'}: In-sample")
    assert len(lines) == 2


def test_separable_predictions_are_not_ruined_in_silence(calibrant, tmp_path):
    for seed, name in enumerate(("val", "test")):
        rng = np.random.default_rng(seed)
        targets = np.arange(120) % 10
        logits = 4.0 * np.eye(10)[targets] + 1.4 * rng.normal(size=(120, 10))
        Predictions.from_logits(logits, targets).save(tmp_path / f"{name}.npz")
    arguments = ("calibrate", tmp_path / "val.npz", "--apply", tmp_path / "test.npz", "--method", "dirichlet")
    code, out, err = calibrant(*arguments)
    assert code == 0
    assert err.startswith("calibrant: warning: DirichletScaling: on held-out folds")
    assert err.count("\n") == 1
    assert "No map was kept" in out
    kept, raw = Predictions.load(tmp_path / "test.calibrated.npz"), Predictions.load(tmp_path / "test.npz")
    np.testing.assert_allclose(kept.probabilities, raw.probabilities, rtol=1e-9)


def test_a_loss_on_the_test_predictions_is_said(calibrant, tmp_path):
    draw(400, seed=0).save(tmp_path / "val.npz")
    other = draw(400, seed=1)
    Predictions.from_logits(other.logits / 5, other.targets).save(tmp_path / "test.npz")
    code, _, err = calibrant("calibrate", tmp_path / "val.npz", "--apply", tmp_path / "test.npz")
    assert code == 0
    assert err.startswith("calibrant: warning: calibration made the NLL of the predictions it was applied to larger")
    assert err.endswith("Fit on more cases, use another method, or leave the scores as they are.\n")


def test_a_terminal_shows_which_method_is_being_tried(monkeypatch):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr(_shared, "Console", lambda **_: console)
    with _shared.steps() as progress:
        progress("isotonic[bold]", 2, 10)
    assert "isotonic[bold]" in written.getvalue()
    assert "2/10" in written.getvalue()


def test_inputs_are_never_overwritten(calibrant, tmp_path):
    predictions = tmp_path / "predictions"
    predictions.mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(100, seed=0).save(predictions / "val.npz")
    draw(100, seed=1).save(predictions / "test.npz")
    (tmp_path / "soft.npz").symlink_to(predictions / "val.npz")
    (tmp_path / "hard.npz").hardlink_to(predictions / "val.npz")
    val, test = predictions / "val.npz", predictions / "test.npz"
    before = val.read_bytes(), test.read_bytes()
    for arguments in [
        (tmp_path, "-o", val),
        (tmp_path, "-o", predictions / ".." / "predictions" / "test.npz"),
        (tmp_path, "--apply", tmp_path / "hard.npz", "-o", test),
        (tmp_path, "-o", tmp_path / "soft.npz"),
        (tmp_path, "-o", tmp_path / "hard.npz"),
        (val, "--apply", val, "-o", val),
    ]:
        code, _, err = calibrant("calibrate", *arguments)
        assert code == 2, arguments
        assert "which is read here" in err
        assert err.count("\n") == 1
    assert (val.read_bytes(), test.read_bytes()) == before


def test_names_decide_over_the_order_of_columns(calibrant, tmp_path):
    draw(400, seed=0, class_names=["a", "b", "c"]).save(tmp_path / "val.npz")
    test = draw(300, seed=1, class_names=["a", "b", "c"])
    test.save(tmp_path / "same.npz")
    turned = Predictions.from_logits(
        test.logits[:, [2, 0, 1]], np.array([1, 2, 0])[test.targets], class_names=["c", "a", "b"]
    )
    turned.save(tmp_path / "turned.npz")
    for name in ("same", "turned"):
        path = tmp_path / f"{name}.npz"
        assert calibrant("calibrate", tmp_path / "val.npz", "--apply", path, "--method", "vector")[0] == 0
    one, two = (Predictions.load(tmp_path / f"{name}.calibrated.npz") for name in ("same", "turned"))
    np.testing.assert_allclose(one.probabilities, two.probabilities)
    np.testing.assert_array_equal(one.targets, two.targets)
    assert two.class_names == ("a", "b", "c")


def test_an_unknown_method_is_one_line_that_names_the_known_ones(calibrant, files):
    val, test = files
    code, out, err = calibrant("calibrate", val, "--apply", test, "--method", "temprature")
    assert (code, out) == (2, "")
    assert "Did you mean 'temperature'" in err
    assert all(name in calibrant("calibrate", val, "--apply", test, "--method", "?")[2] for name in METHODS)


def test_in_sample_numbers_are_named_so(calibrant, files, tmp_path):
    val, test = files
    code, _, err = calibrant("calibrate", val, "--apply", val)
    assert code == 0
    assert f"{val}: In-sample" in err
    assert calibrant("calibrate", val, "--apply", test)[2] == ""


def test_a_new_calibrator_takes_the_old_rule_away_aloud(calibrant, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(1000, seed=0).save(tmp_path / "predictions" / "val.npz")
    draw(400, seed=1).save(tmp_path / "predictions" / "test.npz")
    assert calibrant("route", "fit", tmp_path, "--calibrate", "--target-accuracy", 0.7)[0] == 0
    assert Policy.load(tmp_path / "policy.json").automates
    code, _, err = calibrant("calibrate", tmp_path, "--share", 0.2)
    assert (code, err.count("\n")) == (0, 1)
    assert "had a rule for another calibrator, which was removed" in err
    assert Policy.load(tmp_path / "policy.json").rule is None
    # The rule is then chosen on the cases that the calibrator has not seen.
    assert calibrant("route", "fit", tmp_path, "--target-accuracy", 0.7)[0] == 0
    assert Policy.load(tmp_path / "policy.json").rule.evidence.cases == 800


def test_bad_input(calibrant, files, tmp_path):
    val, test = files
    Predictions.from_logits(np.eye(3), [1, 1, 1]).save(tmp_path / "single.npz")
    for arguments, message in [
        ([val], "apply must name the predictions"),
        ([tmp_path / "single.npz", "--apply", test], "hold at least two classes"),
        ([val, "--apply", test, "-o", "out.csv"], "out must end in .npz"),
        ([tmp_path / "missing.npz", "--apply", test], "does not exist"),
        ([tmp_path, "--apply", test], "must be a file"),
        ([val, "--apply", test, "--method", "magic"], "magic"),
    ]:
        code, _, err = calibrant("calibrate", *arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "test.calibrated.npz").exists()
