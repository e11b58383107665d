"""`calibrant methods`."""

import json
import sys

import pytest

from calibrant.training import methods


def test_lists_every_method_with_its_loss_pruning_and_source(calibrant, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = calibrant("methods")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert set(methods.names()) <= set(lines)
    assert "Huber(mean confidence - accuracy)" in lines["flsd+h"]
    assert "least confident" in lines["flsd+h+p-ema"]
    assert "Mukhoti et al. 2020" in lines["flsd"]
    assert "  plans: p, p-ema, highest, random, unbiased, " in out


def test_json_holds_what_resolve_gives(calibrant):
    code, out, _ = calibrant("methods", "--json", "--data", "cifar10", "--model", "resnet32")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert tuple(rows) == methods.names()
    assert rows["flsd+h"]["settings"]["huber_weight"] == 25.0
    for name, row in rows.items():
        plan = methods.resolve(name, data="cifar10", model="resnet32")
        assert row["settings"] == plan.settings
        assert row["sources"].keys() == plan.settings.keys()


def test_one_method_shows_each_setting_with_its_source(calibrant, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = calibrant("methods", "flsd+h+p-ema", "--data", "cifar10", "--epochs", "80")
    assert code == 0
    (start,) = (line for line in out.splitlines() if "start" in line)
    assert "40" in start
    assert "80 of 160 epochs scaled to 80" in start


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("fsld",), "Did you mean 'flsd'?"), (("flsd", "--epochs", "0"), "epochs must")],
)
def test_bad_input_is_one_line_and_code_2(calibrant, arguments, words):
    code, out, err = calibrant("methods", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_an_own_method_is_shown_letter_by_letter_and_its_prints_spoil_no_json(calibrant, tmp_path, monkeypatch):
    text = 'print("hello")\nfrom calibrant.losses import Brier\ndef f(*, kind="[bold]x"):\n    return Brier()\n'
    (tmp_path / "my_shown.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, out, err = calibrant("methods", "my_shown:f", "--json")
    assert (code, err) == (0, "hello\n")
    assert json.loads(out)["settings"] == {"kind": "[bold]x"}
    assert "[bold]x" in calibrant("methods", "my_shown:f")[1]
    monkeypatch.delitem(sys.modules, "my_shown", raising=False)
