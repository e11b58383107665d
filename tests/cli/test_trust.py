"""Which commands import code that a file names: none, unless its user has trusted it."""

import shutil

import pytest

from calibrant import own_code
from calibrant.training import paper_recipe, train

EVIL = "from pathlib import Path\nPath('it_ran').touch()\ndef f(**_):\n    Path('it_ran').touch()\n"
LOSS = "from calibrant.losses import CrossEntropy\ndef f():\n    return CrossEntropy()\n"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    recipe = paper_recipe("digits", epochs=1, method__name="nll")
    return train(recipe, tmp_path_factory.mktemp("honest") / "run").path


@pytest.fixture
def evil(own_module, tmp_path):
    """A module that nobody has trusted; `evil()` says whether it ran."""
    own_module("my_evil", f"{EVIL}# {tmp_path}\n", trusted=False)  # one test's trust is not another's
    return (tmp_path / "it_ran").exists


@pytest.fixture
def run(honest, tmp_path):
    """Somebody else's run: `run("model")` names the module as its network."""

    def make(part, *, finished=True, digest=None):
        shutil.copytree(honest, tmp_path / "run")
        path = tmp_path / "run" / "recipe.toml"
        usual = {"model": 'name = "tiny"', "method": 'name = "nll"'}[part]
        text = path.read_text()
        assert text.count(usual) == 1
        text = text.replace(usual, 'name = "my_evil:f"')
        path.write_text(text if digest is None else f'{text}\n[own_code]\nmy_evil = "{digest}"\n')
        if not finished:
            (tmp_path / "run" / "summary.json").unlink()
        return tmp_path / "run"

    return make


@pytest.mark.parametrize("part", ["method", "model"])
def test_recording_and_reporting_import_nothing(calibrant, evil, run, part, tmp_path):
    folder = run(part)
    assert calibrant("record", folder, "--out", tmp_path / "results")[0] == 0
    assert calibrant("report", folder, "-o", tmp_path / "report.html")[0] == 0
    assert not evil()


@pytest.mark.parametrize("part", ["method", "model"])
def test_resuming_asks_for_trust_and_checks_the_digest_before_it_imports(calibrant, evil, run, part):
    folder = run(part, finished=False, digest="0" * 64)
    code, _, said = calibrant("train", "--resume", folder, "--trust-code")
    assert (code, evil()) == (2, False)
    assert "your own my_evil must be the file with SHA-256 000000000000" in said
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("0" * 64, own_code.digest("my_evil:f")))
    code, _, said = calibrant("train", "--resume", folder)
    assert (code, evil()) == (2, False)
    assert "your own my_evil must be code that you trust" in said
    calibrant("train", "--resume", folder, "--trust-code")
    assert evil()


def test_exporting_asks_for_trust(calibrant, evil, run, tmp_path):
    folder = run("model")
    code, _, said = calibrant("export", folder, "--out", tmp_path / "x.onnx")
    assert (code, evil()) == (2, False)
    assert "your own my_evil must be code that you trust" in said


@pytest.mark.parametrize("text", ['methods = ["my_evil:f"]', 'methods = ["nll"]\nmodels = ["my_evil:f"]'])
def test_going_on_with_somebodys_study_asks_for_trust(calibrant, evil, tmp_path, text):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "study.toml").write_text(f"{text}\n[recipe]\nepochs = 1\n")
    code, _, said = calibrant("compare", "--out", tmp_path / "old")
    assert (code, evil()) == (2, False)
    assert "your own my_evil must be code that you trust" in said
    assert not (tmp_path / "old" / "runs").exists()


@pytest.mark.parametrize("part", ["method", "model"])
def test_going_on_with_somebodys_sweep_asks_for_trust(calibrant, evil, tmp_path, part):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sweep.toml").write_text(f'{part} = "my_evil:f"\n')
    (tmp_path / "old" / "sweep.db").touch()
    code, _, said = calibrant("sweep", "--out", tmp_path / "old", "--trials", 1)
    assert (code, evil()) == (2, False)
    assert "your own my_evil must be code that you trust" in said


def test_a_recipe_that_somebody_sent_asks_for_trust(calibrant, evil, tmp_path):
    (tmp_path / "sent.toml").write_text('[method]\nname = "my_evil:f"\n')
    for flags in ((), ("--set", "method.options.gamma=3")):
        code, _, said = calibrant("train", "--recipe", tmp_path / "sent.toml", *flags, "--out", tmp_path / "run")
        assert (code, evil()) == (2, False)
        assert "your own my_evil must be code that you trust" in said


def test_naming_code_on_the_command_line_is_trust_and_is_remembered(calibrant, own_module, tmp_path, monkeypatch):
    own_module("my_named_loss", LOSS, trusted=False)
    assert calibrant("train", "--method", "my_named_loss:f", "--epochs", 1, "--out", tmp_path / "run")[0] == 0
    monkeypatch.setattr(own_code, "_trusted", set())  # as in another process
    own_module("my_named_loss", LOSS, trusted=False)
    (tmp_path / "run" / "summary.json").unlink()
    assert calibrant("train", "--resume", tmp_path / "run")[0] == 0
