"""Smaller images early in a run, alternating mirror images and Nesterov momentum."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.pruning import ConfidencePruner
from calibrant.training import Recipe, resume, train
from calibrant.training.batches import EpochTables, Preparation
from calibrant.training.data import Augmentation, StreamedImages
from calibrant.training.data.dataset import resized
from calibrant.training.network import epoch_sizes, forward_flops
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

STAGES = {"schedule__resolution": [[4, 0.25], [5, 0.25]]}


def test_images_are_resized_as_pillow_does_it():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 2, 32, 28)).astype(np.float32)
    small = resized(torch.from_numpy(images), (24, 21)).numpy()
    for image, expected in zip(images.reshape(6, 32, 28), small.reshape(6, 24, 21), strict=True):
        by_pillow = Image.fromarray(image).resize((21, 24), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(expected, np.asarray(by_pillow), atol=2e-5)


def test_images_of_the_wanted_size_are_returned_as_they_are():
    images = torch.rand(2, 3, 6, 6)
    assert resized(images, (6, 6)) is images


@pytest.mark.parametrize(
    ("stages", "shape", "sizes"),
    [
        ([], (3, 32, 32), [(32, 32)] * 10),
        ([[24, 0.6]], (3, 32, 32), [(24, 24)] * 6 + [(32, 32)] * 4),
        ([[16, 0.25], [24, 0.25]], (1, 32, 64), [(16, 32)] * 2 + [(24, 48)] * 3 + [(32, 64)] * 5),
        ("auto", (3, 32, 32), [(24, 24)] * 6 + [(32, 32)] * 4),
        ("auto", (3, 64, 64), [(48, 48)] * 6 + [(64, 64)] * 4),
        ("auto", (3, 96, 128), [(64, 85)] * 6 + [(96, 128)] * 4),
        ("auto", (3, 127, 127), [(96, 96)] * 6 + [(127, 127)] * 4),
        ("auto", (3, 224, 224), [(160, 160)] * 6 + [(224, 224)] * 4),
        ("auto", (1, 28, 28), [(24, 24)] * 6 + [(28, 28)] * 4),
        ("auto", (3, 16, 16), [(16, 16)] * 10),
        ("auto", (1, 8, 8), [(8, 8)] * 10),
    ],
)
def test_the_size_of_each_epoch(stages, shape, sizes):
    assert epoch_sizes(Recipe(epochs=10, schedule={"resolution": stages}), shape) == sizes


@pytest.mark.parametrize(
    ("stages", "epochs", "small"),
    [([[24, 0.6]], 1, 0), ("auto", 1, 0), ([[24, 0.9]], 3, 2), ([[16, 0.5], [24, 0.49]], 2, 1)],
)
def test_a_run_of_few_epochs_ends_at_full_size(stages, epochs, small):
    sizes = epoch_sizes(Recipe(epochs=epochs, schedule={"resolution": stages, "milestones": []}), (3, 32, 32))
    assert sizes.count((32, 32)) == epochs - small
    assert sizes[-1] == (32, 32)


def test_an_automatic_schedule_leaves_the_averaged_part_at_full_size():
    recipe = Recipe(epochs=10, schedule={"resolution": "auto", "average": 0.7})
    assert epoch_sizes(recipe, (3, 32, 32)) == [(24, 24)] * 3 + [(32, 32)] * 7


def test_the_computing_of_a_forward_pass_counts_multiplications_and_additions():
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
    assert forward_flops(network, (2, 6, 6), (4, 5)) == 2 * (4 * 5 * 3 * 2 * 9) + 2 * 3 * 5
    assert network.training


@pytest.fixture(scope="module")
def staged(toy, toy_recipe, tmp_path_factory):
    """A run with three sizes of images."""
    return train(toy_recipe(**STAGES), tmp_path_factory.mktemp("runs") / "staged", data=toy)


def test_the_log_has_the_size_and_the_computing_of_each_epoch(staged):
    lines = staged.epochs()
    assert [line["image_size"] for line in lines] == [[4, 4], [5, 5], [6, 6], [6, 6]]
    network = staged.load_model()
    for line in lines:
        forward = forward_flops(network, (1, 6, 6), tuple(line["image_size"]))
        assert line["flops"] == 3 * forward * line["samples"]
    full = 3 * forward_flops(network, (1, 6, 6), (6, 6)) * 81 * 4
    assert staged.summary["flops"] == sum(line["flops"] for line in lines) < full
    assert staged.summary["flops_full"] == full


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_run_stopped_in_any_stage_ends_with_the_same_numbers(
    staged, toy, toy_recipe, tmp_path, epoch, assert_same_run, stopped
):
    assert_same_run(resume(stopped(toy_recipe(**STAGES), tmp_path / "part", toy, epoch), data=toy), staged)


def test_a_loader_trains_on_the_same_small_images(staged, toy, toy_recipe, tmp_path, assert_same_run):
    run = train(toy_recipe(engine__data_path="loader", **STAGES), tmp_path / "loader", data=toy)
    assert_same_run(run, staged, recipe=False)


def test_small_images_change_what_is_learned(staged, whole):
    assert staged.epochs()[0]["loss"] != whole.epochs()[0]["loss"]


def test_scoring_passes_count_as_computing(toy, toy_recipe, tmp_path):
    options = {"method__options__readmit": True, "method__options__scoring": "resting"}
    run = train(toy_recipe(**options), tmp_path / "scored", data=toy)
    forward = forward_flops(run.load_model(), (1, 6, 6), (6, 6))
    lines = run.epochs()
    assert any(line["samples_scored"] for line in lines)
    for line in lines:
        assert line["flops"] == forward * (3 * line["samples"] + line["samples_scored"])


def test_alternating_mirrors_show_each_image_on_one_side_and_then_on_the_other():
    pruner = ConfidencePruner(torch.arange(400) % 3, seed=5, batch_size=8)
    augmentation = Augmentation(crop_padding=1, flip="alternate")
    tables = EpochTables(pruner, augmentation=augmentation, batch_size=8, seed=5, rank=0, world_size=1)
    sides = []
    for epoch in (1, 2, 3):
        tables.begin(epoch)
        mirrored = torch.zeros(400, dtype=torch.bool)
        mirrored[tables.order] = tables.flips
        sides.append(mirrored)
    assert torch.equal(sides[0], ~sides[1])
    assert torch.equal(sides[0], sides[2])
    assert 150 < int(sides[0].sum()) < 250


def test_alternating_mirrors_do_not_depend_on_the_number_of_processes():
    augmentation = Augmentation(crop_padding=1, flip="alternate")
    found = []
    for world_size in (1, 2):
        mirrored = torch.zeros(40, dtype=torch.bool)
        for rank in range(world_size):
            pruner = ConfidencePruner(torch.arange(40) % 3, seed=5, batch_size=8 // world_size)
            tables = EpochTables(
                pruner, augmentation=augmentation, batch_size=8, seed=5, rank=rank, world_size=world_size
            )
            tables.begin(1)
            mirrored[tables.order[: tables.length]] = tables.flips[: tables.length]
        found.append(mirrored)
    assert torch.equal(found[0], found[1])


def test_alternating_mirrors_are_resumed_exactly(toy, toy_recipe, tmp_path, assert_same_run, stopped):
    recipe = toy_recipe(data__mirror="alternate", optimiser__nesterov=True)
    whole = train(recipe, tmp_path / "whole", data=toy)
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)


def test_nesterov_momentum_reaches_the_optimiser(toy, toy_recipe):
    recipe = toy_recipe(optimiser__nesterov=True)
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))
    assert setup.optimiser.param_groups[0]["nesterov"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule__resolution": "small"}, "must be auto or a list such as .*'small'"),
        ({"schedule__resolution": [[24]]}, r"must be auto or a list such as"),
        ({"schedule__resolution": [[24, 0.3], [16, 0.3]]}, "whole sides that grow"),
        ({"schedule__resolution": [[4.5, 0.3]]}, "whole sides that grow"),
        ({"schedule__resolution": [[float("inf"), 0.3]]}, "must be auto or a list such as"),
        ({"schedule__resolution": [[24, 1.2]]}, "shares between 0 and 1"),
        ({"schedule__resolution": [[16, 0.5], [24, 0.5]]}, r"the end of the run .* at full size.*add up to 1"),
        ({"schedule__resolution": [[24, 0.8]], "schedule__average": 0.25}, r"\(0.25\) at full size.*add up to 0.8"),
        ({"optimiser__nesterov": True, "optimiser__name": "adam"}, "nesterov must be false"),
        ({"data__mirror": "sometimes"}, "data.mirror"),
    ],
)
def test_settings_that_make_no_sense_are_refused(toy_recipe, changes, message):
    with pytest.raises(InvalidInput, match=message):
        toy_recipe(**changes)


@pytest.mark.parametrize("side", [3, 6])
def test_a_size_that_makes_no_sense_is_refused_before_anything_is_written(toy, toy_recipe, tmp_path, side):
    with pytest.raises(InvalidInput, match=f"from 4 pixels on that are smaller than .* 6 pixels, got {side}"):
        train(toy_recipe(schedule__resolution=[[side, 0.5]]), tmp_path / "run", data=toy)
    assert not (tmp_path / "run").exists()


def test_a_size_that_the_network_cannot_take_is_refused_before_anything_is_written(
    toy, toy_recipe, tmp_path, own_module
):
    own_module(
        "fixed_size_network",
        "from torch import nn\n\n"
        "def network(*, n_classes, image_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(36, n_classes))\n",
    )
    recipe = toy_recipe(model__name="fixed_size_network:network", schedule__resolution=[[4, 0.5]])
    with pytest.raises(InvalidInput, match="cannot take images of 4 x 4 pixels"):
        train(recipe, tmp_path / "run", data=toy, trust_code=True)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def photographs(tmp_path):
    """JPEG files of two classes, larger than they are trained at."""
    generator = np.random.default_rng(0)
    for name in ("across", "down"):
        folder = tmp_path / "photographs" / name
        folder.mkdir(parents=True)
        for index in range(16):
            pixels = generator.integers(0, 256, (48, 48), dtype=np.uint8)
            if name == "across":
                pixels[::4] = 255
            else:
                pixels[:, ::4] = 255
            Image.fromarray(pixels).save(folder / f"{index}.jpg")
    return f"folder:{tmp_path / 'photographs'}?size=16"


def test_a_stream_decodes_at_the_size_of_the_epoch_and_resumes_exactly(
    photographs, toy_recipe, tmp_path, monkeypatch, stopped, assert_same_run
):
    recipe = toy_recipe(
        data__name=photographs,
        engine__data_path="stream",
        engine__workers=1,
        schedule__resolution=[[8, 0.25], [12, 0.25]],
    )
    sides = []
    real = StreamedImages.at_side
    monkeypatch.setattr(StreamedImages, "at_side", lambda self, side: sides.append(side) or real(self, side))
    whole = train(recipe, tmp_path / "whole")
    assert sides == [8, 12, 16]
    assert [line["image_size"] for line in whole.epochs()] == [[8, 8], [12, 12], [16, 16], [16, 16]]
    for epoch in (1, 2):
        assert_same_run(resume(stopped(recipe, tmp_path / f"stopped-{epoch}", None, epoch)), whole)


def test_crops_of_pictures_that_are_decoded_smaller_are_smaller_crops():
    augmentation = Augmentation(crop_padding=4, flip=False)
    preparation = Preparation(
        (0.0,), (1.0,), augmentation=augmentation, device=torch.device("cpu"), dtype=torch.float64, full_size=(32, 32)
    )
    preparation.size = (16, 16)
    images = torch.full((9, 1, 16, 16), 255, dtype=torch.uint8)
    offsets = torch.arange(9)[:, None].expand(9, 2)
    prepared = preparation(images, offsets, torch.zeros(9, dtype=torch.bool))
    # 2 pixels of padding: as many rows are black as the offset lies away from the middle.
    black = (prepared[:, 0].amax(dim=2) == 0).sum(dim=1).tolist()
    assert black == [2, 2, 1, 0, 0, 0, 1, 2, 2]
