import sys

import numpy as np
import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset


def test_every_digit_of_scikit_learn_is_there_once():
    from sklearn.datasets import load_digits

    source, dataset = load_digits(), load_dataset("digits")
    rows = [int(name.removeprefix("digit-")) for name in (*dataset.train.ids, *dataset.test.ids)]
    assert sorted(rows) == list(range(1797))
    pixels = torch.cat([dataset.train.images, dataset.test.images])[:, 0].numpy()
    np.testing.assert_array_equal(pixels, np.round(source.images[rows] * 255 / 16))
    labels = torch.cat([dataset.train.labels, dataset.test.labels]).numpy()
    np.testing.assert_array_equal(labels, source.target[rows])
    assert pixels.max() == 255


def test_a_third_of_each_class_is_the_test_and_always_the_same():
    first, again = load_dataset("digits"), load_dataset("digits")
    assert first.test.ids == again.test.ids
    train, test = torch.bincount(first.train.labels), torch.bincount(first.test.labels)
    assert ((test - (train + test) / 3).abs() <= 0.5).all()
    assert first.augmentation.flip is False


def test_says_how_to_get_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InvalidInput, match=r"pip install 'calibrant\[train\]'"):
        load_dataset("digits")


def test_takes_no_options():
    with pytest.raises(InvalidInput, match="options that 'digits' knows"):
        load_dataset("digits?size=3")
