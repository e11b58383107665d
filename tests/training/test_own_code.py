"""Runs whose loss or network is the user's own: they know the code they began with."""

from functools import partial

import pytest

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, resume, train

CODE = """
from torch import nn
from calibrant.losses import PerSampleLoss


class Absolute(PerSampleLoss):
    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.factor = factor

    def per_sample(self, batch):
        return self.factor * (1 - batch.true_log.exp())


def network(*, n_classes, image_shape):
    size = image_shape[0] * image_shape[1] * image_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, n_classes))
"""


@pytest.fixture
def write(own_module):
    return partial(own_module, "my_code")


@pytest.fixture
def recipe(toy_recipe):
    changes = {"method.name": "my_code:Absolute+unbiased", "method.options": {"factor": 2.0, "drop": 0.25}}
    return toy_recipe().changed({**changes, "model.name": "my_code:network"})


def test_an_own_loss_and_network_train_and_are_told(write, recipe, toy, tmp_path):
    write(CODE)
    run = train(recipe, tmp_path / "run", data=toy)
    assert run.summary["method"]["settings"]["factor"] == 2.0
    lines = run.epochs()
    assert set(lines[0]["terms"]) == {"absolute"}
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert run.summary["samples_seen"] < run.summary["samples_full"]
    assert set(run.recipe.own_code) == {"my_code"}
    assert run.recipe == Recipe.load(run.path / "recipe.toml")


def test_a_plan_of_another_module_is_digested_and_trusted_too(write, own_module, recipe, toy, tmp_path):
    write(CODE)
    plan = (
        "from calibrant.pruning import RandomSubset\n\ndef half(*, part: float = 0.5):\n    return RandomSubset(part)\n"
    )
    own_module("my_plan", plan, trusted=False)
    both = recipe.changed({"method.name": "my_code:Absolute+my_plan:half", "method.options": {"part": 0.25}})
    assert both.own_names() == ("my_code:Absolute", "my_plan:half", "my_code:network")
    with pytest.raises(InvalidInput, match="your own my_plan must be code that you trust before it is run"):
        train(both, tmp_path / "run", data=toy)
    run = train(both, tmp_path / "run", data=toy, trust_code=True)
    assert set(run.recipe.own_code) == {"my_code", "my_plan"}
    assert run.summary["samples_seen"] < run.summary["samples_full"]


def test_other_code_does_not_continue_a_run(write, recipe, toy, tmp_path):
    write(CODE)
    run = train(recipe, tmp_path / "run", data=toy)
    expected = (run.path / "predictions" / "test.npz").read_bytes()
    (run.path / "summary.json").unlink()
    write(CODE.replace("1 - batch", "2 - batch"))
    with pytest.raises(
        InvalidInput, match=r"your own my_code must be the file with SHA-256 \w{12}\.\.\., got the file"
    ):
        resume(run.path, data=toy)
    with pytest.raises(InvalidInput, match="leave own_code out of its recipe"):
        train(run.recipe, tmp_path / "again", data=toy)
    assert not (tmp_path / "again").exists()
    write(CODE)
    resume(run.path, data=toy)
    assert (run.path / "predictions" / "test.npz").read_bytes() == expected


def test_a_network_from_an_edited_file_is_not_loaded(write, recipe, toy, tmp_path):
    write(CODE)
    run = train(recipe, tmp_path / "run", data=toy)
    run.load_model()
    write(CODE + "\n# edited\n")
    with pytest.raises(
        InvalidInput, match=r"your own my_code must be the file with SHA-256 \w{12}\.\.\., got the file"
    ):
        run.load_model(trust_code=True)


def test_code_that_nobody_vouched_for_is_neither_trained_resumed_nor_loaded(write, recipe, toy, tmp_path, monkeypatch):
    write(CODE + "\n# unknown\n", trusted=False)
    with pytest.raises(InvalidInput, match="must be code that you trust"):
        train(recipe, tmp_path / "run", data=toy)
    assert not (tmp_path / "run").exists()
    run = train(recipe, tmp_path / "run", data=toy, trust_code=True)
    monkeypatch.setenv("CALIBRANT_STATE", str(tmp_path / "of another user"))
    monkeypatch.setattr("calibrant.own_code._trusted", set())
    write(CODE + "\n# unknown\n", trusted=False)
    with pytest.raises(InvalidInput, match="must be code that you trust"):
        run.load_model()
    (run.path / "summary.json").unlink()
    with pytest.raises(InvalidInput, match="must be code that you trust"):
        resume(run.path, data=toy)
    assert resume(run.path, data=toy, trust_code=True).finished


def test_only_own_code_has_a_digest():
    recipe = Recipe().changed({"model.name": "torchvision:resnet18"})
    assert recipe.with_code_digests() == recipe
    assert "own_code" not in recipe.to_toml()


def test_code_that_the_recipe_no_longer_names_is_refused():
    with pytest.raises(InvalidInput, match="your own gone must be the file with SHA-256 abc"):
        Recipe(own_code={"gone": "abc"}).with_code_digests()


def test_a_notebooks_code_is_not_taken_for_a_file(write):
    write(CODE)
    began = Recipe(own_code={"my_code": ""}).changed({"method.name": "my_code:Absolute"})
    with pytest.raises(
        InvalidInput, match="your own my_code must be code without a file, such as a notebook's, got the"
    ):
        began.with_code_digests()
