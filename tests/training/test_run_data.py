from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant.training.data.dataset import Augmentation
from calibrant.training.run_data import HeldOut, TrainingData, digest, sample_rows


def test_training_and_validation_part_the_images_and_test_is_untouched(toy, toy_recipe):
    splits = TrainingData.make(toy_recipe(), toy)
    assert (len(splits.train), splits.n_classes, splits.image_shape) == (81, 3, (1, 6, 6))
    held = splits.held_out["val"]
    rows = [int(name.removeprefix("train-")) for name in held.ids]
    assert torch.equal(held.items.tensors[0], toy.train.images[rows])
    others = [row for row in range(90) if row not in rows]
    assert torch.equal(splits.images, toy.train.images[others])
    assert torch.equal(splits.targets, toy.train.labels[others])
    assert torch.equal(splits.held_out["test"].items.tensors[0], toy.test.images)


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
    if kind is not TensorDataset:
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
