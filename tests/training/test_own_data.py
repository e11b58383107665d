"""Data that a function of the user's own gives, by name."""

import pytest

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, default_recipe, resume, train
from calibrant.training.data import own_data
from calibrant.training.progress import Quiet
from calibrant.training.run_data import own_extent

CODE = """
import torch
from torch.utils.data import Dataset, TensorDataset
from calibrant.training import TorchData


class Scans(Dataset):
    classes = ["dark", "light"]

    def __init__(self, n, noise=0.1):
        self.targets, self.noise = torch.arange(n) % 2, noise

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        label = int(self.targets[row])
        return torch.full((1, 8, 8), label - 0.5) + self.noise * torch.randn(1, 8, 8), label


def dataset():
    return Scans(60), Scans(20)


def three():
    return Scans(60), Scans(12), Scans(20)


def ready():
    return TorchData(Scans(60), Scans(12), Scans(20), ("off", "on"))


def plain():
    images = torch.randn(30, 1, 8, 8)
    return TensorDataset(images, torch.arange(30) % 3), TensorDataset(images, torch.arange(30) % 3)


def nothing():
    return None


def fails():
    raise OSError("the disk is not mounted")
"""


@pytest.fixture
def mine(own_module):
    own_module("my_sets", CODE)


@pytest.fixture
def recipe():
    changes = {"data.name": "my_sets:dataset", "epochs": 2, "optimiser.batch_size": 8, "optimiser.lr": 0.05}
    return Recipe().changed(changes)


def test_which_names_are_functions():
    others = ("digits", "folder:photos", "arrays:x.npz", "python:own", "./a:b", None)
    assert not any(map(own_data, others))
    assert own_data("pkg.sets:scans") == "pkg.sets:scans"
    with pytest.raises(InvalidInput, match="use options that 'mine' knows, got 'size'"):
        own_data("mine:scans?size=8")


def test_a_run_keeps_the_digest_and_resumes_to_the_same_numbers(mine, recipe, tmp_path):
    class Stops(Quiet):
        def end_epoch(self, line):
            raise KeyboardInterrupt

    whole = train(recipe, tmp_path / "whole")
    assert set(whole.recipe.own_code) == {"my_sets"}
    assert whole.predictions("test").class_names == ("dark", "light")
    assert (len(whole.predictions("val")), len(whole.predictions("test"))) == (6, 20)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "part", reporter=Stops())
    # The test items are random in `Scans`: those of the validation part are the same every time.
    part = resume(tmp_path / "part")
    assert part.epochs()[-1]["loss"] == whole.epochs()[-1]["loss"]
    assert (part.predictions("val").logits == whole.predictions("val").logits).all()


@pytest.mark.parametrize(("name", "classes", "cases"), [("three", 2, 12), ("ready", 2, 12), ("plain", 3, 3)])
def test_other_forms(mine, recipe, tmp_path, name, classes, cases):
    run = train(recipe.changed({"data.name": f"my_sets:{name}", "epochs": 1}), tmp_path / "run")
    assert run.predictions("val").n_classes == classes
    assert len(run.predictions("val")) == cases


def test_settings_follow_from_its_size(mine):
    extent = own_extent("my_sets:dataset")
    assert (extent.train, extent.n_classes, extent.side) == (60, 2, 8)
    recipe = default_recipe("my_sets:dataset")
    assert recipe.data.name == "my_sets:dataset"
    assert not [key for key in recipe.reasons if key.startswith("data.")]
    assert recipe.optimiser.batch_size == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"data my_sets:nothing must return torch datasets, \(train, test\) or .*, got NoneType"),
        ("fails", "data my_sets:fails raised OSError: the disk is not mounted."),
        ("missing", "data my_sets:missing must name a function or class"),
    ],
)
def test_what_is_no_data_is_one_line(mine, recipe, tmp_path, name, message):
    with pytest.raises(InvalidInput, match=message):
        train(recipe.changed({"data.name": f"my_sets:{name}"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_code_that_nobody_trusted_is_not_imported(own_module, recipe, tmp_path):
    own_module("my_evil_sets", f"raise SystemExit('it ran')  # {tmp_path}\n", trusted=False)
    with pytest.raises(InvalidInput, match="your own my_evil_sets must be code that you trust"):
        train(recipe.changed({"data.name": "my_evil_sets:dataset"}), tmp_path / "run")


def test_another_file_is_refused(mine, recipe, own_module, tmp_path):
    known = recipe.with_code_digests()
    own_module("my_sets", CODE + "\n# edited\n")
    with pytest.raises(InvalidInput, match="your own my_sets must be the file with SHA-256"):
        train(known, tmp_path / "run")
