"""The data of a run: what is trained on, what is held out, what is reported on.

The engine sees a `TrainingData` and does not ask where it came from: one of our image sets, or a user's torch datasets.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from calibrant.errors import invalid
from calibrant.runs import Split
from calibrant.training.data import Augmentation, Dataset, StreamedDataset, split_validation
from calibrant.training.reading import BatchReader, LeftOut
from calibrant.training.recipe import Recipe

# The fingerprint of a large set covers about this many of its images.
_FINGERPRINT_ROWS = 512
_SLICE = 1000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A part that is predicted and never trained on: items `(image, label)`, and a name for each row."""

    items: TorchDataset[Any]
    ids: Sequence[str]
    left_out: LeftOut = field(default_factory=LeftOut)

    def batches(self, batch_size: int, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels in order."""
        # Not `isinstance`: a subclass may change its items. Slices, because a loader would take these images apart and
        # put them together again.
        if type(self.items) is TensorDataset:
            images, labels = self.items.tensors
            yield from zip(torch.split(images, _SLICE), torch.split(labels, _SLICE), strict=True)
            return
        for read in BatchReader(self.items, batch_size=batch_size, workers=workers, left_out=self.left_out):
            if len(read.indices):
                yield read.images, read.targets

    def read_ids(self) -> Sequence[str]:
        """Names of the rows that `batches` gave: those of pictures that could not be read are left out."""
        if not self.left_out.names:
            return self.ids
        return [name for name in self.ids if name not in self.left_out.names]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything that the engine knows about the data.

    Args:
        train: Items `(image, label)` to train on.
        targets: `(N,)` int64, the labels of `train`, in the numbering that the pruner uses.
        images: `(N, C, H, W)` uint8, all training images as one tensor, or None: then only a loader can read them.
        held_out: `val` and `test`.
        class_names: One for each of the K classes.
        image_shape: Channels, height and width.
        mean: Per channel; images that are not uint8 come as the network wants them and are not normalised.
        std: Per channel.
        augmentation: What is done to uint8 training images.
        fingerprint: A digest of the data. A run is resumed only on data with the fingerprint that it began with.
        reason: Why the data are streamed or in memory, where there was a choice.
        left_out: Training pictures that could not be read in the newest pass over them.
    """

    train: TorchDataset[Any]
    targets: Tensor
    images: Tensor | None
    held_out: dict[Split, HeldOut]
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation | None
    fingerprint: str
    reason: str = ""
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @classmethod
    def make(cls, recipe: Recipe, dataset: Dataset) -> "TrainingData":
        """Hold a part of the training images out, stratified and seeded."""
        labels, images = dataset.train.labels, dataset.train.images
        train, validation = split_validation(labels, fraction=recipe.data.validation, seed=recipe.data.split_seed)
        check_batch_size(recipe, len(train))
        mine, targets = images[train], labels[train]
        held = TensorDataset(images[validation], labels[validation])
        test = TensorDataset(dataset.test.images, dataset.test.labels)
        return cls(
            train=TensorDataset(mine, targets),
            targets=targets,
            images=mine,
            held_out={
                "val": HeldOut(held, dataset.ids("train", validation)),
                "test": HeldOut(test, dataset.ids("test")),
            },
            class_names=dataset.class_names,
            image_shape=dataset.image_shape,
            mean=dataset.mean,
            std=dataset.std,
            augmentation=_augmentation(recipe, dataset),
            fingerprint=digest(
                *(train, validation, labels, dataset.test.labels, sample_rows(images), sample_rows(dataset.test.images))
            ),
        )

    @classmethod
    def stream(cls, recipe: Recipe, dataset: StreamedDataset) -> "TrainingData":
        """The same split of pictures that stay on disk."""
        labels = dataset.train.labels
        rows, validation = split_validation(labels, fraction=recipe.data.validation, seed=recipe.data.split_seed)
        check_batch_size(recipe, len(rows))
        train, held = dataset.train.take(rows), dataset.train.take(validation)
        return cls(
            train=train,
            targets=train.labels,
            images=None,
            held_out={
                "val": HeldOut(held, held.ids()),
                "test": HeldOut(dataset.test, dataset.test.ids()),
            },
            class_names=dataset.class_names,
            image_shape=dataset.image_shape,
            mean=dataset.mean,
            std=dataset.std,
            augmentation=_augmentation(recipe, dataset),
            fingerprint=digest(
                *(rows, validation, labels, dataset.test.labels, dataset.train.pictures.paths.text),
                torch.tensor([*dataset.image_shape, *dataset.mean, *dataset.std], dtype=torch.float64),
            ),
        )


def _augmentation(recipe: Recipe, dataset: Dataset | StreamedDataset) -> Augmentation | None:
    if not recipe.data.augment:
        return None
    own, crop, mirror = dataset.augmentation, recipe.data.crop, recipe.data.mirror
    return Augmentation(own.crop_padding if crop is None else crop, own.flip if mirror is None else mirror)


def check_batch_size(recipe: Recipe, samples: int) -> None:
    """Refuse a batch that is larger than the set."""
    if recipe.optimiser.batch_size > samples:
        raise invalid(
            "optimiser.batch_size",
            f"not exceed the {samples} training images",
            recipe.optimiser.batch_size,
            "Choose a smaller batch.",
        )


def sample_rows(images: Tensor) -> Tensor:
    """Rows spread evenly over the whole set: enough to tell two sets apart, and quick to digest."""
    return images[:: max(1, len(images) // _FINGERPRINT_ROWS)]


def digest(*tensors: Tensor) -> str:
    """SHA-256 of tensors in main memory."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()
