import json

import pytest

SEARCH = ("--search", "drop=0.3:0.8", "--epochs", 3)


def test_a_sweep_its_continuation_and_its_json(calibrant, tmp_path):
    out = tmp_path / "sweep"
    code, text, said = calibrant("sweep", *SEARCH, "--trials", 1, "--out", out)
    assert code == 0, said
    assert "Pareto front" in text
    assert (out / "sweep.json").is_file()
    code, text, _ = calibrant("sweep", "--trials", 2, "--out", out, "--json")
    assert code == 0
    content = json.loads(text)
    assert [trial["number"] for trial in content["finished"]] == [0, 1]
    assert content["objectives"] == ["validation error", "validation ECE", "share of sample updates"]
    assert set(content["front"]) <= {0, 1}


def test_a_sweep_of_which_nothing_came_says_why_and_fails(calibrant, tmp_path):
    impossible = ("--search", "optimiser.batch_size=4000,5000", "--epochs", 1, "--trials", 1)
    code, _, said = calibrant("sweep", *impossible, "--out", tmp_path)
    assert code == 1
    assert "no trial finished, 1 failed. The first: not possible: optimiser.batch_size" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", -1), "'seed' must"),
        (("--model", "resnet5000"), "Did you mean 'resnet50'"),
        ((), "has no sweep.toml yet"),
    ],
)
def test_bad_input_is_one_line_and_code_2(calibrant, tmp_path, arguments, message):
    code, out, said = calibrant("sweep", *arguments, "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_count_below_one_leaves_nothing_behind(calibrant, tmp_path):
    code, _, said = calibrant(
        "sweep", "--method", "nll", "--search", "optimiser.lr=0.01:0.1", "--trials", 0, "--out", tmp_path / "s"
    )
    assert (code, "must be a whole number" in said) == (2, True)
    assert not (tmp_path / "s").exists()
