"""Recipes by file, by name and by flags."""

import pytest

from calibrant.errors import InvalidInput
from calibrant.training import named_recipes, paper_recipe, recipe_from
from calibrant.training.settings import check_inputs, names_in, shared_recipe


@pytest.mark.parametrize("name", named_recipes())
def test_a_recipe_that_ships_is_taken_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = named_recipes()[name]
    assert recipe_from(name) == shipped
    assert names_in(name) == {"data": shipped.data.name, "model": shipped.model.name}
    assert shared_recipe(name, None, None)["schedule.kind"] == shipped.schedule.kind


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named_recipes()["digits-tiny"].changed({"seed": 7}).save(tmp_path / "cifar10-resnet50")
    assert recipe_from("cifar10-resnet50").data.name == "digits"


def test_an_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(InvalidInput, match=r"^recipe must be a file .*'cifar10-resnet50'"):
        recipe_from("cifar10-resnet5")


@pytest.mark.parametrize("read", [recipe_from, names_in, lambda path: shared_recipe(path, None, None)])
def test_a_file_that_is_missing_or_has_a_fault_is_named(read, tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        read(tmp_path / "recipe.toml")
    (tmp_path / "recipe.toml").write_text("epochs = 0\n")
    with pytest.raises(InvalidInput, match="epochs"):
        read(tmp_path / "recipe.toml")


@pytest.mark.parametrize("model", ["tiny", "resnet50", "my_networks:small", "numpy:array"])
def test_what_exists_passes(model, tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text("raise RuntimeError('not to be run by a check')")
    (tmp_path / "images.npz").touch()
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    names = ("digits", "arrays:images.npz", "folder:pictures?size=32")
    check_inputs([paper_recipe(name, model__name=model) for name in names])


@pytest.mark.parametrize("data", ["arrays:", "arrays:pictures", "folder:images.npz", "cifar"])
def test_what_does_not_exist_is_refused(data, tmp_path, monkeypatch):
    (tmp_path / "images.npz").touch()
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="data must name"):
        check_inputs([paper_recipe("digits"), paper_recipe(data)])


def test_data_of_a_module_that_is_not_there_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"importable, got 'digits'\. A known one has no colon"):
        check_inputs([paper_recipe("digits:x")])
