"""The images and ids behind a run, where its data set is on this machine."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InvalidInput
from calibrant.report.thumbnails import Pixels
from calibrant.training import Run
from calibrant.training.data import Dataset, load_dataset, split_validation


class Sample(NamedTuple):
    """A training sample: its id and its image, (H, W, C)."""

    identity: str
    image: Pixels


def images_for_test(run: Run, targets: NDArray[np.int64], data_dir: str | Path | None = None) -> Pixels | None:
    """The test images of a run's data set, (n, H, W, C); None where they are not at hand or do not fit the targets."""
    dataset = _dataset(run.recipe.data.name, data_dir)
    # Predictions of another split, or of a set that has changed: a wrong picture is worse than none.
    if dataset is None or not np.array_equal(dataset.test.labels.numpy(), targets):
        return None
    return dataset.test.images.permute(0, 2, 3, 1).numpy()


def training_samples(
    run: Run, targets: NDArray[np.int64], positions: NDArray[np.int64], data_dir: str | Path | None = None
) -> list[Sample] | None:
    """Some of what a run trained on; None where the data set is not at hand or its labels are not the audit's.

    Args:
        run: The run.
        targets: Labels of all that it trained on, in the order of its pruning audit.
        positions: Which of them are wanted.
        data_dir: Where image sets lie; by default where training looks for them.
    """
    dataset = _dataset(run.recipe.data.name, data_dir)
    if dataset is None:
        return None
    settings = run.recipe.data
    labels = dataset.train.labels
    rows, _ = split_validation(labels, fraction=settings.validation, seed=settings.split_seed)
    if not np.array_equal(labels[rows].numpy(), targets):
        return None
    wanted = rows.numpy()[positions]
    images = dataset.train.images.numpy()[wanted].transpose(0, 2, 3, 1)
    return [Sample(*pair) for pair in zip(dataset.ids("train", wanted.tolist()), images, strict=True)]


# The runs of a page mostly share one data set; it is read once.
@lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str | Path | None) -> Dataset | None:
    try:
        return load_dataset(name, data_dir=data_dir)
    except (InvalidInput, ImportError):
        return None
