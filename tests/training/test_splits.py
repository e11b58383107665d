from dataclasses import replace

import pytest
import torch

from calibrant.training.splits import Splits, digest


def test_training_and_validation_part_the_images_and_test_is_untouched(toy, toy_recipe):
    splits = Splits.make(toy_recipe(), toy)
    assert (len(splits.train), splits.classes, splits.image_shape) == (81, 3, (1, 6, 6))
    held = splits.held_out["val"]
    rows = [int(name.removeprefix("train-")) for name in held.ids]
    assert torch.equal(held.items.tensors[0], toy.train.images[rows])
    others = [row for row in range(90) if row not in rows]
    assert torch.equal(splits.images, toy.train.images[others])
    assert torch.equal(splits.targets, toy.train.labels[others])
    assert torch.equal(splits.held_out["test"].items.tensors[0], toy.test.images)


def test_the_fingerprint_tells_sets_and_splits_apart(toy, toy_recipe, make_toy):
    def fingerprint(data=toy, **changes):
        return Splits.make(toy_recipe(**changes), data).fingerprint

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
    assert Splits.make(toy_recipe(), other).fingerprint != Splits.make(toy_recipe(), toy).fingerprint


def test_a_view_and_its_copy_have_the_same_digest():
    grid = torch.arange(6).view(2, 3)
    assert digest(grid.T) == digest(grid.T.contiguous()) != digest(grid)


def test_augmentation_can_be_left_out(toy, toy_recipe):
    assert Splits.make(toy_recipe(data__augment=False), toy).augmentation is None
