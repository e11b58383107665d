"""A user's own torch datasets as the data of a run."""

import operator
import random
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from calibrant.checks import labels
from calibrant.errors import InvalidInput, invalid
from calibrant.training.recipe import Recipe
from calibrant.training.run_data import HeldOut, TrainingData, check_batch_size, digest
from calibrant.training.seeds import derive_seed


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
        targets: Labels of `train`. None: its attribute `targets` where it has one, else every item is read once.
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
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
        ):
            raise invalid("class_names", "be a list of names, one per class", repr(names))
        if len(set(names)) != len(names):
            raise invalid("class_names", "be distinct", repr(names))
        items = SeededItems(self.train, recipe.seed)
        image = first_image("train", self.train)
        held_out = {"validation": self.validation, "test": self.test}
        for argument, others in held_out.items():
            if (shape := first_image(argument, others).shape) != image.shape:
                rule = f"have the shape of the training images, {tuple(image.shape)}"
                raise invalid(f"{argument} images", rule, tuple(shape))
        targets = self._targets(items)
        for argument, others in held_out.items():
            self._check_held_out(argument, others)
        check_batch_size(recipe, len(targets))
        channels, height, width = image.shape
        return TrainingData(
            train=items,
            targets=targets,
            images=None,
            held_out={
                "val": HeldOut(self.validation, _names("validation", self.validation)),
                "test": HeldOut(self.test, _names("test", self.test)),
            },
            class_names=tuple(self.class_names),
            image_shape=(channels, height, width),
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
            augmentation=None,
            fingerprint=digest(targets, torch.tensor([_length(self.validation), _length(self.test)])),
        )

    def _targets(self, items: "SeededItems") -> Tensor:
        given: Any = self.targets if self.targets is not None else getattr(self.train, "targets", None)
        if given is None:
            given = [label_of("train", items[row], row) for row in range(len(items))]
        targets = labels("targets", torch.as_tensor(given), rows=len(items), n_classes=len(self.class_names))
        first = label_of("train", items[0], 0)
        if int(targets[0]) != first:
            raise invalid("targets", f"agree with the items, whose first label is {first}", int(targets[0]))
        return targets.to(torch.int64)

    def _check_held_out(self, argument: str, items: Any) -> None:
        """Refuse wrong labels before the training: all labels where the dataset lists them, else the first item's."""
        label_of(argument, items[0], 0)
        first = torch.as_tensor(items[0][1])
        known = whole_numbers(items.tensors[1] if isinstance(items, TensorDataset) else getattr(items, "targets", None))
        # A `target_transform` may change the items' labels: then the list does not describe them and is not checked.
        agrees = known is not None and len(known) == _length(items) and bool(known[0] == first)
        read = known if known is not None and agrees else first[None]
        labels(f"{argument} labels", read, n_classes=len(self.class_names))


class SeededItems(TorchDataset[Any]):
    """A dataset whose random items depend on the seed, the epoch and the index alone."""

    def __init__(self, items: TorchDataset[Any], seed: int) -> None:
        self.items, self.seed = items, seed
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
            return self.items[index]
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])


def whole_numbers(values: Any) -> Tensor | None:
    """A flat list of integers as a tensor; None for anything else that a dataset may call `targets`."""
    try:
        labels = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels.dim() == 1 and len(labels) and not labels.is_floating_point() else None


def label_of(argument: str, item: Any, row: int) -> int:
    """The label of an item, a whole number or a tensor that holds one."""
    label = item[1]
    try:
        return operator.index(label)
    except TypeError as error:  # a name, a one-hot row, a fraction
        got = f"{label.dtype} of shape {tuple(label.shape)}" if isinstance(label, Tensor) else repr(label)
        way_out = "Give the class's number, counted from 0, in the order of class_names."
        raise invalid(
            f"{argument} labels", "be whole numbers, one per item", f"{got} in item {row}", way_out
        ) from error


def _length(items: TorchDataset[Any]) -> int:
    return len(cast("Sized", items))


def _names(split: str, items: TorchDataset[Any]) -> tuple[str, ...]:
    return tuple(f"{split}-{row:06d}" for row in range(_length(items)))


def first_image(argument: str, items: Any) -> Tensor:
    """The first image of a dataset; anything that is not a dataset of images and labels is refused."""
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
        got = f"{len(item)} entries" if isinstance(item, tuple | list) else type(item).__name__
        raise invalid(f"{argument} items", rule, got, "Let a Dataset around yours pick the two.")
    image = item[0]
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.dim() != 3:
        got = f"{image.dtype} of shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        way_out = "Let the dataset's transform do that."
        if isinstance(image, Tensor) and image.dim() == 1:
            way_out = "A row of features is x[:, None, None], for a network of your own (model.name = module:factory)."
        raise invalid(f"{argument} items", rule, got, way_out)
    return image
