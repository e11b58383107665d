import pytest
import torch

from calibrant.training.checkpoint import pack, unpack
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric


def make_setup(recipe, toy):
    return Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))


@pytest.fixture
def trained(toy, toy_recipe):
    setup = make_setup(toy_recipe(), toy)
    setup.steps.source.begin(1)
    setup.steps.run_epoch(lambda step: None)
    setup.pruner.step()
    return setup


def test_everything_that_matters_goes_through_a_checkpoint(trained, toy, toy_recipe):
    checkpoint = pack(trained, [{}])
    fresh = make_setup(toy_recipe(), toy)
    unpack(fresh, checkpoint)
    for name, value in trained.network.state_dict().items():
        assert torch.equal(fresh.network.state_dict()[name], value)
    for number, slots in trained.optimiser.state_dict()["state"].items():
        for slot, value in slots.items():
            assert torch.equal(fresh.optimiser.state_dict()["state"][number][slot], value)
    assert torch.equal(fresh.pruner.kept, trained.pruner.kept)
    assert torch.equal(fresh.pruner.scores, trained.pruner.scores)
    assert torch.equal(fresh.pruner.order(), trained.pruner.order())
    assert checkpoint.values["image_shape"] == [1, 6, 6]


def test_the_learning_rate_stays_the_tensor_that_the_engine_changes(trained, toy, toy_recipe):
    # On a GPU the optimiser reads the rate from a tensor that the engine fills; loading must not replace it.
    checkpoint = pack(trained, [{}])
    fresh = make_setup(toy_recipe(), toy)
    fresh.optimiser.param_groups[0]["lr"] = fresh.lr
    unpack(fresh, checkpoint)
    assert fresh.optimiser.param_groups[0]["lr"] is fresh.lr


def test_rows_count_as_shared_by_all_ranks(trained, toy, toy_recipe):
    fresh = make_setup(toy_recipe(), toy)
    unpack(fresh, pack(trained, [{}]))
    count = torch.from_numpy(fresh.pruner.table.column("count"))
    assert count.min() == 1
    assert torch.equal(fresh.pruner.table.shared_count, count)


def test_optimiser_buffers_come_back_in_the_layout_of_the_parameters(toy, toy_recipe):
    # Files hold plain order; the fused GPU optimiser refuses buffers whose strides differ from the parameters'.
    recipe = toy_recipe()
    setup = make_setup(recipe, toy)
    setup.network.to(memory_format=torch.channels_last)
    setup.steps.source.begin(1)
    setup.steps.run_epoch(lambda step: None)
    checkpoint = pack(setup, [{}])
    on_disk = {name: value.contiguous() for name, value in checkpoint.tensors.items()}
    fresh = make_setup(recipe, toy)
    fresh.network.to(memory_format=torch.channels_last)
    unpack(fresh, type(checkpoint)(1, on_disk, checkpoint.values))
    pairs = [(p, s["momentum_buffer"]) for p, s in fresh.optimiser.state.items()]
    assert any(not parameter.is_contiguous() for parameter, _ in pairs)
    assert all(parameter.stride() == buffer.stride() for parameter, buffer in pairs)
    old = setup.optimiser.state_dict()["state"]
    for number, (_, buffer) in enumerate(pairs):
        assert torch.equal(buffer, old[number]["momentum_buffer"])
