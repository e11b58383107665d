import json
import sys

import numpy as np
import pytest

from calibrant import Predictions
from tests.report.conftest import run_folder

__all__ = ["run_folder"]


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 80)
    for name in ("nll", "flsd"):
        logits = rng.normal(size=(80, 3))
        logits[np.arange(80), targets] += 2
        Predictions.from_logits(logits, targets).save(tmp_path / f"{name}.npz")
    return [tmp_path / "nll.npz", tmp_path / "flsd.npz"]


def test_page_is_written_and_named(calibrant, files, tmp_path):
    page = tmp_path / "out" / "page.html"
    code, out, err = calibrant("report", *files, "-o", page, "--n-resamples", 20, "--title", "Two models")
    assert (code, err) == (0, "")
    assert out.split() == ["report:", str(page)]
    html = page.read_text(encoding="utf-8")
    assert "<title>Two models</title>" in html
    assert html.index('data-value="nll"') < html.index('data-value="flsd"')


def test_names_and_threshold_are_the_users(calibrant, files, tmp_path):
    page = tmp_path / "page.html"
    names = ["--name", "first", "--name", "second"]
    assert calibrant("report", *files, "-o", page, *names, "--threshold", 0.8, "--n-resamples", 0)[0] == 0
    html = page.read_text(encoding="utf-8")
    assert "Automated at 0.8" in html
    assert 'data-value="second"' in html


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "report needs"),
        (("missing.npz",), "missing.npz does not exist"),
        (("nll.npz", "--name", "a", "--name", "b"), "name must be given once"),
        (("nll.npz", "--images", "missing.npz"), "missing.npz does not exist"),
        (("nll.npz", "--kind", "odds"), "odds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(calibrant, files, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = calibrant("report", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_too_few_resamples_are_refused(calibrant, files, tmp_path):
    code, _, err = calibrant("report", *files, "-o", tmp_path / "page.html", "--n-resamples", 19)
    assert (code, err.strip().count("\n")) == (2, 0)
    assert "n_resamples must be" in err
    assert "got 19" in err
    assert not (tmp_path / "page.html").exists()


def change(path, **members):
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def to_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("summary.json", lambda path: change(path, environment="a text")),
        ("summary.json", lambda path: change(path, samples_seen="many")),
        ("summary.json", lambda path: path.write_text("[" * 100_000)),
        ("recipe.toml", lambda path: path.write_bytes(b"\xff")),
        ("policy.json", lambda path: path.write_text('{"format": "calibrant-policy"}')),
        ("pruning.npz", lambda path: path.write_bytes(b"")),
        ("pruning.npz", lambda path: np.savez(path, header=np.array("[]"))),
        ("predictions/test.npz", lambda path: path.write_bytes(b"")),
        ("pruning.npz", to_folder),
    ],
)
def test_damaged_run_is_one_line(calibrant, run_folder, name, damage):
    damage(run_folder / name)
    code, out, err = calibrant("report", run_folder, "--n-resamples", 0, "--no-pictures")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert name in err
    assert not (run_folder / "report.html").exists()


def test_groups_stand_on_the_page_with_the_worst_named(calibrant, tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 300)
    site = np.where(np.arange(300) < 200, "north", "south")
    logits = rng.normal(size=(300, 3))
    logits[np.arange(300), targets] += np.where(site == "north", 4.0, 0.5)
    Predictions.from_logits(logits, targets, extras={"site": site}).save(tmp_path / "a.npz")
    where = tmp_path / "page.html", "--n-resamples", 20
    code, _, err = calibrant("report", tmp_path / "a.npz", "-o", *where, "--groups", "site")
    assert (code, err) == (0, "")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Groups by site: a" in html
    assert "Worst by test error: south." in html
    assert "Worse than all cases beyond chance: south." in html
    assert html.index(">south<") < html.index(">north<")
    assert "automated at 0.95, %" in html
    code, _, err = calibrant("report", tmp_path / "a.npz", "-o", *where, "--groups", "sight")
    assert code == 2
    assert "groups must" in err


def test_a_page_with_groups_needs_no_matplotlib(calibrant, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    cases = Predictions.from_probabilities([[0.8, 0.2], [0.3, 0.7]], [0, 0], extras={"site": ["north", "south"]})
    cases.save(tmp_path / "a.npz")
    code, _, err = calibrant("report", tmp_path / "a.npz", "-o", tmp_path / "page.html", "--groups", "site")
    assert code == 0
    assert err == ""
    assert "Groups by site: a" in (tmp_path / "page.html").read_text(encoding="utf-8")
