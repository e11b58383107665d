"""Recipes by file, by name and by flags."""

import pytest

from calibrant.errors import InvalidInput
from calibrant.training.defaults import named_recipes
from calibrant.training.settings import names_in, recipe_from, shared_recipe


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
