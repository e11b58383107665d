"""The data of a run: training, validation and test part.

The engine sees a `TrainingData` and does not ask where it came from: one of our image sets, or a user's torch datasets.
"""

import hashlib
import operator
import random
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from calibrant.checks import labels
from calibrant.errors import InvalidInput, invalid
from calibrant.own_code import load, own_code_at_work
from calibrant.runs import Split
from calibrant.training.batches import BatchReader
from calibrant.training.data import Augmentation, Dataset, Images, StreamedDataset, split_validation
from calibrant.training.data.load import Extent
from calibrant.training.recipe import Recipe
from calibrant.training.reproducibility import derive_seed

# The fingerprint of a large set covers about this many of its images.
_FINGERPRINT_ROWS = 512
_SLICE = 1000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A part that is predicted and never trained on: items `(image, label)`, and a name for each row."""

    items: TorchDataset[Any]
    ids: Sequence[str]

    def batches(self, batch_size: int, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels in order."""
        if isinstance(self.items, Images):
            # A loader would take these images apart and put them together again.
            images, labels = self.items.images, self.items.labels
            yield from zip(torch.split(images, _SLICE), torch.split(labels, _SLICE), strict=True)
            return
        for images, labels, _ in BatchReader(self.items, batch_size=batch_size, workers=workers):
            yield images, labels


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything that the engine knows about the data."""

    train: TorchDataset[Any]  # items (image, label)
    targets: Tensor  # the labels of `train`, in the numbering that the pruner uses
    held_out: dict[Split, HeldOut]
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]  # per channel; images that are not uint8 are not normalised
    std: tuple[float, ...]
    augmentation: Augmentation | None
    fingerprint: str  # a run is resumed only on data with the fingerprint that it began with
    reason: str = ""  # why the data are streamed or in memory, if there was a choice

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @classmethod
    def make(cls, recipe: Recipe, dataset: Dataset) -> "TrainingData":
        """Hold a part of the training images out, stratified and seeded."""
        labels = dataset.train.labels
        rows, validation = split_validation(labels, fraction=recipe.data.validation, seed=recipe.data.split_seed)
        if not len(validation):
            raise invalid("training images", "leave one for validation", "one image per class", "Add images.")
        check_batch_size(recipe, len(rows))
        train, held = dataset.train.take(rows), dataset.train.take(validation)
        if isinstance(dataset, StreamedDataset):
            numbers = torch.tensor([*dataset.image_shape, *dataset.mean, *dataset.std], dtype=torch.float64)
            content = torch.from_numpy(dataset.train.pictures.paths.view(np.uint8)), numbers
        else:
            content = sample_rows(dataset.train.images), sample_rows(dataset.test.images)
        return cls(
            train=train,
            targets=train.labels,
            held_out={"val": HeldOut(held, held.ids), "test": HeldOut(dataset.test, dataset.test.ids)},
            class_names=dataset.class_names,
            image_shape=dataset.image_shape,
            mean=dataset.mean,
            std=dataset.std,
            augmentation=_augmentation(recipe, dataset),
            fingerprint=digest(rows, validation, labels, dataset.test.labels, *content),
            reason=dataset.reason,
        )


def _augmentation(recipe: Recipe, dataset: Dataset) -> Augmentation | None:
    if not recipe.data.augment:
        return None
    given: dict[str, Any] = {"crop_padding": recipe.data.crop, "flip": recipe.data.mirror}
    return replace(dataset.augmentation, **{key: value for key, value in given.items() if value is not None})


def check_batch_size(recipe: Recipe, samples: int) -> None:
    """Refuse a batch that is larger than the set."""
    if recipe.optimiser.batch_size > samples:
        rule = f"not exceed the {samples} training images"
        raise invalid("optimiser.batch_size", rule, recipe.optimiser.batch_size, "Choose a smaller batch.")


def sample_rows(images: Tensor) -> Tensor:
    """Rows spread evenly over the whole set: enough to tell two sets apart, and quick to digest."""
    return images[:: max(1, len(images) // _FINGERPRINT_ROWS)]


def digest(*tensors: Tensor) -> str:
    """SHA-256 of tensors in main memory."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


@dataclass(frozen=True, eq=False)
class TorchData:
    """Map-style torch datasets with items `(image, label)`, for `train(recipe, out, data=...)`.

    Images are float tensors `(C, H, W)` as the network wants them: your transforms do the normalising and augmenting.
    They come through a `DataLoader` (`engine.workers` says with how many processes). Before each training item
    torch's, NumPy's and Python's generators are seeded from the run's seed, the epoch and the item's index, so random
    transforms give the same run with any number of workers, and after a resume.

    Args:
        train: To train on.
        validation: Held out; never trained on.
        test: To report on.
        class_names: One for each of the K classes, in the order of the labels.
        targets: Labels of `train`. None: its attribute `targets` if it has one, else every item is read once.
        name: How the set is called in the log.
    """

    train: TorchDataset[Any]
    validation: TorchDataset[Any]
    test: TorchDataset[Any]
    class_names: Sequence[str]
    targets: Sequence[int] | Tensor | None = None
    name: str = "own"

    def prepare(self, recipe: Recipe) -> TrainingData:
        """The data in the form that the engine takes; datasets that do not fit are refused here."""
        names = self.class_names
        listed = isinstance(names, Sequence) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise invalid("class_names", "be a list of distinct names, one per class", repr(names))
        image, first = first_item("train", self.train)
        for argument, items in (("validation", self.validation), ("test", self.test)):
            first_image, first_label = first_item(argument, items)
            if first_image.shape != image.shape:
                rule = f"have the shape of the training images, {tuple(image.shape)}"
                raise invalid(f"{argument} images", rule, tuple(first_image.shape))
            labels(f"{argument} labels", torch.tensor([first_label]), n_classes=len(names))
        values = self.targets
        if values is None:
            values = labels_of(self.train)
        targets = labels("targets", torch.as_tensor(values), rows=_length(self.train), n_classes=len(names)).long()
        if int(targets[0]) != first:
            raise invalid("targets", f"agree with the items, whose first label is {first}", int(targets[0]))
        check_batch_size(recipe, len(targets))
        channels, height, width = image.shape
        return TrainingData(
            train=SeededItems(self.train, recipe.seed, targets),
            targets=targets,
            held_out={
                "val": HeldOut(self.validation, _names("validation", self.validation)),
                "test": HeldOut(self.test, _names("test", self.test)),
            },
            class_names=tuple(names),
            image_shape=(channels, height, width),
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
            augmentation=None,
            fingerprint=digest(targets, torch.tensor([_length(self.validation), _length(self.test)])),
        )


class SeededItems(TorchDataset[Any]):
    """A dataset whose random items depend on the seed, the epoch and the index alone.

    An item whose label is not that of `targets` is refused: samples are pruned and balanced by these.
    """

    def __init__(self, items: TorchDataset[Any], seed: int, targets: Tensor | None = None) -> None:
        self.items, self.seed, self.targets = items, seed, targets
        # In shared memory: loader processes live through all epochs and must see which one it is.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]  # torch's

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the items that are read next belong to."""
        self.epoch.fill_(epoch)

    def __len__(self) -> int:
        return _length(self.items)

    def __getitem__(self, index: int) -> Any:
        seed = derive_seed(self.seed, "item", int(self.epoch), index)
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 (what transforms use)
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            item = self.items[index]
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])
        if self.targets is not None and (label := label_of("train", item, index)) != self.targets[index]:
            rule, hint = f"agree with the items, whose label {index} is {label}", "Pass targets= with the right ones."
            raise invalid("targets", rule, int(self.targets[index]), hint)
        return item


def labels_of(items: Any) -> Tensor:
    """The training labels: the attribute `targets` if it fits the items, else those of all items, which are read once.

    A `target_transform` may change the items' labels: then the attribute does not describe them.
    """
    with suppress(TypeError, ValueError, RuntimeError):  # not a list of numbers
        listed = torch.as_tensor(getattr(items, "targets", None))
        if (
            listed.shape == (len(items),)
            and not listed.is_floating_point()
            and listed[0] == first_item("train", items)[1]
        ):
            return listed
    seeded = SeededItems(items, seed=0)
    return torch.tensor([label_of("train", seeded[row], row) for row in range(len(items))])


def _describe(value: Any) -> str:
    """What a dataset gave instead of what it should give, for messages."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{len(value)} entries"
    return type(value).__name__


def label_of(argument: str, item: Any, row: int) -> int:
    """The label of an item, a whole number or a tensor that holds one."""
    label = item[1]
    try:
        return operator.index(label)
    except TypeError as error:  # a name, a one-hot row, a fraction
        got = _describe(label) if isinstance(label, Tensor) else repr(label)
        rule, hint = "be whole numbers, one per item", "Give the class's number, counted from 0, as in class_names."
        raise invalid(f"{argument} labels", rule, f"{got} in item {row}", hint) from error


def _length(items: TorchDataset[Any]) -> int:
    return len(cast("Sized", items))


def _names(split: str, items: TorchDataset[Any]) -> tuple[str, ...]:
    return tuple(f"{split}-{row:06d}" for row in range(_length(items)))


def first_item(argument: str, items: Any) -> tuple[Tensor, int]:
    """The first image of a dataset and its label; anything that is not a dataset of images and labels is refused."""
    if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
        raise invalid(argument, "be a map-style dataset with a length", type(items).__name__)
    if len(items) == 0:
        raise invalid(argument, "not be empty", "0 items")
    try:
        item = SeededItems(items, seed=0)[0]
    except Exception as error:  # whatever the user's own dataset raises becomes one line
        raise InvalidInput(f"the first {argument} item cannot be read: {type(error).__name__}: {error}.") from error
    rule = "be (float tensor of shape (C, H, W), label)"
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise invalid(f"{argument} items", rule, _describe(item), "Let a Dataset around yours pick the two.")
    image = item[0]
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.dim() != 3:
        hint = "Let the dataset's transform do that; a row of features becomes x[:, None, None]."
        raise invalid(f"{argument} items", rule, _describe(image), hint)
    return image, label_of(argument, item, 0)


def own_extent(name: str) -> Extent:
    """The size of the set that `module:function` gives. Nothing is augmented: its items are finished."""
    found = own_torch_data(name)
    side = min(first_item("train", found.train)[0].shape[1:])
    augmentation, held_out = Augmentation(0, flip=False), _length(found.validation)
    train = _length(found.train) + held_out
    return Extent(name, train, len(found.class_names), side, augmentation, fixed_validation=held_out)


def own_torch_data(name: str, expected: str | None = None) -> TorchData:
    """What the user's function `module:function` gives; its file must have the SHA-256 `expected`, if that is known."""
    function = load(name, kind="data", expected=expected)
    with own_code_at_work(f"data {name} raised"):
        found: Any = function()
    if not isinstance(found, TorchData):
        raise invalid(f"data {name}", "return a calibrant.training.TorchData", _describe(found))
    return found
