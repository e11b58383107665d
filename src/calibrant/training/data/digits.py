"""The handwritten digits that come with scikit-learn and need no download."""

import numpy as np
import torch

from calibrant.errors import importing
from calibrant.training.data.class_names import DIGITS
from calibrant.training.data.dataset import Augmentation, Dataset, Images, channel_statistics
from calibrant.training.data.split import split_validation

# A third for the test: 599 images, so that an error rate of a few percent rests on more than a handful of samples.
_TEST_FRACTION = 1 / 3
_SPLIT_SEED = 0


def load_digits() -> Dataset:
    """Read the 1,797 digits (8x8, grey): two thirds to train on and one third to test, drawn class by class.

    The set has no official split; ours is always the same. The values 0 to 16 are stretched to 0 to 255.
    """
    with importing("digits", "scikit-learn", "train"):
        from sklearn.datasets import load_digits as sklearn_digits
    source = sklearn_digits()
    pixels = torch.from_numpy(np.round(source.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(source.target.astype(np.int64))
    rows = split_validation(labels, fraction=_TEST_FRACTION, seed=_SPLIT_SEED)
    # The row of scikit-learn's own table stays the name of an image, so that it can be looked up there.
    train, test = (
        Images(pixels[row].contiguous(), labels[row], tuple(f"digit-{index:04d}" for index in row.tolist()))
        for row in rows
    )
    mean, std = channel_statistics(train.images)
    # A digit fills its 8x8 frame, so crops are small, and a mirrored digit is no digit.
    augmentation = Augmentation(crop_padding=1, flip=False)
    return Dataset("digits", train, test, DIGITS, mean, std, augmentation, origin="scikit-learn")
