from dataclasses import replace

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.load import find_named
from calibrant.training.data.public_sets import CATALOGUE


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "Did you mean 'digits'?"),
        ("cifar-10", "Did you mean 'cifar10'?"),
        ("", "data must name a known set, got ''"),
        ("arrays:", "Did you mean 'arrays:FILE.npz'?"),
        ("digits:x", "name a known set"),
        ("cifar10:x", "name a known set"),
        ("cifar10?size=3", "options that 'cifar10' knows, got 'size'"),
    ],
)
def test_unknown_names_are_one_line_with_a_guess(spec, message):
    with pytest.raises(InvalidInput, match=message.replace("?", r"\?")):
        load_dataset(spec)


def test_a_path_without_its_kind_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    (tmp_path / "mine.npz").touch()
    for spec, meant in (
        ("./scans", "folder:./scans"),
        ("scans?size=64", "folder:scans?size=64"),
        (str(tmp_path / "scans"), f"folder:{tmp_path / 'scans'}"),
        ("./mine.npz", "arrays:./mine.npz"),
    ):
        with pytest.raises(InvalidInput) as caught:
            load_dataset(spec)
        assert str(caught.value).endswith(f"Did you mean '{meant}'?")


def test_a_set_that_is_not_there_says_where_we_looked_and_how_to_get_it(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(InvalidInput) as caught:
        load_dataset("svhn", data_dir=tmp_path)
    message = str(caught.value)
    for part in (
        str(tmp_path),
        str(tmp_path / "elsewhere"),
        str(cache),
        "calibrant data fetch svhn",
        "train_32x32.mat",
    ):
        assert part in message


def test_a_data_dir_that_does_not_exist(tmp_path):
    with pytest.raises(InvalidInput, match="data_dir must be an existing folder"):
        load_dataset("svhn", data_dir=tmp_path / "none")


def test_folders_are_searched_in_order(tmp_path, cache, monkeypatch):
    entry = CATALOGUE["mendeley-v2"]
    monkeypatch.setitem(CATALOGUE, "mendeley-v2", replace(entry, train=2, test=2))
    folders = [tmp_path / "argument", tmp_path / "environment", cache / "calibrant" / "data"]
    monkeypatch.setenv("CALIBRANT_DATA", str(folders[1]))
    for value, folder in enumerate(folders):
        folder.mkdir(parents=True)
        images = np.full((2, 8, 8), value, np.uint8)
        np.savez(folder / "mendeley-v2.npz", x_train=images, x_test=images, y_train=[0, 1], y_test=[0, 1])
    for value, folder in enumerate(folders):
        dataset = load_dataset("mendeley-v2", data_dir=folders[0])
        assert int(dataset.train.images.max()) == value
        assert dataset.origin == str(folder / "mendeley-v2.npz")
        (folder / "mendeley-v2.npz").unlink()


def test_the_catalogue_fits_itself():
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert not entry.class_names or len(entry.class_names) == len(set(entry.class_names)) == entry.n_classes
        assert len(entry.mean) == len(entry.std) in {1, 3}
        assert all(file.size > 0 and file.url.startswith("http") for file in entry.files)
        assert entry.licence
        assert entry.citation


def test_every_fine_class_of_cifar100_has_one_of_twenty_coarse_ones_five_each():
    coarse = CATALOGUE["cifar100"].coarse_of_fine
    assert np.bincount(coarse).tolist() == [5] * 20
    # Spot checks against the published table: trees are 17, people 14, large carnivores 8.
    names = CATALOGUE["cifar100"].class_names
    by_name = dict(zip(names, coarse, strict=True))
    assert {name for name in names if by_name[name] == 17} == {
        "maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree",
    }  # fmt: skip
    assert {name for name in names if by_name[name] == 14} == {"baby", "boy", "girl", "man", "woman"}
    assert {name for name in names if by_name[name] == 8} == {"bear", "leopard", "lion", "tiger", "wolf"}


def test_only_public_sets_are_looked_for():
    assert find_named("digits") is None
    assert find_named("arrays:x.npz") is None
