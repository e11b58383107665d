import json
import re
import warnings

import numpy as np
import pytest
from PIL import Image

from calibrant.training import Recipe, Run

_QUICK = ("--epochs", "2", "--set", "engine.accelerator=cpu")


def refused(calibrant, tmp_path, *arguments):
    """Run a command that must be refused; its one line. Nothing may be left behind."""
    before = sorted(tmp_path.rglob("*"))
    code, out, err = calibrant("train", *arguments, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return err


def recipe_file(tmp_path, text):
    (tmp_path / "recipe.toml").write_text(text)
    return tmp_path / "recipe.toml"


def test_training_prints_a_table_and_leaves_a_run(calibrant, tmp_path):
    code, out, err = calibrant("train", "--data", "digits", *_QUICK, "--seed", "4", "--out", tmp_path / "run")
    assert code == 0
    assert "test error" in out
    assert f"run folder: {tmp_path / 'run'}" in out
    # Not a terminal: a line for the beginning, one for each derived setting, and one an epoch.
    derived = r"(  [a-z_.]+: .*\n){7}"  # the epochs are given, and two are too few to average
    assert re.fullmatch(rf"nll on digits with tiny, 2 epochs, seed 4\n{derived}epoch 1/2: .*\nepoch 2/2: .*\n", err)
    assert "  data.mirror: no, the set's name says digits or letters\n" in err
    assert "\nwarning: The weights were updated only 136 times" in out
    assert Run(tmp_path / "run").summary["warnings"][0].startswith("The weights were updated only 136 times")
    run = Run(tmp_path / "run")
    assert run.finished
    assert (run.recipe.seed, run.recipe.epochs) == (4, 2)

    code, out, err = calibrant("train", "--resume", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out) == {"run": str(tmp_path / "run"), **run.summary}
    assert err == f"calibrant: run {tmp_path / 'run'} is finished already: nothing to do\n"


def test_flags_override_a_recipe_file_and_reach_the_method(calibrant, tmp_path):
    path = recipe_file(tmp_path, "epochs = 9\nseed = 1\n[method]\nname = 'nll'\n[optimiser]\nlr = 0.3\n")
    code, _, err = calibrant(
        *(
            "train",
            "--recipe",
            path,
            *_QUICK,
            "--method",
            "flsd+h+p-ema",
            "--set",
            "method.options.huber_weight=7",
            "--set",
            "method.options.fraction=0.3",
        ),
        *(
            "--set",
            "method.options.start=1",
            "--set",
            "method.options.interval=1",
            "--set",
            "method.options.ema=0.5",
            "--set",
            "optimiser.batch_size=100",
        ),
        *("--set", "schedule.kind=constant", "--set", "method.options.gamma_low=4", "--set", "data.augment=false"),
        *("--out", tmp_path / "run"),
    )
    assert code == 0, err
    run = Run(tmp_path / "run")
    recipe, method = run.recipe, run.summary["method"]
    assert (recipe.epochs, recipe.seed, recipe.optimiser.lr, recipe.optimiser.batch_size) == (2, 1, 0.3, 100)
    assert (recipe.schedule.kind, recipe.data.augment) == ("constant", False)
    expected = {"huber_weight": 7, "fraction": 0.3, "start": 1, "interval": 1, "ema": 0.5, "gamma_low": 4}
    assert {key: method["settings"][key] for key in expected} == expected


def test_without_out_the_folder_is_named_after_the_run(calibrant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert calibrant("train", "--data", "digits", "--epochs", "1", "--method", "nll")[0] == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        *("digits-tiny-nll-seed0", "digits-tiny-nll-seed0-2"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digit"], "Did you mean 'digits'?"),
        (["--epochs", "0"], "recipe key 'epochs' must"),
        (["--set", "optimiser.lr=-1"], "recipe key 'optimiser.lr' must"),
        (
            ["--set", "optimiser.batch_size=5000"],
            "optimiser.batch_size must not exceed the 1078 training images, got 5000.",
        ),
        (["--set", "optimiser.learning_rate=3"], "is unknown."),
        (["--set", "epochs"], "--set must be key=value, got 'epochs'."),
        (["--set", "engine.mode=graphed", "--set", "engine.accelerator=cpu"], "engine.mode graphed needs one GPU"),
        (["--set", "engine.mode=turbo"], "turbo"),
        (["--recipe", "no-such.toml"], "recipe no-such.toml does not exist."),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    calibrant, tmp_path, tmp_path_factory, monkeypatch, arguments, message
):
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    # A folder of its own: matplotlib, which Lightning imports, keeps its fonts there.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    assert message in refused(calibrant, tmp_path, *arguments)


def test_an_unknown_key_in_a_recipe_names_the_nearest(calibrant, tmp_path):
    path = recipe_file(tmp_path, "[optimiser]\nbatchsize = 3\n")
    line = refused(calibrant, tmp_path, "--recipe", path)
    assert line == "calibrant: recipe key 'optimiser.batchsize' is unknown. Did you mean 'optimiser.batch_size'?\n"


def write_images(folder, classes=2):
    """A folder data set of random pictures."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(classes):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(draw.integers(0, 255, (8, 8), dtype=np.uint8)).save(place / f"{number}.png")
    return folder


def test_an_unreadable_image_in_a_class_folder_is_named(calibrant, tmp_path):
    folder = write_images(tmp_path / "pictures")
    broken = folder / "train" / "class1" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    line = refused(
        calibrant, tmp_path, "--data", f"folder:{folder}", "--model", "tiny", "--set", "optimiser.batch_size=4"
    )
    assert str(broken) in line


def test_labels_that_do_not_fit_are_named(calibrant, tmp_path):
    images = np.zeros((6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bad.npz", x_train=images, y_train=[0, 1, 2, 0, 1, 2], x_test=images, y_test=[0, 1, 2, 3, 0, 1])
    line = refused(calibrant, tmp_path, "--data", f"arrays:{tmp_path / 'bad.npz'}", "--model", "tiny")
    assert "labels" in line
    (tmp_path / "narrow.py").write_text(
        "from torch import nn\n\n"
        "def network(*, n_classes, image_shape):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        line = refused(calibrant, tmp_path, "--data", "digits", "--model", "narrow:network")
    assert "must return logits" in line


def test_a_wrong_digest_is_named(calibrant, tmp_path, monkeypatch):
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"not what it should be")
    line = refused(calibrant, tmp_path, "--data", "cifar10", "--data-dir", folder)
    assert "cifar-10-binary.tar.gz" in line


def test_a_diverging_run_is_one_line_with_the_way_out(calibrant, tmp_path):
    code, _, err = calibrant(
        "train", "--data", "digits", *_QUICK, "--set", "optimiser.lr=1e20", "--out", tmp_path / "run"
    )
    assert code == 2
    line = err.splitlines()[-1]
    assert re.fullmatch(
        r"calibrant: the loss became NaN or infinite in epoch 1 at step \d+ of 68, learning rate 9\.9\d+e\+19\. "
        r"There was no checkpoint yet\. "
        r"Try a smaller learning rate, and look for NaN in the images\.",
        line,
    )
    assert list((tmp_path / "run").iterdir()) == []


def test_resume_takes_no_other_settings_and_names_what_is_no_run(calibrant, tmp_path):
    for extra in (("--set", "optimiser.lr=1"), ("--out", tmp_path / "x"), ("--data", "digits"), ("--set", "seed=2")):
        code, _, err = calibrant("train", "--resume", tmp_path, *extra)
        assert (code, err) == (
            2,
            "calibrant: --resume continues a run as it was begun: leave out the other settings.\n",
        )
    code, _, err = calibrant("train", "--resume", tmp_path)
    assert code == 2
    assert "run must be a run folder" in err


def test_a_damaged_checkpoint_is_one_plain_line(calibrant, tmp_path):
    folder = tmp_path / "run"
    assert calibrant("train", "--data", "digits", *_QUICK, "--out", folder)[0] == 0
    (folder / "summary.json").unlink()
    (folder / "checkpoints" / "epoch-00002.safetensors").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = calibrant("train", "--resume", folder)
    assert code == 0
    assert err.splitlines()[0] == (
        "calibrant: warning: checkpoint epoch-00002.safetensors is damaged: SafetensorError. The one before it is used."
    )


def test_interrupts_say_how_to_go_on(calibrant, tmp_path, monkeypatch):
    def interrupted(recipe, out, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrant.training.train", interrupted)
    code, _, err = calibrant("train", "--out", tmp_path / "run")
    assert (code, err) == (130, "calibrant: stopped before anything was written\n")
    Run.create(tmp_path / "run", Recipe())
    code, _, err = calibrant("train", "--out", tmp_path / "run")
    assert (code, err) == (130, f"calibrant: stopped; continue with: calibrant train --resume {tmp_path / 'run'}\n")


def test_a_run_on_own_arrays_goes_on_from_another_folder(calibrant, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 255, (40, 8, 8), dtype=np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(40) % 2 for part in ("train", "test")}
    np.savez(tmp_path / "mine.npz", **arrays, **labels)
    monkeypatch.chdir(tmp_path)
    flags = ("--model", "tiny", "--method", "nll", "--epochs", 1, "--set", "optimiser.batch_size=8")
    code, _, said = calibrant("train", "--data", "arrays:mine.npz", *flags, "--out", "run")
    assert code == 0, said
    (tmp_path / "run" / "summary.json").unlink()  # as after a kill
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, said = calibrant("train", "--resume", tmp_path / "run")
    assert code == 0, said
