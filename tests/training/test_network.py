"""Pretrained networks in the engine: what they expect, and what is frozen."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.training import train
from calibrant.training.checkpoint import load_checkpoint
from calibrant.training.network import freeze
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric


class Net(nn.Module):
    """Two blocks with statistics and dropout, and a head; inside a wrapper as pretrained ones are."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)),
            nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        return self.model(x)


def frozen(network):
    return [name for name, parameter in network.named_parameters() if not parameter.requires_grad]


@pytest.mark.parametrize(
    ("parts", "expected"), [((), ()), (("backbone",), ("0", "1")), (("0",), ("0",)), (("0.1", "1"), ("0.1", "1"))]
)
def test_what_is_frozen_keeps_weights_statistics_and_dropout(parts, expected):
    network = Net()
    modules = freeze(network, parts)
    rests = tuple(f"model.{part}." for part in expected)
    assert frozen(network) == [name for name, _ in network.named_parameters() if name.startswith(rests)]
    network.train()
    for module in modules:
        module.training = False
    before = {name: value.clone() for name, value in network.named_buffers()}
    network(torch.rand(8, 4))
    for name, value in network.named_buffers():
        assert torch.equal(value, before[name]) == name.startswith(rests), name
    assert network.model[0][2].training == ("0" not in expected)


def test_parts_that_are_not_there_are_refused():
    with pytest.raises(InvalidInput, match=r"model\.freeze must name parts of the network, got 'layer9'\. Known"):
        freeze(Net(), ["0", "layer9"])
    with pytest.raises(InvalidInput, match=r"got ''\. Known: backbone, 0, 1, 2, model\.$"):
        freeze(Net(), [""])
    with pytest.raises(InvalidInput, match=r"model\.freeze must leave something to train, got 0, 1, 2"):
        freeze(Net(), ["0", "1", "2"])


def recipe_for(toy_recipe, **changes):
    return toy_recipe(method__name="nll", method__options={}, epochs=4, **changes)


def weights(run, epoch):
    tensors = load_checkpoint(run.checkpoints / f"epoch-{epoch:05d}.safetensors").tensors
    return {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}


def test_a_frozen_backbone_never_changes_and_averaging_leaves_its_statistics(toy, toy_recipe, tmp_path):
    start = train(recipe_for(toy_recipe), tmp_path / "start", data=toy)
    file = start.checkpoints / "epoch-00004.safetensors"
    changes = {"model__weights": str(file), "model__freeze": "backbone", "schedule__average": 0.5, "seed": 9}
    run = train(recipe_for(toy_recipe, **changes), tmp_path / "run", data=toy)
    before, after = weights(start, 4), weights(run, 4)
    for name, value in after.items():
        assert torch.equal(value, before[name]) != name.startswith("head"), name


def test_weights_that_do_not_fit_are_one_line_and_leave_no_folder(calibrant, toy, toy_recipe, tmp_path):
    start = train(recipe_for(toy_recipe), tmp_path / "start", data=toy)
    settings = ["--data", "digits", "--model", "resnet32", "--epochs", "2", "--set", "engine.accelerator=cpu"]
    file = start.checkpoints / "epoch-00004.safetensors"
    code, out, err = calibrant("train", *settings, "--set", f"model.weights={file}", "--out", tmp_path / "run")
    assert code == 2
    assert out == ""
    assert err.startswith(
        "calibrant: weights epoch-00004.safetensors must hold stem.weight of shape (16, 1, 3, 3), got none"
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def timm(monkeypatch):
    """A stand-in for the library, with a small network and the input that it states."""

    def create_model(name, *, pretrained, num_classes):
        layers = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(8, num_classes))

    library = ModuleType("timm")
    library.is_model = lambda name: True
    library.create_model = create_model
    library.get_pretrained_cfg = lambda name: SimpleNamespace(
        input_size=(3, 12, 12), mean=(0.5, 0.4, 0.3), std=(0.25, 0.25, 0.5)
    )
    monkeypatch.setitem(sys.modules, "timm", library)


def test_a_network_of_timm_is_fine_tuned_with_its_own_input_and_read_again(toy, toy_recipe, timm, tmp_path):
    recipe = recipe_for(toy_recipe, model__name="timm:small")
    run = train(recipe, tmp_path / "run", data=toy)
    losses = [line["loss"] for line in run.epochs()]
    assert losses[-1] < losses[0]
    values = run.checkpoint().values
    assert values["model_input"] == {"size": [12, 12], "mean": [0.5, 0.4, 0.3], "std": [0.25, 0.25, 0.5]}
    assert values["mean"] == [0.0]
    model = run.load_model()
    with torch.no_grad():
        logits = model(toy.test.images.float() / 255).numpy()
    np.testing.assert_allclose(logits, run.predictions("test").logits, rtol=1e-4, atol=1e-5)


def test_input_is_the_data_sets_where_asked_or_where_the_network_says_nothing(toy, toy_recipe, timm):
    def setup(**changes):
        recipe = recipe_for(toy_recipe, **changes)
        return Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))

    assert setup(model__name="timm:small").expected_input.size == (12, 12)
    assert setup(model__name="timm:small", model__input="data").expected_input is None
    assert setup().expected_input is None
    with pytest.raises(InvalidInput, match=r"model\.input must be auto or data for tiny, got model"):
        setup(model__input="model")
