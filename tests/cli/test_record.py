import json
import shutil

import pytest

from calibrant.training import paper_recipe, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run as `calibrant train` leaves it, outside of any study."""
    return train(paper_recipe("digits", epochs=1, method__name="nll"), tmp_path_factory.mktemp("record") / "run")


def test_a_run_becomes_one_file_named_by_content(calibrant, run, tmp_path):
    code, out, _ = calibrant("record", run.path, "--out", tmp_path, "--concurrent", 1)
    assert code == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "digits-tiny-nll-epochs=1-seed0.json"
    assert str(path) in out
    content = json.loads(path.read_text())
    assert content["concurrent_runs"] == 1
    assert content["test"]["10"]["ece"] == run.summary["test"]["ece"]
    assert content["test"]["15"]["ece"] == pytest.approx(run.summary["test_ece_15_bins"])


def test_json(calibrant, run, tmp_path):
    code, out, _ = calibrant("record", run.path, "--out", tmp_path, "--json")
    assert (code, json.loads(out)[0]["method"]) == (0, "nll")


def test_unfinished_runs_are_named_and_the_others_recorded(calibrant, run, tmp_path):
    stopped = tmp_path / "stopped"
    shutil.copytree(run.path, stopped)
    (stopped / "summary.json").unlink()
    code, out, said = calibrant("record", stopped, run.path, "--out", tmp_path / "results")
    assert code == 2
    assert f"not finished, so not recorded: {stopped}. Continue them with" in said
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["digits-tiny-nll-epochs=1-seed0.json"]
    assert str(run.path) in out


def test_bad_input(calibrant, tmp_path):
    code, _, said = calibrant("record", tmp_path, "--out", tmp_path / "results")
    assert (code, "run must" in said) == (2, True)
    code, _, said = calibrant("record", tmp_path, "--concurrent", 0)
    assert (code, "concurrent must be" in said) == (2, True)
    code, _, said = calibrant("record")
    assert (code, "at least one run folder" in said) == (2, True)
