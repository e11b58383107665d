import importlib.util
from pathlib import Path

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, default_recipe, method_settings, paper_recipe
from calibrant.training.data import load_dataset
from calibrant.training.defaults import named_recipes
from calibrant.training.settings import recipe_from

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
    assert plan.pruning.schedule.first < recipe.epochs


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
