"""A command whose extra is missing says so in one line, before any work and without leaving anything behind."""

import sys

import numpy as np
import pytest

import calibrant.studies  # noqa: F401 (before a test replaces what it imports)
from calibrant import Predictions
from calibrant.training import Recipe, Run


def _no_work(*arguments, **settings):
    raise AssertionError("work was begun")


@pytest.fixture
def files(tmp_path):
    """Predictions, and a run that has not trained."""
    Predictions.from_logits(np.eye(3), [0, 1, 2]).save(tmp_path / "p.npz")
    Run.create(tmp_path / "run", Recipe())
    return tmp_path


@pytest.mark.parametrize(
    ("missing", "extra", "arguments", "work"),
    [
        ("lightning.fabric", "train", ("train", "--data", "digits", "--out", "new"), "training.engine.load_data"),
        ("optuna", "study", ("sweep", "--data", "digits", "--out", "new"), "studies.sweeps.load_data"),
        ("onnx", "export", ("export", "run", "--out", "new.onnx"), "training.run.Run._images_to_compare"),
        ("onnxscript", "export", ("export", "run", "--out", "new.onnx"), "training.run.Run._images_to_compare"),
        ("onnxruntime", "export", ("export", "run", "--out", "new.onnx"), "training.run.Run._images_to_compare"),
    ],
)
def test_a_missing_extra_is_said_before_any_work(calibrant, files, monkeypatch, missing, extra, arguments, work):
    monkeypatch.chdir(files)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(f"calibrant.{work}", _no_work)
    code, out, err = calibrant(*arguments)
    assert (code, out) == (2, "")
    assert f"pip install 'calibrant[{extra}]'" in err
    assert err.count("\n") == 1
    assert {path.name for path in files.iterdir()} == {"p.npz", "run"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--methods", "nll", "--data", "digits", "--out", "new"),
        ("ablate", "lambda", "--data", "digits", "--out", "new"),
        ("sweep", "--data", "digits", "--out", "new"),
        ("evaluate", "p.npz"),
    ],
)
@pytest.mark.parametrize("fault", ["missing", "address"])
def test_ray_that_is_missing_or_silent_is_said_before_any_work(calibrant, files, monkeypatch, arguments, fault):
    monkeypatch.chdir(files)
    if fault == "missing":
        monkeypatch.setitem(sys.modules, "ray", None)
    else:
        pytest.importorskip("ray", reason="Ray is not installed")
    code, out, err = calibrant(*arguments, "--executor", "ray", "--address", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert ("pip install 'calibrant[ray]'" if fault == "missing" else "got no answer from 127.0.0.1:1") in err
    assert err.count("\n") == 1
    assert {path.name for path in files.iterdir()} == {"p.npz", "run"}
