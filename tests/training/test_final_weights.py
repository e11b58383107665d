"""The mean of the weights, and the best epoch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from calibrant.errors import InvalidInput
from calibrant.metrics import negative_log_likelihood
from calibrant.predictions import Predictions
from calibrant.training import Recipe, Run, resume, train
from calibrant.training.checkpoint import load_checkpoint, newest_checkpoint
from calibrant.training.final_weights import BestEpoch, selection_figure, take_mean


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double()


def test_the_network_takes_the_mean_and_its_own_statistics():
    network = make_network()
    average, snapshots = AveragedModel(network), []
    for _ in range(4):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update_parameters(network)
        snapshots.append([parameter.detach().numpy().copy() for parameter in network.parameters()])
    batches = list(torch.randn(3, 8, 2, 6, 6, dtype=torch.float64))
    take_mean(network, average, iter(batches))
    for parameter, *values in zip(network.parameters(), *snapshots, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), np.mean(values, axis=0), rtol=1e-12, atol=1e-14)
    convolved = [network[0](images).detach().transpose(0, 1).flatten(1) for images in batches]
    expected = torch.stack([values.mean(1) for values in convolved]).mean(0)
    torch.testing.assert_close(network[1].running_mean, expected)
    torch.testing.assert_close(network[1].running_var, torch.stack([values.var(1) for values in convolved]).mean(0))
    assert network[1].momentum == 0.1


def weights(run, epoch):
    """The parameters in a checkpoint, without the batch statistics."""
    tensors = load_checkpoint(run.checkpoints / f"epoch-{epoch:05d}.safetensors").tensors
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
    monkeypatch.setattr(
        "calibrant.training.engine.take_mean",
        lambda network, average, images: take_mean(network, average, (seen.append(len(x)) or x for x in images)),
    )
    # Cut after the third epoch, and due again after the fourth, when nobody trains any more.
    run = train(recipe.changed({"method.options.interval": 1}), tmp_path / "run", data=toy)
    assert sum(seen) == run.epochs()[-1]["kept"] < 81


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_resumed_run_has_the_same_mean(epoch, undisturbed, recipe, toy, tmp_path, assert_same_run, stopped):
    assert_same_run(resume(stopped(recipe, tmp_path / "run", toy, epoch), data=toy), undisturbed)


FIGURES = ("best:error", "best:nll", "best:scaled-nll")


def predictions(seed, n=60):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 3, n)
    return Predictions.from_logits(generator.normal(size=(n, 3)) + 2 * np.eye(3)[targets], targets)


def test_the_figures():
    validation = predictions(0)
    logits, targets = validation.logits.astype(float), validation.targets

    def nll(temperature):
        scaled = logits / temperature
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(targets)), targets]))

    assert selection_figure("best:error", validation) == pytest.approx(np.mean(logits.argmax(1) != targets))
    assert selection_figure("best:nll", validation) == pytest.approx(nll(1.0), abs=1e-6)
    finest = min(nll(t) for t in np.linspace(0.2, 5, 4801))
    assert selection_figure("best:scaled-nll", validation) == pytest.approx(finest, abs=1e-5)


def test_a_network_without_a_temperature_is_judged_as_it_is():
    flat = Predictions.from_logits(np.zeros((5, 2)), [0, 1, 0, 1, 1])
    assert selection_figure("best:scaled-nll", flat) == negative_log_likelihood(flat)


@pytest.mark.parametrize("select", FIGURES)
def test_the_lowest_counts_and_of_equals_the_first(select):
    best, network = BestEpoch(select), torch.nn.Linear(1, 1)
    sequence = [3, 1, 2, 1, 4]
    figures = []
    for epoch, seed in enumerate(sequence, start=1):
        torch.nn.init.constant_(network.weight, epoch)
        figures.append(best.consider(epoch, predictions(seed), network))
    assert figures == [selection_figure(select, predictions(seed)) for seed in sequence]
    assert best.epoch == 1 + int(np.argmin(figures))
    assert float(best.weights["weight"]) == best.epoch, "a copy: later epochs do not change it"


@pytest.fixture
def best_recipe(toy_recipe):
    # A rate that stays high: the last epoch is not the best.
    settings = {"epochs": 5, "select": "best:nll", "optimiser__lr": 0.2, "schedule__kind": "constant"}
    return lambda **changes: toy_recipe(**settings, **changes)


def test_both_conventions_are_kept_and_runs_go_on(toy, toy_recipe, best_recipe, tmp_path, stopped, assert_same_run):
    recipe = best_recipe()
    whole = train(recipe, tmp_path / "whole", data=toy)
    figures = [line["selection"] for line in whole.epochs()]
    best = whole.summary["best"]
    assert best["epoch"] == 1 + int(np.argmin(figures)) < 5, "another problem is needed: the last epoch is the best"
    assert best["figure"] == pytest.approx(min(figures))
    validation = whole.predictions("val", best=True)
    assert negative_log_likelihood(validation) == pytest.approx(best["figure"], rel=1e-6)
    assert negative_log_likelihood(whole.predictions("val")) == pytest.approx(figures[-1], rel=1e-6)

    # The last epoch is what it is without it.
    plain = train(recipe.changed({"select": "last"}), tmp_path / "plain", data=toy)
    for split in ("val", "test"):
        assert np.array_equal(plain.predictions(split).logits, whole.predictions(split).logits)
    assert plain.summary["best"] is None
    assert not plain.predictions_path("test", best=True).exists()

    for epoch in (best["epoch"], 4):
        again = resume(stopped(recipe, tmp_path / f"after-{epoch}", toy, epoch), data=toy)
        assert_same_run(again, whole)
        for split in ("val", "test"):
            found, expected = (run.predictions(split, best=True).logits for run in (again, whole))
            assert np.array_equal(found, expected)


def test_the_weights_of_the_best_epoch_make_its_test_predictions(toy, best_recipe, tmp_path):
    run = train(best_recipe(), tmp_path / "run", data=toy)
    checkpoint = newest_checkpoint(run.checkpoints)
    network = run.load_model()
    best = {name: value for name, value in checkpoint.tensors.items() if name.startswith("best.weights.")}
    network.load_state_dict({name.removeprefix("best.weights."): value for name, value in best.items()})
    network.eval()
    images = (toy.test.images.float() / 255 - torch.tensor(toy.mean).view(1, -1, 1, 1)) / torch.tensor(toy.std).view(
        1, -1, 1, 1
    )
    with torch.no_grad():
        expected = network(images).numpy()
    np.testing.assert_allclose(run.predictions("test", best=True).logits, expected, atol=1e-4)


def test_it_is_refused_where_an_epoch_is_not_evaluated(toy, toy_recipe, tmp_path):
    message = r"select must be last unless every epoch is evaluated \(engine.evaluate_every is 2\), got best:nll"
    with pytest.raises(InvalidInput, match=message):
        Recipe(select="best:nll", engine={"evaluate_every": 2})
    with pytest.raises(InvalidInput, match="recipe key 'select' must be one of 'last', 'best:error', 'best:nll'"):
        Recipe(select="best:ece")
    run = train(toy_recipe(epochs=1, method__name="nll", method__options={}), tmp_path / "run", data=toy)
    with pytest.raises(InvalidInput, match=r"kept the predictions of its last epoch alone\. Train with select ="):
        Run(run.path).predictions("test", best=True)
