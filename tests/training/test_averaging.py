"""The mean of the weights, held against a plain mean of snapshots and batch statistics computed by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.training.checkpoint import load_checkpoint
from calibrant.training.engine import resume, train
from calibrant.training.final_weights import WeightAverage


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double()


def walk(network, average, epochs):
    """Random steps; returns the weights after each epoch."""
    snapshots = []
    for epoch in range(1, epochs + 1):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.include(epoch)
        snapshots.append([parameter.detach().numpy().copy() for parameter in network.parameters()])
    return snapshots


def test_the_mean_is_that_of_the_last_epochs_and_statistics_are_the_means_own():
    network = make_network()
    average = WeightAverage(network, first=3)
    snapshots = walk(network, average, 6)
    batches = list(torch.randn(3, 8, 2, 6, 6, dtype=torch.float64))
    average.apply_mean(iter(batches))
    for parameter, *values in zip(network.parameters(), *snapshots[2:], strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), np.mean(values, axis=0), rtol=1e-12, atol=1e-14)
    convolved = [network[0](images).detach().transpose(0, 1).flatten(1) for images in batches]
    expected = torch.stack([values.mean(1) for values in convolved]).mean(0)
    torch.testing.assert_close(network[1].running_mean, expected)
    torch.testing.assert_close(network[1].running_var, torch.stack([values.var(1) for values in convolved]).mean(0))
    assert network[1].momentum == 0.1


def test_state_goes_over_to_another_average():
    networks = make_network(), make_network()
    averages = [WeightAverage(network, first=1) for network in networks]
    walk(networks[0], averages[0], 3)
    saved = {name: value.detach().clone() for name, value in averages[0].state_dict().items()}
    averages[1].load_state_dict(saved)
    here = {name: value.clone() for name, value in networks[0].state_dict().items()}
    for average, network in zip(averages, networks, strict=True):
        torch.manual_seed(1)
        network.load_state_dict(here)
        walk(network, average, 2)
        average.apply_mean([torch.ones(2, 2, 6, 6, dtype=torch.float64)])
    for left, right in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.equal(left, right)
    assert int(averages[1].state_dict()["count"]) == 5


def weights(run, epoch):
    """The parameters in a checkpoint, without the batch statistics."""
    tensors = load_checkpoint(run.checkpoints / f"epoch-{epoch:05d}.json").tensors
    return {name: tensors[name] for name in tensors if name.startswith("model.") and "running" not in name}


@pytest.fixture(scope="module")
def recipe(toy_recipe):
    return toy_recipe(schedule__kind="constant", schedule__average=0.5)


@pytest.fixture(scope="module")
def undisturbed(recipe, toy, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("runs") / "whole", data=toy)


def test_a_run_ends_with_the_mean_of_what_it_would_have_passed_through(undisturbed, recipe, toy, tmp_path):
    plain = train(recipe.changed({"schedule.average": 0.0}), tmp_path / "plain", data=toy)
    third, fourth, settled = weights(plain, 3), weights(plain, 4), weights(undisturbed, 4)
    for name in (name for name in settled if settled[name].is_floating_point()):
        torch.testing.assert_close(settled[name], (third[name] + fourth[name]) / 2)
        assert not torch.equal(settled[name], fourth[name])
    loaded = undisturbed.load_model().state_dict()
    assert all(torch.equal(loaded[name.removeprefix("model.")], value) for name, value in settled.items())
    assert undisturbed.epochs()[-1]["loss"] == plain.epochs()[-1]["loss"]
    assert undisturbed.epochs()[-1]["validation"] != plain.epochs()[-1]["validation"]


def test_batch_statistics_are_those_of_the_samples_of_the_last_epoch(recipe, toy, tmp_path, monkeypatch):
    seen = []
    real = WeightAverage.apply_mean
    monkeypatch.setattr(
        WeightAverage, "apply_mean", lambda self, images: real(self, (seen.append(len(x)) or x for x in images))
    )
    # Cut after the third epoch, and due again after the fourth, when nobody trains any more.
    run = train(recipe.changed({"method.options.interval": 1}), tmp_path / "run", data=toy)
    assert sum(seen) == run.epochs()[-1]["kept"] < 81


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_resumed_run_has_the_same_mean(epoch, undisturbed, recipe, toy, tmp_path, assert_same_run, stopped):
    assert_same_run(resume(stopped(recipe, tmp_path / "run", toy, epoch), data=toy), undisturbed)
