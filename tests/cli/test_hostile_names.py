"""Names that a file brings: brackets are no markup, and nothing steers the terminal."""

import numpy as np
import pytest

from calibrant import Predictions

NAMES = ["[/red]", "\x1b[31mowl\x07", "[bold]"]


def draw(n, *, seed, class_names=NAMES):
    rng = np.random.default_rng(seed)
    z = 8.0 * rng.normal(size=(n, 3))
    return Predictions.from_logits(1.5 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), class_names=class_names)


@pytest.fixture
def files(tmp_path):
    """Validation and test predictions with odd class names, in files with odd names."""
    folder = tmp_path / "\x1b[2J["  # with what follows, a closing tag in the path
    folder.mkdir()
    for seed, name in enumerate(("val", "test")):
        draw(1500, seed=seed).save(folder / f"red]{name}.npz")
    return folder / "red]val.npz", folder / "red]test.npz"


def test_every_table_shows_names_as_they_are(calibrant, files, tmp_path):
    val, test = files
    rule = val.with_name("policy.json")
    commands = [
        ("evaluate", val),
        ("evaluate", val, test, "--max-ece", 1),
        ("calibrate", val, "--apply", test),
        ("route", "fit", val, "--target-accuracy", 0.9, "--per-class"),
        ("route", "check", rule, test),
        ("route", "shortlist", rule, test),
        ("route", "apply", rule, test, "-o", test.with_name("red]out.csv")),
        ("report", test, "-o", test.with_name("red]page.html"), "--n-resamples", 0),
    ]
    for command in commands:
        code, out, err = calibrant(*command)
        assert (code, err) == (0, ""), command
        assert "\x1b" not in out, command
        assert "\x07" not in out, command
    _, out, _ = calibrant(*commands[4])
    assert "[/red]" in out
    assert r"\x1b[31mowl\x07" in out


def test_complaints_and_warnings_are_clean_too(calibrant, files):
    val, _ = files
    assert calibrant("route", "fit", val, "--target-accuracy", 0.9)[0] == 0
    code, _, err = calibrant("route", "check", val.with_name("policy.json"), val)
    assert (code, err.startswith("calibrant: warning: the rule of this policy saw cases of ")) == (0, True)
    assert r"\x1b[2J[/red]val.npz" in err
    code, _, err = calibrant("evaluate", val.with_name("no\x1b[2Jne.npz"))
    assert (code, err.count("\n"), "\x1b" in err) == (2, 1, False)


def test_a_training_ends_with_its_table_whatever_its_folder_is_called(calibrant, tmp_path):
    folder = tmp_path / "[/red]"
    code, out, _ = calibrant("train", "--epochs", 1, "--method", "nll", "--out", folder)
    assert code == 0
    assert f"run folder: {folder}" in out


def test_a_long_complaint_is_cut_in_the_middle(calibrant, tmp_path):
    code, _, err = calibrant("evaluate", tmp_path.joinpath(*["deep" * 20] * 20, "none.npz"))
    assert (code, err.count("\n")) == (2, 1)
    assert len(err) < 420
    assert " ... " in err
