"""A loss that follows validation: told after every epoch, kept in the checkpoint, the same on all ranks."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from calibrant.errors import InvalidInput
from calibrant.losses import AdaFocal
from calibrant.training import Reporter, Run, resume, train
from calibrant.training.checkpoint import newest_checkpoint
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

_OPTIONS = {"adafocal_bins": 3, "adafocal_switch": 0.9}


@pytest.fixture
def recipe(toy_recipe):
    """Three bins, and a switch that is soon passed."""
    return toy_recipe(method__name="adafocal", method__options=_OPTIONS)


class _Watch(Reporter):
    """Notes the checkpoint's exponents after each epoch."""

    def __init__(self):
        self.gammas = []

    def start(self, run, done):
        self.run = run

    def end_epoch(self, line):
        self.gammas.append(newest_checkpoint(self.run.checkpoints).tensors["loss.gammas"].tolist())


def test_the_exponents_are_those_of_each_epochs_validation(toy, recipe, tmp_path):
    """The run's own validation logits, epoch by epoch, given to a loss outside of the engine."""
    watch, heard = _Watch(), []
    outside = AdaFocal(3, switch=0.9)
    real = AdaFocal.after_validation

    def listen(self, logits, targets):
        heard.append((logits.clone(), targets.clone()))
        real(self, logits, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaFocal, "after_validation", listen)
        run = train(recipe, tmp_path / "run", data=toy, reporter=watch)
    assert len(heard) == recipe.epochs == len(watch.gammas)
    for (logits, targets), gammas in zip(heard, watch.gammas, strict=True):
        outside.after_validation(logits, targets)
        assert outside.gammas.tolist() == gammas
    assert len({tuple(gammas) for gammas in watch.gammas}) == recipe.epochs
    last = run.predictions("val")
    assert torch.equal(heard[-1][0], torch.tensor(last.logits))
    assert torch.equal(heard[-1][1], torch.tensor(last.targets))


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_run_ends_with_the_same_bits(toy, recipe, tmp_path, stopped, assert_same_run, epoch, every):
    recipe = recipe.changed({"engine.checkpoint_every": every})
    whole = train(recipe, tmp_path / "whole", data=toy)
    part = resume(stopped(recipe, tmp_path / "part", toy, epoch), data=toy)
    assert_same_run(part, whole)
    one, other = (newest_checkpoint(run.checkpoints).tensors for run in (part, whole))
    assert all(torch.equal(one[name], other[name]) for name in ("loss.gammas", "loss.edges"))
    plain = train(recipe.changed({"method": {"name": "fl", "options": {"gamma": 1.0}}}), tmp_path / "plain", data=toy)
    assert plain.epochs()[0]["loss"] == whole.epochs()[0]["loss"]
    assert plain.epochs()[-1]["loss"] != whole.epochs()[-1]["loss"]


def test_changed_exponents_in_a_checkpoint_are_noticed(toy, recipe, tmp_path, stopped):
    folder = stopped(recipe, tmp_path / "run", toy, 1)
    path = folder / "checkpoints" / "epoch-00001.safetensors"
    tensors = load_file(path)
    tensors["loss.gammas"] += 1
    save_file(tensors, path)
    with pytest.warns(Warning, match="digest does not match"), pytest.raises(InvalidInput, match="none of the 1"):
        resume(folder, data=toy)


def test_a_run_that_began_with_another_loss_is_refused(toy, toy_recipe, recipe, tmp_path, stopped):
    folder = stopped(toy_recipe(method__name="fl", method__options={}), tmp_path / "run", toy, 1)
    recipe.save(folder / "recipe.toml")
    with pytest.raises(InvalidInput, match=r"began with method\.name = fl, and its recipe\.toml says adafocal"):
        resume(folder, data=toy)


def test_other_losses_leave_checkpoints_as_they_were(toy, toy_recipe, tmp_path):
    run = train(toy_recipe(epochs=1, method__name="nll", method__options={}), tmp_path / "run", data=toy)
    assert not [name for name in newest_checkpoint(run.checkpoints).tensors if name.startswith("loss.")]


def test_validation_must_come_after_every_epoch(toy, recipe, tmp_path):
    with pytest.raises(InvalidInput) as error:
        train(recipe.changed({"engine.evaluate_every": 2}), tmp_path / "run", data=toy)
    told = "engine.evaluate_every must be 1 with adafocal, which follows validation, got 2."
    assert str(error.value).startswith(told)
    assert not (tmp_path / "run").exists()


def test_a_step_sees_the_new_exponents(toy, recipe):
    """The buffers that a step reads are those that validation changes."""
    recipe = recipe.changed({"engine.precision": "64-true"})
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))
    setup.network.eval()  # without batch statistics two passes are alike
    setup.steps.source.begin(1)
    batch = next(setup.steps.source.batches())
    logits = setup.network(batch.images).detach()
    losses = []
    for gamma in (1.0, 3.0):
        setup.loss.gammas.fill_(gamma)
        setup.steps.meter.reset()
        setup.set_learning_rate(0.0)
        setup.steps.learn(batch)
        losses.append(setup.steps.meter.read()["loss"])
        rows = torch.softmax(logits, dim=1)[torch.arange(len(batch.targets)), batch.targets].tolist()
        expected = sum(-((1 - p) ** gamma) * math.log(p) for p in rows) / len(rows)
        assert losses[-1] == pytest.approx(expected, rel=1e-9)


def test_a_run_tells_its_settings(toy, recipe, tmp_path):
    run = train(recipe.changed({"epochs": 1}), tmp_path / "run", data=toy)
    settings = json.loads((Run(run.path).path / "summary.json").read_text())["method"]["settings"]
    assert settings["adafocal_bins"] == 3
    assert settings["adafocal_highest"] == 20.0
