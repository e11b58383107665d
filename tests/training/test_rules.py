import pytest

from calibrant.training import default_recipe
from calibrant.training.data import Augmentation, Extent, extent_of
from calibrant.training.defaults import derive


def values(train, n_classes=10, side=32, name="photos", validation=0.1, augmentation=None):
    extent = Extent(name, train, n_classes, side, augmentation or Augmentation())
    return {each.key: each.value for each in derive(extent, validation=validation)}


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
    assert values(49_980)["calibration.share"] == values(300)["calibration.share"] == 0.1
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
    assert [values(300, side=side)["model.name"] for side in (48, 224)] == ["tiny", "resnet32"]


def test_what_the_set_brings_along_is_not_set_again():
    derived = {each.key: each for each in derive(extent_of("cifar10"), validation=0.1)}
    assert not derived["data.crop"].changes_anything
    svhn = default_recipe("svhn")
    assert (svhn.data.augment, svhn.data.crop, svhn.data.mirror) == (True, 4, None)
    assert svhn.reasons["data.mirror"].startswith("no")
