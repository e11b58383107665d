"""The data of a run: image sets, torch datasets, and datasets that a function of the user gives."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, Reporter, Run, TorchData, default_recipe, resume, train
from calibrant.training.data import Augmentation
from calibrant.training.data.spec import own_data
from calibrant.training.run_data import HeldOut, SeededItems, TrainingData, digest, own_extent, sample_rows


def test_training_and_validation_part_the_images_and_test_is_untouched(toy, toy_recipe):
    splits = TrainingData.make(toy_recipe(), toy)
    assert (len(splits.train), splits.n_classes, splits.image_shape) == (81, 3, (1, 6, 6))
    held = splits.held_out["val"]
    rows = [int(name.removeprefix("train-")) for name in held.ids]
    assert torch.equal(held.items.images, toy.train.images[rows])
    others = [row for row in range(90) if row not in rows]
    assert torch.equal(splits.train.images, toy.train.images[others])
    assert torch.equal(splits.targets, toy.train.labels[others])
    assert torch.equal(splits.held_out["test"].items.images, toy.test.images)


def test_one_image_per_class_leaves_none_for_validation_and_that_is_said(toy, toy_recipe):
    rows = torch.stack([(toy.train.labels == k).nonzero()[0, 0] for k in range(3)])
    with pytest.raises(InvalidInput, match="training images must leave one for validation"):
        TrainingData.make(toy_recipe(), replace(toy, train=toy.train.take(rows)))


def test_the_fingerprint_tells_sets_and_splits_apart(toy, toy_recipe, make_toy):
    def fingerprint(data=toy, **changes):
        return TrainingData.make(toy_recipe(**changes), data).fingerprint

    assert fingerprint() == fingerprint(seed=9, optimiser__lr=0.3)
    assert len({fingerprint(), fingerprint(make_toy(seed=1)), fingerprint(data__split_seed=1)}) == 3
    assert fingerprint(data__validation=0.2) != fingerprint()


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("field", ["images", "labels"])
def test_one_changed_image_or_label_changes_the_fingerprint(toy, toy_recipe, part, field):
    images = getattr(toy, part)
    changed = getattr(images, field).clone()
    changed[-1] = (changed[-1] + 1) % 3
    other = replace(toy, **{part: replace(images, **{field: changed})})
    assert TrainingData.make(toy_recipe(), other).fingerprint != TrainingData.make(toy_recipe(), toy).fingerprint


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 5000])
def test_a_fingerprint_reads_hundreds_of_images_from_the_whole_set(rows):
    chosen = sample_rows(torch.arange(rows))
    assert min(rows, 512) <= len(chosen) < 2 * 512
    assert (torch.diff(chosen, append=torch.tensor([rows])) <= -(-rows // 512)).all()


class Doubled(TensorDataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return 2 * image, label


def pairs(images, labels):
    return list(zip(images, labels, strict=True))


@pytest.mark.parametrize("rows", [7, 2001])
@pytest.mark.parametrize(("kind", "factor"), [(TensorDataset, 1), (Doubled, 2), (pairs, 1)])
def test_held_out_items_come_in_order_as_the_dataset_gives_them(kind, factor, rows):
    images, labels = torch.arange(rows).view(-1, 1, 1, 1), torch.arange(rows) % 3
    parts = list(HeldOut(kind(images, labels), [""] * rows).batches(300))
    assert torch.equal(torch.cat([part for part, _ in parts]), factor * images)
    assert torch.equal(torch.cat([part for _, part in parts]), labels)
    assert [len(part) for _, part in parts] == [300] * (rows // 300) + [rows % 300]


def test_reading_what_is_held_out_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    list(HeldOut([(torch.zeros(1), 0)] * 5, [""] * 5).batches(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_view_and_its_copy_have_the_same_digest():
    grid = torch.arange(6).view(2, 3)
    assert digest(grid.T) == digest(grid.T.contiguous()) != digest(grid)


def test_augmentation_can_be_left_out(toy, toy_recipe):
    some_way = Augmentation(crop_padding=3)
    toy = replace(toy, augmentation=some_way)
    assert TrainingData.make(toy_recipe(data__augment=True), toy).augmentation == some_way
    assert TrainingData.make(toy_recipe(data__augment=False), toy).augmentation is None


def test_a_batch_may_hold_the_whole_set(toy, toy_recipe):
    assert len(TrainingData.make(toy_recipe(optimiser__batch_size=81), toy).targets) == 81


class Noisy(Dataset):
    """Items with random transforms from all three generators that people use."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, label = self.items[index]
        return image + torch.rand(1) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1, label  # noqa: NPY002 (what people use)


@pytest.fixture(scope="module")
def parts(toy):
    """Train, validation and test as float tensors, and the training labels."""
    images = toy.train.images.float() / 255
    train_set = TensorDataset(images[:72], toy.train.labels[:72])
    validation = TensorDataset(images[72:], toy.train.labels[72:])
    test = TensorDataset(toy.test.images.float() / 255, toy.test.labels)
    return {"train": train_set, "validation": validation, "test": test, "class_names": toy.class_names}


def test_own_datasets_train_resume_and_read_alike_with_any_number_of_workers(
    parts, toy, toy_recipe, tmp_path, assert_same_run
):
    data = TorchData(**{**parts, "train": Noisy(parts["train"])}, name="retina")
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    whole = train(toy_recipe(), tmp_path / "whole", data=data)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    assert random.getstate() == state[2]
    assert whole.recipe.data.name == "python:retina"
    assert [line["kept"] for line in whole.epochs()] == [72, 60, 60, 48]
    test = whole.predictions("test")
    assert test.targets.tolist() == toy.test.labels.tolist()
    assert test.ids[0] == "test-000000"
    images = parts["test"].tensors[0]
    logits = whole.load_model()(images).detach().numpy()
    np.testing.assert_allclose(test.logits, logits, atol=1e-5)

    with_workers = train(toy_recipe(engine__workers=2), tmp_path / "workers", data=data)
    assert_same_run(with_workers, whole, recipe=False)

    from calibrant.training.engine import _Training

    class Killed(Exception):
        pass

    with pytest.MonkeyPatch.context() as patch:
        real = _Training._epoch

        def epoch(self, number):
            if number == 3:
                raise Killed
            real(self, number)

        patch.setattr(_Training, "_epoch", epoch)
        with pytest.raises(Killed):
            train(toy_recipe(engine__workers=2), tmp_path / "part", data=data)
    with pytest.raises(InvalidInput, match="begun from Python"):
        resume(tmp_path / "part")
    assert not Run(tmp_path / "part").finished
    assert_same_run(resume(tmp_path / "part", data=data), with_workers)


def test_random_items_change_from_epoch_to_epoch_and_repeat(parts):
    items = SeededItems(Noisy(parts["train"]), seed=1)
    items.set_epoch(1)
    first = items[4][0]
    assert torch.equal(items[4][0], first)
    assert not torch.equal(items[5][0] - parts["train"][5][0], first - parts["train"][4][0])
    items.set_epoch(2)
    assert not torch.equal(items[4][0], first)
    # Loader processes that outlive the epoch see the change.
    loader = DataLoader(items, batch_size=72, num_workers=1, persistent_workers=True)
    for epoch in (1, 2):
        items.set_epoch(epoch)
        (batch,) = [images for images, _ in loader]
        assert torch.equal(batch[4], items[4][0])


class Tagged(TensorDataset):
    """Has its labels as an attribute, as torchvision's sets do."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.targets = tensors[1].tolist()

    def __getitem__(self, index):
        if index > 0:
            pytest.fail("no item but the first is read")
        return super().__getitem__(index)


def test_labels_come_from_the_argument_the_attribute_or_the_items(parts, toy_recipe):
    labels = parts["train"].tensors[1]
    given = TorchData(**{**parts, "train": Tagged(*parts["train"].tensors)}, targets=labels.tolist())
    attribute = TorchData(**{**parts, "train": Tagged(*parts["train"].tensors)})
    for data in (given, attribute, TorchData(**parts)):
        assert torch.equal(data.prepare(toy_recipe()).targets, labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_label_that_targets_do_not_agree_with_is_refused(parts, toy_recipe, tmp_path, workers):
    images, labels = parts["train"].tensors
    others = labels.where(torch.arange(len(labels)) != 50, (labels + 1) % 3)
    data = TorchData(**{**parts, "train": TensorDataset(images, others)}, targets=labels)
    with pytest.raises(InvalidInput, match="targets must agree with the items, whose label 50 is"):
        train(toy_recipe(engine__workers=workers), tmp_path / "run", data=data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": iter([])}, "train must be a map-style dataset"),
        ({"test": TensorDataset(torch.zeros(0, 1), torch.zeros(0))}, "test must not be empty"),
        ({"targets": [0, 1]}, "targets must"),
        ({"targets": [0.5] * 72}, "targets must"),
        ({"targets": [0] * 71 + [3]}, "targets must"),
        ({"targets": [1] * 72}, "targets must agree with the items, whose first label is 0, got 1"),
        (
            {"train": TensorDataset(torch.zeros(72, 1, 6, 6, dtype=torch.uint8), torch.zeros(72, dtype=torch.int64))},
            r"train items must be \(float tensor of shape \(C, H, W\), label\), got torch\.uint8",
        ),
        (
            {"test": TensorDataset(torch.zeros(9, 1, 5, 5), torch.zeros(9, dtype=torch.int64))},
            r"test images must have the shape of the training images, \(1, 6, 6\), got \(1, 5, 5\)",
        ),
        (
            {"validation": TensorDataset(torch.zeros(9, 1, 6, 6))},
            r"validation items must be \(float tensor of shape \(C, H, W\), label\), got 1 entries",
        ),
        (
            {"train": TensorDataset(torch.zeros(72, 6), torch.zeros(72, dtype=torch.int64))},
            r"got torch\.float32 of shape \(6,\)\. Let the .* a row of features becomes x\[:, None, None\]",
        ),
        ({"train": [1] * 72}, r"train items must be \(float tensor .* got int\. Let a Dataset around yours pick"),
        ({"train": [{"image": torch.zeros(1, 6, 6), "label": 0}] * 72}, "train items must be .*, got dict"),
        ({"train": [(torch.zeros(1, 6, 6), 0, "name")] * 72}, "train items must be .*, got 3 entries"),
        (
            {"train": [(torch.zeros(1, 6, 6), "cat")] * 72},
            r"train labels must be whole numbers, one per item, got 'cat' in item 0\. Give the class's number, counted",
        ),
        (
            {"train": [(torch.zeros(1, 6, 6), torch.eye(3)[0])] * 72},
            r"train labels must be whole numbers, one per item, got torch\.float32 of shape \(3,\) in item 0",
        ),
        ({"test": [(torch.zeros(1, 6, 6), "cat")] * 9}, "test labels must be whole numbers, one per item, got 'cat'"),
        (
            {"test": TensorDataset(torch.zeros(9, 1, 6, 6), torch.arange(9) + 3)},
            "test labels must",
        ),
        (
            {"validation": TensorDataset(torch.zeros(9, 1, 6, 6), torch.zeros(9))},
            "validation labels must",
        ),
        ({"class_names": "abc"}, "class_names must be a list of distinct names, one per class, got 'abc'"),
        ({"class_names": [0, 1, 2]}, "class_names must be a list of distinct names"),
        ({"class_names": ["a", "b", "a"]}, "class_names must be a list of distinct names"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_is_written(parts, toy_recipe, tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=message):
        train(toy_recipe(), tmp_path / "run", data=TorchData(**{**parts, **changes}))
    assert not (tmp_path / "run").exists()


def test_labels_behind_a_target_transform_are_those_of_the_items(parts, toy_recipe):
    """torchvision keeps the raw list in `targets`; what counts is what comes out."""

    class Listed(torch.utils.data.Dataset):
        def __init__(self, items, listed):
            self.items, self.targets = items, listed

        def __len__(self):
            return len(self.items)

        def __getitem__(self, index):
            return self.items[index]

    items = parts["train"]
    labels = items.tensors[1]
    odd = [["cat"] * len(labels), torch.eye(3), [{}], [None], [], np.array(["a"]), len]
    for listed in ((labels + 100).tolist(), *odd):
        prepared = TorchData(**{**parts, "train": Listed(items, listed)}).prepare(toy_recipe())
        assert prepared.targets.tolist() == labels.tolist()


def test_a_batch_larger_than_the_set_and_resident_data_are_refused(parts, toy_recipe, tmp_path):
    with pytest.raises(InvalidInput, match="must not exceed the 72 training images"):
        train(toy_recipe(optimiser__batch_size=73), tmp_path / "run", data=TorchData(**parts))
    with pytest.raises(InvalidInput, match="resident needs uint8 images"):
        train(toy_recipe(engine__data_path="resident"), tmp_path / "run", data=TorchData(**parts))


CODE = """
import torch
from torch.utils.data import Dataset, TensorDataset
from calibrant.training import TorchData


class Scans(Dataset):
    def __init__(self, n, noise=0.1):
        self.targets, self.noise = torch.arange(n) % 2, noise

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        label = int(self.targets[row])
        return torch.full((1, 8, 8), label - 0.5) + self.noise * torch.randn(1, 8, 8), label


def dataset():
    return TorchData(Scans(54), Scans(6, noise=0), Scans(20), ("dark", "light"))


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
    class Stops(Reporter):
        def end_epoch(self, line):
            raise KeyboardInterrupt

    whole = train(recipe, tmp_path / "whole")
    assert set(whole.recipe.own_code) == {"my_sets"}
    assert whole.predictions("test").class_names == ("dark", "light")
    assert (len(whole.predictions("val")), len(whole.predictions("test"))) == (6, 20)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "part", reporter=Stops())
    part = resume(tmp_path / "part")
    assert part.epochs()[-1]["loss"] == whole.epochs()[-1]["loss"]
    assert (part.predictions("val").logits == whole.predictions("val").logits).all()


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
        ("nothing", "data my_sets:nothing must return a calibrant.training.TorchData, got NoneType"),
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
