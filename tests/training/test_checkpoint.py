import json
import os
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    pack,
    remove_leftovers,
    save_checkpoint,
    saved_checkpoints,
    trained_data,
    unpack,
)
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

VALUES = {"data": "abc", "settings": {}, "classes": 3, "image_shape": [1, 6, 6]}
VALUES |= {"pruner": {}, "mean": [0.5], "std": [0.5]}


def state(epoch):
    shared = torch.arange(6.0)
    tensors = {
        "a": torch.full((2, 3), float(epoch)),
        "whole": shared,
        "view": shared[2:4],
        "turned": torch.arange(6).view(2, 3).T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "mask": torch.tensor([True, False]),
    }
    return Checkpoint(epoch, tensors, {**VALUES, "number": 1 / 3, "list": [1, "x", None]})


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    path = save_checkpoint(tmp_path, state(7))
    assert path.name == "epoch-00007.safetensors"
    loaded = load_checkpoint(path)
    assert (loaded.epoch, loaded.values) == (7, state(7).values)
    for name, value in state(7).tensors.items():
        assert loaded.tensors[name].dtype == value.dtype
        assert torch.equal(loaded.tensors[name], value)


def test_the_newest_two_are_kept_and_others_may_read_them(tmp_path):
    for epoch in (8, 9, 10):
        save_checkpoint(tmp_path, state(epoch))
    names = ["epoch-00010.safetensors", "epoch-00009.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert newest_checkpoint(tmp_path).epoch == 10
    assert [path.name for path in saved_checkpoints(tmp_path)] == names
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~umask}


def test_an_empty_folder_has_none(tmp_path):
    assert newest_checkpoint(tmp_path) is None


def test_any_flipped_bit_is_found(tmp_path):
    path = save_checkpoint(tmp_path, state(1))
    sound = path.read_bytes()
    for position in range(len(sound)):
        blob = bytearray(sound)
        blob[position] ^= 1 << position % 8
        path.write_bytes(blob)
        with pytest.raises(InvalidInput, match=r"checkpoint epoch-00001\.safetensors is damaged"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: {**content, "epoch": 2},
        lambda content: {**content, "values": {}},
        lambda content: {key: value for key, value in content.items() if key != "sha256"},
        lambda content: [content],
        lambda content: None,
    ],
)
def test_edited_metadata_are_found(tmp_path, edit):
    path = save_checkpoint(tmp_path, state(1))
    rewrite(path, edit)
    with pytest.raises(InvalidInput, match=r"epoch-00001\.safetensors is damaged"):
        load_checkpoint(path)


def rewrite(path, edit, tensors=None):
    """Write the file again with other metadata, as nothing but another program would."""
    with safe_open(path, "pt") as file:
        content = edit(json.loads(file.metadata()["calibrant"]))
    path.write_bytes(save(tensors or load_file(path), {"calibrant": json.dumps(content)}))


@pytest.mark.parametrize("content", [b"", b"junk", bytes(100)])
def test_a_damaged_file_is_passed_over(tmp_path, content):
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2)).write_bytes(content)
    with pytest.warns(CalibrantWarning, match=r"epoch-00002\.safetensors is damaged.*The one before it is used"):
        assert newest_checkpoint(tmp_path).epoch == 1


def test_other_tensors_under_the_same_metadata_are_found(tmp_path):
    path = save_checkpoint(tmp_path, state(1))
    tensors = load_file(path)
    for name, value in (("a", tensors["a"] + 1), ("a", tensors["a"].view(3, 2)), ("new", torch.zeros(1))):
        other = path.with_name("epoch-00002.safetensors")
        other.write_bytes(path.read_bytes())
        rewrite(other, lambda content: content, {**tensors, name: value})
        with pytest.raises(InvalidInput, match="its digest does not match"):
            load_checkpoint(other)


def test_leftovers_go_and_nothing_else(tmp_path):
    for epoch in (3, 4):
        save_checkpoint(tmp_path, state(epoch))
    keep = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "epoch-00001.safetensors").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == keep | {"notes.txt"}


def test_nothing_is_ever_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = save_checkpoint(tmp_path, state(1))
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidInput, match="damaged"):
        load_checkpoint(path)


def test_the_data_is_told_without_the_tensors(tmp_path):
    assert trained_data(tmp_path) is None
    for epoch, data in ((9, "old"), (10, "new")):
        save_checkpoint(tmp_path, Checkpoint(epoch, {}, {**VALUES, "data": data}))
    assert trained_data(tmp_path) == "new"


@pytest.mark.parametrize(
    "values",
    [
        {"data": None},
        {"classes": 10**9},
        {"classes": "3"},
        {"image_shape": [1, 6]},
        {"image_shape": [1, 6, 10**7]},
        {"pruner": []},
        {"mean": "0.5"},
        {"model_input": {"size": "24"}},
        {"std": None, "mean": [0.5]},
    ],
)
def test_wrong_types_under_a_right_digest_are_named(tmp_path, values):
    path = save_checkpoint(tmp_path, Checkpoint(1, {}, {**VALUES, **values}))
    key = next(iter(values))
    with pytest.raises(InvalidInput, match=rf"checkpoint epoch-00001\.safetensors is damaged at 'values\.{key}"):
        load_checkpoint(path)


@pytest.mark.parametrize("values", [{"mean": []}, {"std": [0.5] * 3}, {"mean": [0.5] * 3, "std": [0.5] * 3}])
def test_a_normalisation_that_does_not_fit_the_channels_is_named(tmp_path, values):
    path = save_checkpoint(tmp_path, Checkpoint(1, {}, {**VALUES, **values}))
    with pytest.raises(InvalidInput, match="must hold one number per channel"):
        load_checkpoint(path)


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
    checkpoint = pack(trained, 1)
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
    checkpoint = pack(trained, 1)
    fresh = make_setup(toy_recipe(), toy)
    fresh.optimiser.param_groups[0]["lr"] = fresh.lr
    unpack(fresh, checkpoint)
    assert fresh.optimiser.param_groups[0]["lr"] is fresh.lr


def test_rows_count_as_shared_by_all_ranks(trained, toy, toy_recipe):
    fresh = make_setup(toy_recipe(), toy)
    unpack(fresh, pack(trained, 1))
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
    checkpoint = pack(setup, 1)
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
