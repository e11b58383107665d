import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.training.data import Images
from calibrant.training.network import make_model
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, choose_data_path, choose_mode, load_data, make_fabric, make_optimiser


class FakeFabric:
    def __init__(self, device, world_size=1):
        self.device, self.world_size = torch.device(device), world_size


@pytest.mark.parametrize(
    ("device", "world_size", "changes", "data_path", "expected"),
    [
        ("cpu", 1, {}, "resident", "eager"),
        ("cpu", 1, {"engine__mode": "compiled"}, "resident", "compiled"),
        ("cuda", 1, {}, "resident", "graphed"),
        ("cuda", 1, {"engine__mode": "graphed"}, "resident", "graphed"),
        ("cuda", 1, {"optimiser__batch_size": 128}, "loader", "eager"),
        ("cuda", 1, {"optimiser__batch_size": 1024}, "loader", "compiled"),
        ("cuda", 2, {"optimiser__batch_size": 1024}, "resident", "compiled"),
    ],
)
def test_auto_takes_the_fastest_mode_that_can_work(toy_recipe, device, world_size, changes, data_path, expected):
    assert choose_mode(toy_recipe(**changes), FakeFabric(device, world_size), data_path) == expected


@pytest.mark.parametrize(
    ("device", "world_size", "data_path"),
    [("cpu", 1, "resident"), ("cuda", 2, "resident"), ("cuda", 1, "loader")],
)
def test_what_a_graph_cannot_hold_is_refused(toy_recipe, device, world_size, data_path):
    recipe = toy_recipe(engine__mode="graphed")
    with pytest.raises(InvalidInput, match="graphed needs one GPU and resident data"):
        choose_mode(recipe, FakeFabric(device, world_size), data_path)


def test_the_data_path(toy_recipe, monkeypatch):
    pixels, labels, cpu = torch.zeros(10, 1, 10, 10, dtype=torch.uint8), torch.arange(10), torch.device("cpu")
    images, others = Images(pixels, labels), TensorDataset(pixels.float(), labels)
    assert choose_data_path(toy_recipe(), images, cpu) == "resident"
    assert choose_data_path(toy_recipe(engine__data_path="loader"), images, cpu) == "loader"
    assert choose_data_path(toy_recipe(), others, cpu) == "loader"
    with pytest.raises(InvalidInput, match="resident needs uint8 images"):
        choose_data_path(toy_recipe(engine__data_path="resident"), others, cpu)
    for free, expected in ((1999, "loader"), (2001, "resident")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        assert choose_data_path(toy_recipe(), images, torch.device("cuda")) == expected


def test_a_missing_gpu_is_one_line(toy_recipe, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="torch sees no GPU"):
        make_fabric(toy_recipe(engine__accelerator="cuda"))


def test_the_batch_must_fit_data_and_processes(toy, toy_recipe, monkeypatch):
    with pytest.raises(InvalidInput, match=r"optimiser\.batch_size must not exceed the 81 training images, got 82"):
        TrainingData.make(toy_recipe(optimiser__batch_size=82), toy)
    from lightning.fabric import Fabric

    monkeypatch.setattr(Fabric, "launch", lambda self: None)
    monkeypatch.setattr(Fabric, "world_size", 3)
    with pytest.raises(InvalidInput, match="must hold a sample for each of the 3 processes, got 2"):
        make_fabric(toy_recipe(optimiser__batch_size=2))


def test_a_pruning_that_would_begin_after_the_end_is_refused(toy, toy_recipe):
    recipe = toy_recipe(method__options={"start": 5}, epochs=4)
    with pytest.raises(InvalidInput, match="epochs must reach the first pruning, after epoch 5, got 4"):
        Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))
    # After the last epoch it changes nothing, which is allowed and said.
    recipe = toy_recipe(method__options={"start": 4}, epochs=4)
    with pytest.warns(CalibrantWarning, match="too late to change anything"):
        Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))


def test_data_that_came_from_python_cannot_be_loaded_by_name(toy_recipe):
    with pytest.raises(InvalidInput, match=r"begun from Python.*calibrant\.training\.resume\(path, data=\.\.\.\)"):
        load_data(toy_recipe(data__name="python:retina"), None)


def test_the_initial_weights_follow_from_the_seed_alone(toy, toy_recipe):
    def weights(seed):
        torch.rand(1)
        recipe = toy_recipe(seed=seed)
        return torch.cat([p.flatten() for p in make_model(recipe, TrainingData.make(recipe, toy)).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimisers_and_frozen_parameters(toy_recipe, name, kind):
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    network[0].requires_grad_(False)
    settings = toy_recipe(optimiser__name=name, optimiser__weight_decay=0.01, optimiser__lr=0.25).optimiser
    optimiser = make_optimiser(settings, network, torch.tensor(0.25))
    assert type(optimiser) is kind
    (group,) = optimiser.param_groups
    assert (len(group["params"]), group["lr"], group["weight_decay"]) == (2, 0.25, 0.01)


def test_the_framework_s_remarks_stay_out_of_the_terminal(caplog, toy_recipe):
    import logging

    log = logging.getLogger("lightning.fabric")
    before = log.level
    with caplog.at_level(logging.INFO):
        make_fabric(toy_recipe(engine__precision="bf16-mixed"))
    assert "Automatic Mixed Precision" not in caplog.text
    assert log.level == before
