import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from calibrant.errors import InvalidInput
from calibrant.training import Run, TorchData, resume, train
from calibrant.training.run_data import SeededItems


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
    assert not Run.open(tmp_path / "part").finished
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
            r"got torch\.float32 of shape \(6,\)\. A row of features is x\[:, None, None\], for a network of your own",
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
            {"test": TensorDataset(torch.zeros(9, 1, 6, 6), torch.arange(9) % 4)},
            "test labels must",
        ),
        (
            {"validation": TensorDataset(torch.zeros(9, 1, 6, 6), torch.zeros(9))},
            "validation labels must",
        ),
        ({"class_names": "abc"}, "class_names must be a list of names, one per class, got 'abc'"),
        ({"class_names": [0, 1, 2]}, "class_names must be a list of names, one per class"),
        ({"class_names": ["a", "b", "a"]}, "class_names must be distinct"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_is_written(parts, toy_recipe, tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=message):
        train(toy_recipe(), tmp_path / "run", data=TorchData(**{**parts, **changes}))
    assert not (tmp_path / "run").exists()


def test_labels_behind_a_target_transform_are_those_of_the_items(parts, toy_recipe):
    """torchvision keeps the raw list in `targets`; what counts for held-out data is what comes out."""

    class Listed(torch.utils.data.Dataset):
        def __init__(self, items, listed):
            self.items, self.targets = items, listed

        def __len__(self):
            return len(self.items)

        def __getitem__(self, index):
            return self.items[index]

    labels = parts["test"].tensors[1]
    odd = [["cat"] * len(labels), torch.eye(3), [{}], [None], [], np.array(["a"]), len]
    for listed in ((labels + 100).tolist(), *odd):
        TorchData(**{**parts, "test": Listed(parts["test"], listed)}).prepare(toy_recipe())


def test_a_batch_larger_than_the_set_and_resident_data_are_refused(parts, toy_recipe, tmp_path):
    with pytest.raises(InvalidInput, match="must not exceed the 72 training images"):
        train(toy_recipe(optimiser__batch_size=73), tmp_path / "run", data=TorchData(**parts))
    with pytest.raises(InvalidInput, match="resident needs uint8 images"):
        train(toy_recipe(engine__data_path="resident"), tmp_path / "run", data=TorchData(**parts))
