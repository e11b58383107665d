"""Recipes of the paper, and settings that follow from the data."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from calibrant.calibration.temperature import temperature_share
from calibrant.errors import InvalidInput
from calibrant.predictions import Predictions
from calibrant.training import Recipe, default_recipe, named_recipes, paper_recipe, recipe_from
from calibrant.training.data import Augmentation, extent_of, load_dataset, split_validation
from calibrant.training.data.load import Extent
from calibrant.training.default_recipes import derive, method_settings

_ROOT = Path(__file__).parents[2]
_FILES = sorted((_ROOT / "recipes").glob("*.toml"))


@pytest.fixture
def arrays(tmp_path):
    """A set of 240 grey pictures of 48x48 pixels to train on."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (300, 48, 48), dtype=np.uint8), np.arange(300) % 2
    file = tmp_path / "pictures.npz"
    np.savez(file, x_train=images[:240], y_train=labels[:240], x_test=images[240:], y_test=labels[240:])
    return f"arrays:{file}"


def test_the_recipe_files_are_what_the_defaults_say():
    specification = importlib.util.spec_from_file_location("make_recipes", _ROOT / "docs" / "make" / "recipes.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert {path.name: path.read_text(encoding="utf-8") for path in _FILES} == module.files()


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_each_recipe_file_loads_and_its_method_resolves(path):
    recipe = Recipe.load(path)
    assert recipe == named_recipes()[path.stem]
    plan = recipe.plan()
    assert plan.pruning["schedule"].first < recipe.epochs


def test_every_set_and_network_of_the_papers_tables_is_there():
    # ResNet-50 for the five sets of the main tables, ResNet-32 for the two of the appendix.
    wanted = {(data, "resnet50") for data in ("cifar10", "cifar100", "svhn", "tiny-imagenet", "mendeley-v2")}
    wanted |= {("cifar10", "resnet32"), ("cifar100", "resnet32")}
    found = {(recipe.data.name, "resnet50" if "resnet50" in recipe.model.name else recipe.model.name)
             for recipe in named_recipes().values()}  # fmt: skip
    assert wanted < found


@pytest.mark.parametrize(
    ("data", "epochs", "batch_size", "drops"),
    [
        ("cifar10", 160, 128, [81, 121]),
        ("cifar100", 200, 1024, [101, 151]),
        ("svhn", 100, 128, [51, 71]),
        ("tiny-imagenet", 100, 1024, [41, 61]),
    ],
)
def test_the_papers_numbers(data, epochs, batch_size, drops):
    recipe = paper_recipe(data)
    assert (recipe.epochs, recipe.optimiser.batch_size) == (epochs, batch_size)
    assert (recipe.optimiser.lr, recipe.optimiser.momentum, recipe.optimiser.weight_decay) == (0.1, 0.9, 5e-4)
    rates = [recipe.learning_rate(epoch - 1) for epoch in range(1, epochs + 1)]
    assert [epoch for epoch in range(2, epochs + 1) if rates[epoch - 1] < rates[epoch - 2]] == drops
    assert rates[-1] == pytest.approx(0.001)


def test_mendeley_falls_by_the_same_factor_every_epoch():
    recipe = paper_recipe("mendeley-v2")
    assert recipe.learning_rate(99) == pytest.approx(1e-4 * 0.985**99)


def test_own_data_gets_settings_from_its_size_and_changes_are_applied(arrays):
    recipe = default_recipe(arrays, optimiser__lr=0.3, seed=4)
    assert (recipe.data.name, recipe.optimiser.lr, recipe.seed) == (arrays, 0.3, 4)
    assert "optimiser.lr" not in recipe.reasons  # it was not derived
    assert recipe.optimiser.batch_size == 16


def test_the_default_is_plain_training_with_averaged_weights(arrays):
    for data, floor in (("cifar10", 0.2), ("cifar100", 0.5), ("digits", 0.5), (arrays, 0.5)):
        recipe = default_recipe(data)
        assert recipe.method.name == "nll"
        assert (recipe.schedule.kind, recipe.schedule.floor, recipe.schedule.average) == ("cosine", floor, 0.25)
        assert recipe.calibration.method == "temperature"


@pytest.mark.parametrize(("data", "floor"), [("cifar10", 0.2), ("cifar100", 0.5)])
def test_the_recorded_defaults_stay_bit_for_bit(data, floor):
    # The recipes of the recorded runs: results/*.json hold them. New since: the reasons,
    # and how many of the validation cases the temperature gets, which changes nothing about the training.
    recorded = {
        "data.name": data,
        "epochs": 160,
        "model.name": "resnet32",
        "schedule.kind": "cosine",
        "schedule.floor": floor,
        "schedule.average": 0.25,
        "calibration.share": 0.2,
    }
    assert default_recipe(data).model_dump() == Recipe().changed(recorded).model_dump()


def test_a_method_on_own_data_gets_the_settings_of_its_size_on_the_schedule_that_it_is_compared_on(arrays):
    recipe = recipe_from(data=arrays, changes={"method.name": "flsd"})
    assert (recipe.optimiser.batch_size, recipe.schedule.average) == (16, 0)
    assert recipe.epochs == default_recipe(arrays).epochs
    assert method_settings("cifar10") == {}


def test_a_loaded_set_gives_the_same_settings_as_its_name(arrays):
    named, loaded = default_recipe(arrays), default_recipe(load_dataset(arrays))
    assert loaded.model_dump(exclude={"data"}) == named.model_dump(exclude={"data"})
    assert loaded.reasons == named.reasons


def test_reasons_are_kept_in_the_file_and_nowhere_else(tmp_path, arrays):
    recipe = default_recipe(arrays)
    recipe.save(tmp_path / "recipe.toml")
    assert Recipe.load(tmp_path / "recipe.toml") == recipe
    assert recipe.reasons["optimiser.batch_size"].startswith("16")
    assert "reasons" not in recipe.model_dump()
    shorter = recipe.changed({"epochs": 8})
    assert "epochs" not in shorter.reasons
    assert "schedule.floor" in shorter.reasons


def test_a_missing_file_is_one_line():
    with pytest.raises(InvalidInput, match=r"mine\.npz does not exist"):
        default_recipe("arrays:mine.npz")


def test_a_method_by_name_keeps_the_schedule_that_it_is_compared_on():
    assert recipe_from(data="cifar10", changes={"method.name": "flsd+h"}).schedule == paper_recipe("cifar10").schedule
    assert recipe_from(data="cifar10").schedule == default_recipe("cifar10").schedule


def test_a_run_too_short_for_averaged_weights_goes_without_them():
    assert default_recipe("digits", epochs=4).schedule.average == 0.25
    assert default_recipe("digits", epochs=3).schedule.average == 0
    with pytest.raises(InvalidInput, match=r"schedule\.average"):
        default_recipe("digits", epochs=3, schedule__average=0.25)


def values(train, n_classes=10, side=32, name="photos", validation=0.1, augmentation=None):
    extent = Extent(name, train, n_classes, side, augmentation or Augmentation())
    return {key: setting.value for key, setting in derive(extent, validation=validation).items()}


@pytest.mark.parametrize(
    ("data", "epochs", "floor"),
    [("cifar10", 160, 0.2), ("cifar100", 160, 0.5), ("svhn", 109, 0.2), ("fashion-mnist", 133, 0.2)],
)
def test_large_sets_get_as_many_updates_as_the_recorded_runs(data, epochs, floor):
    recipe, samples = default_recipe(data), 0.9 * extent_of(data).train
    assert (recipe.epochs, recipe.schedule.floor) == (epochs, floor)
    assert (recipe.optimiser.batch_size, recipe.optimiser.lr) == (128, 0.1)
    assert recipe.epochs * samples / 128 == pytest.approx(56_250, rel=0.01)


def test_small_sets_get_smaller_batches_and_fewer_updates_but_never_few():
    before = None
    for train in (60, 300, 1_000, 3_000, 10_000, 50_000):
        found, samples = values(train), round(0.9 * train)
        updates = found["epochs"] * samples / found["optimiser.batch_size"]
        batch = found["optimiser.batch_size"]
        assert batch in (16, 32, 64, 128)
        assert batch == 16 or samples / batch >= 64  # steps per epoch
        assert found["optimiser.lr"] == pytest.approx(0.1 * (batch / 128) ** 0.5, abs=5e-4)
        assert updates >= 990
        if before is not None:
            assert updates > before[0]
            assert found["optimiser.batch_size"] >= before[1]
        before = (updates, found["optimiser.batch_size"])


def test_a_batch_is_never_larger_than_the_set_and_a_huge_set_is_seen_often_enough():
    assert values(12, n_classes=2)["optimiser.batch_size"] <= 11
    assert values(2, n_classes=2)["optimiser.batch_size"] <= 2
    assert values(1_281_167, n_classes=1000)["epochs"] == 40


def test_the_temperature_gets_a_fifth_of_many_validation_cases_and_a_tenth_of_fewer():
    assert values(50_000)["calibration.share"] == values(60_000)["calibration.share"] == 0.2
    assert values(49_900)["calibration.share"] == values(300)["calibration.share"] == 0.1
    assert default_recipe("cifar10").calibration.share == 0.2


def test_the_validation_share_is_not_trained_on():
    assert values(50_000, validation=0.5)["epochs"] > values(50_000)["epochs"]


@pytest.mark.parametrize(
    ("name", "mirrored"),
    [
        ("cifar10", True),
        ("fashion-mnist", True),
        ("FashionMNIST", True),
        ("digitalis", True),
        ("digits", False),
        ("svhn", False),
        ("my_USPS-64", False),
        ("emnist", False),
        ("kmnist", False),
        ("notMNIST", False),
        ("house numbers", False),
        ("captcha-letters", False),
    ],
)
def test_digits_and_letters_are_not_mirrored(name, mirrored):
    assert values(1000, name=name)["data.mirror"] is mirrored


def test_only_the_last_part_of_a_path_is_the_name(tmp_path):
    import numpy as np

    folder = tmp_path / "digits"
    folder.mkdir()
    pixels = np.zeros((4, 8, 8), np.uint8)
    np.savez(folder / "leaves.npz", x_train=pixels, y_train=[0, 1, 0, 1], x_test=pixels, y_test=[0, 1, 0, 1])
    assert default_recipe(f"arrays:{folder / 'leaves.npz'}").data.mirror is None  # as such sets are by themselves


def test_crops_follow_the_size_of_images_and_small_images_get_the_small_network():
    assert [values(1000, side=side)["data.crop"] for side in (8, 28, 32, 48, 64)] == [1, 4, 4, 6, 8]
    assert {values(5000, side=side)["model.name"] for side in (8, 16)} == {"tiny"}
    assert {values(5000, side=side)["model.name"] for side in (17, 64)} == {"resnet32"}
    assert [values(300, side=side)["model.name"] for side in (48, 224)] == ["tiny", "resnet18"]


def test_what_the_set_brings_along_is_not_set_again():
    derived = derive(extent_of("cifar10"), validation=0.1)
    assert not derived["data.crop"].changes_anything
    svhn = default_recipe("svhn")
    assert (svhn.data.augment, svhn.data.crop, svhn.data.mirror) == (True, 4, None)
    assert svhn.reasons["data.mirror"].startswith("no")


@pytest.mark.parametrize("counts", [(3, 33, 214, 5), (7,) * 41, (450, 5, 501)])
def test_the_plan_counts_the_validation_cases_that_are_held_out(tmp_path, counts):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(counts)), counts)
    images = rng.integers(0, 256, (len(labels), 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    data = f"arrays:{tmp_path / 'mine.npz'}"
    loaded = load_dataset(data)
    for validation in (0.1, 0.25, 0.3):
        train, held_out = split_validation(loaded.train.labels, fraction=validation)
        for named in (data, loaded):
            reasons = default_recipe(named, data__validation=validation).reasons
            assert f"{len(train):,} training images" in reasons["optimiser.batch_size"]
            words = reasons["calibration.share"]
            share = temperature_share(len(held_out), 0.1)
            cases = Predictions.from_logits(np.zeros((len(held_out), 2)), np.zeros(len(held_out), int))
            fitted = len(cases.split(share)[0])
            assert words.startswith(f"{fitted} of {len(held_out)} validation cases")
            assert ("with so few it stays close to 1" in words) == (fitted < 100)
