import numpy as np
import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.training.data import Augmentation, Dataset, Images
from calibrant.training.data.dataset import channel_histogram, channel_statistics


def images(n=4, shape=(1, 3, 3), labels=None, ids=None):
    made = torch.zeros(n, *shape, dtype=torch.uint8)
    return Images(made, torch.arange(n) % 2 if labels is None else torch.tensor(labels), ids)


def dataset(**changes):
    fields = {
        "name": "x", "train": images(), "test": images(2), "class_names": ("a", "b"),
        "mean": (0.5,), "std": (0.2,), "augmentation": Augmentation(),
    }  # fmt: skip
    return Dataset(**fields | changes)


def test_reports_classes_and_shape():
    made = dataset(train=images(shape=(3, 8, 6)), test=images(shape=(3, 8, 6)), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert (made.n_classes, made.image_shape, len(made.train)) == (2, (3, 8, 6), 4)


def test_rows_without_names_are_named_by_position():
    assert dataset().train.take(torch.tensor([3, 1])).ids == ("train-000003", "train-000001")
    assert dataset().test.ids == ("test-000000", "test-000001")


def test_rows_with_names_keep_them():
    made = dataset(test=images(2, ids=("p/1.png", "p/2.png")))
    assert made.test.ids[1] == "p/2.png"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Images(torch.zeros(2, 1, 3, 3), torch.arange(2)), "uint8"),
        (lambda: Images(torch.zeros(2, 3, 3, dtype=torch.uint8), torch.arange(2)), r"\(N, C, H, W\)"),
        (lambda: Images(torch.zeros(3, 3, 1, 2, dtype=torch.uint8).permute(3, 2, 0, 1), torch.arange(2)), "contiguous"),
        (lambda: images(2, labels=[0, 1, 0]), "one for each of the 2 images"),
        (lambda: Images(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(2)), "int64"),
        (lambda: images(3, ids=("a", "b", "a")), "ids must be distinct, got 'a' more than once"),
        (lambda: images(2, ids=("a",)), "name each of the 2 images, got 1 names"),
        (lambda: dataset(test=images(2, shape=(1, 4, 3))), r"shape of the training images, \(1, 3, 3\)"),
        (lambda: dataset(train=images(3, labels=[0, 1, 2])), "train labels must"),
        (lambda: dataset(test=images(2, labels=[0, -1])), "test labels must"),
        (lambda: dataset(train=images(2, labels=[1, 1])), r"no image of class 0 \(a\)"),
        (lambda: dataset(test=images(0)), "test labels must"),
        (lambda: dataset(class_names=("a", "a")), "class_names must be distinct, got 'a' more than once"),
        (lambda: dataset(std=(0.0,)), "std above 0"),
        (lambda: dataset(mean=(0.0, 0.0)), "give 1 values"),
        (lambda: Augmentation(crop_padding=-1), "crop_padding must be 0 or more, got -1"),
    ],
)
def test_refuses_what_cannot_be_trained_on(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_channel_statistics_are_those_of_numpy():
    pixels = torch.randint(0, 256, (7, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = channel_statistics(channel_histogram(pixels))
    scaled = pixels.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std((0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_does_not_divide_by_zero():
    assert channel_statistics(channel_histogram(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8))) == ((1.0,), (1.0,))


def test_a_set_shows_what_it_holds(notebook_rows):
    made = dataset(train=images(5), class_names=("<b>", "b & c"), origin="folder:<x>", verified="counts")
    assert ["classes", "<b>, b & c"] in notebook_rows(made)
    assert repr(made).splitlines() == [
        "Dataset: x, 2 classes, images of 1 x 3 x 3",
        "  training images  5",
        "  test images      2",
        "  classes          <b>, b & c",
        "  origin           folder:<x>",
        "  verified         counts",
    ]
    assert repr(made.train) == "Images(5 images of 1 x 3 x 3)"


def test_many_classes_are_cut_short():
    every = images(46, labels=[row % 23 for row in range(46)])
    made = dataset(train=every, class_names=tuple(map(str, range(23))))
    assert "0, 1, 2, 3, 4, ...\n" in f"{made!r}\n"
