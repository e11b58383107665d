"""Each example learns something from real data, and its second file differs from the first in a few lines."""

import difflib
import json
import logging
import runpy
import warnings
from pathlib import Path

import pytest

from calibrant import Predictions
from calibrant.decisions import Policy

EXAMPLES = Path(__file__).parents[2] / "examples"
# Chance is a tenth for the digits and a quarter for the sentences.
LEAST = {"pytorch": 0.93, "lightning": 0.93, "huggingface_image": 0.9, "huggingface_text": 0.65, "sklearn": 0.85}
MOST_LINES = 10


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a file of an example in an empty folder; gives its variables."""

    def start(name, file):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="(lightning|torch|transformers).*")
            return runpy.run_path(str(EXAMPLES / name / file), run_name="__main__")

    return start


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__", "other_systems"} == set(LEAST)
    told = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}/`" in told for name in LEAST)


@pytest.mark.parametrize("name", LEAST)
def test_the_difference_is_a_few_lines(name):
    before, after = ((EXAMPLES / name / file).read_text().splitlines() for file in ("before.py", "after.py"))
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    assert 0 < len(changes) <= MOST_LINES
    assert any("calibrant" in line for line in changes)


# The temperature of these small sets comes from 100 cases: it may cost a little, and `judge` says so where it does.
@pytest.mark.filterwarnings("ignore:calibration made the NLL")
@pytest.mark.parametrize("name", [each for each in LEAST if each != "sklearn"])
def test_it_learns_and_ends_calibrated(name, run, tmp_path):
    found = run(name, "after.py")
    assert found["accuracy"] > LEAST[name]
    judgement = found["judgement"]
    assert judgement.raw.test_error == pytest.approx(1 - found["accuracy"], abs=1e-6)
    assert judgement.calibrated.nll <= judgement.raw.nll + 0.01
    assert judgement.policy.automates
    assert len(Predictions.load(tmp_path / "judged" / "predictions" / "test.npz")) > 500
    assert Policy.load(tmp_path / "judged" / "policy.json").digest == judgement.policy.digest
    if name.startswith("huggingface"):
        assert "calibrated" in (tmp_path / "trained" / "README.md").read_text()
        assert json.loads((tmp_path / "trained" / "config.json").read_text())["architectures"]


# The other first files hold nothing but lines of the second ones.
@pytest.mark.parametrize("name", ["pytorch", "lightning"])
def test_the_file_before_learns_too(name, run):
    assert run(name, "before.py")["accuracy"] > LEAST[name]


def test_scikit_learn_before_and_after(run):
    before, after = (run("sklearn", file) for file in ("before.py", "after.py"))
    assert after["accuracy"] > LEAST["sklearn"]
    assert after["nll"] < before["nll"] / 2
