"""Image sets in memory: uint8 images with labels, how to normalise and augment them, and how to split them."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant import checks
from calibrant.errors import invalid
from calibrant.tables import FEW, Displayed, Table

# Called with the amount of work that is done and the total.
Progress = Callable[[int, int], None]
# A class that is a number or one letter, perhaps behind a word that says so.
_CHARACTER = re.compile(r"((digit|number|letter|char|character)[ _-]?)?(\d+|[^\W\d_])", re.IGNORECASE)


@dataclass(frozen=True)
class Augmentation:
    """Random changes to a training image: a shifted crop and a mirror image.

    Args:
        crop_padding: Black pixels added on each side before a crop of the original size is taken; 0 for none.
        flip: Whether half of the images are mirrored left to right; `alternate` mirrors each in every second epoch.
    """

    crop_padding: int = 4
    flip: bool | Literal["alternate"] = True

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise invalid("crop_padding", "be 0 or more", self.crop_padding)

    @classmethod
    def for_classes(cls, class_names: Sequence[str]) -> "Augmentation":
        """The default for a user's own images. Classes that are digits or letters are not mirrored: b is no d.

        >>> [Augmentation.for_classes(names).flip for names in (["cat", "dog"], ["0", "A"], ["digit-0", "digit-1"])]
        [True, False, False]
        """
        return cls(flip=not all(_CHARACTER.fullmatch(name) for name in class_names))


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """One split of a set.

    Args:
        images: `(N, C, H, W)`, uint8, contiguous.
        labels: `(N,)`, int64, from 0 to K-1.
        ids: One name per row. With None, rows are named by their position; see `Dataset.ids`.
    """

    images: Tensor
    labels: Tensor
    ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        rows = len(self.images)
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or not self.images.is_contiguous():
            rule = "be a contiguous uint8 tensor of shape (N, C, H, W)"
            raise invalid("images", rule, f"{self.images.dtype} of shape {tuple(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != (rows,):
            rule = f"be int64, one for each of the {rows} images"
            raise invalid("labels", rule, f"{self.labels.dtype} of shape {tuple(self.labels.shape)}")
        if self.ids is None:
            return
        if len(self.ids) != rows:
            raise invalid("ids", f"name each of the {rows} images", f"{len(self.ids)} names")
        if len(set(self.ids)) < rows:
            # Predictions need distinct ids and are made after the training: equal ids are refused before it.
            repeated = next(name for name, count in Counter(self.ids).items() if count > 1)
            raise invalid("ids", "be distinct", f"{repeated!r} more than once")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Images({len(self):,} images of {_size(self.images)})"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Displayed):
    """A labelled image set, ready to train on.

    Args:
        name: Its name in tables and reports.
        train: The images to train on; the validation part is taken from here by `split_validation`.
        test: The images to report on.
        class_names: One name for each of the K classes, in the order of the labels.
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
        augmentation: Random changes to training images.
        origin: Where it was read from.
        verified: The published digests or counts that it was compared with; empty if there are none.
    """

    name: str
    train: Images
    test: Images
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    origin: str = ""
    verified: str = ""

    def __post_init__(self) -> None:
        train_shape, test_shape = (tuple(part.images.shape[1:]) for part in (self.train, self.test))
        if train_shape != test_shape:
            raise invalid("test images", f"have the shape of the training images, {train_shape}", test_shape)
        for split, part in (("train", self.train), ("test", self.test)):
            checks.labels(f"{split} labels", part.labels, n_classes=self.n_classes)
        absent = set(range(self.n_classes)) - set(self.train.labels.tolist())
        if absent:
            raise invalid(
                "train labels",
                f"name each of the {self.n_classes} classes at least once",
                f"no image of class {min(absent)} ({self.class_names[min(absent)]})",
                "Add images of it, or leave the class out and number the others 0, 1, 2, ...",
            )
        channels = self.image_shape[0]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise invalid("mean and std", f"give {channels} values, std above 0", f"{self.mean} and {self.std}")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    def ids(self, split: Literal["train", "test"], rows: Sequence[int] | Tensor | None = None) -> tuple[str, ...]:
        """Names of rows of a split: those of the source, or `train-000123` made from the position.

        Args:
            split: Which split.
            rows: Positions in that split; None for all of them.
        """
        part = {"train": self.train, "test": self.test}[split]
        if rows is None:
            rows = range(len(part))
        chosen = [int(row) for row in rows]
        if part.ids is None:
            return tuple(f"{split}-{row:06d}" for row in chosen)
        return tuple(part.ids[row] for row in chosen)

    def _overview(self) -> Table:
        counts = [part.labels.bincount(minlength=self.n_classes).tolist() for part in (self.train, self.test)]
        rows: list[tuple[object, ...]] = [("all", len(self.train), len(self.test))]
        rows += list(zip(self.class_names, *counts, strict=True))[:FEW]
        if self.n_classes > FEW:
            rows.append((f"{self.n_classes - FEW:,} more classes", *(sum(count[FEW:]) for count in counts)))
        cells = [(name, *(f"{number:,}" for number in numbers)) for name, *numbers in rows]
        return Table(self._headline, cells, ("class", "train", "test"))

    def _summary(self) -> Table:
        rows = [("training images", f"{len(self.train):,}"), ("test images", f"{len(self.test):,}")]
        others = (("classes", few_names(self.class_names)), ("origin", self.origin), ("verified", self.verified))
        return Table(self._headline, [*rows, *((name, text) for name, text in others if text)])

    @property
    def _headline(self) -> str:
        return f"{self.name}, {self.n_classes} classes, images of {_size(self.train.images)}"


@dataclass(frozen=True, eq=False)
class Splits:
    """What a reader found: both splits, class names if the source has them, and how it was checked."""

    train: Images
    test: Images
    class_names: tuple[str, ...] | None = None
    verified: str = ""


def few_names(names: Sequence[str]) -> str:
    """The first five names, and dots if there are more."""
    shown = list(names[:5])
    if len(names) > 5:
        shown.append("...")
    return ", ".join(shown)


def _size(images: Tensor) -> str:
    return " x ".join(map(str, images.shape[1:]))


def class_counts(labels: Tensor) -> tuple[int, ...]:
    """How many of the labels are 0, 1, 2, ..."""
    return tuple(labels.bincount().tolist())


def channel_histogram(images: Tensor) -> Tensor:
    """How often each value from 0 to 255 occurs in each channel of uint8 images: `(C, 256)`."""
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])


def channel_statistics(histogram: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale from 0 to 1, from `channel_histogram`.

    Counts are integers, so the result is exact and the order of the images does not matter.

    >>> images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> channel_statistics(channel_histogram(images))
    ((0.5,), (0.5,))
    """
    value = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for count in histogram.double():
        share = count / count.sum()
        mean = float((share * value).sum())
        means.append(mean)
        # The deviation of a constant channel counts as 1, so that normalising does not divide by zero.
        deviations.append(float((share * (value - mean) ** 2).sum().sqrt()) or 1.0)
    return tuple(means), tuple(deviations)


def held_out_of(samples: int, fraction: float) -> int:
    """How many samples of a class go to validation: the fraction, halves up, but at least one and not all."""
    return min(max(int(fraction * samples + 0.5), 1), samples - 1)


def split_validation(labels: Tensor, *, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split positions into a training and a validation part with the same class shares.

    Of a class with `n` samples, `fraction * n` (rounded, halves up) go to validation, but at least one and at most
    `n - 1`; a class with a single sample stays in training. The draw depends on the labels, `fraction` and `seed`
    alone: torch's global generator is neither read nor changed.

    Args:
        labels: `(N,)` integers, the class of each sample.
        fraction: Share of each class that goes to validation; the paper holds out 10 %.
        seed: Seed of the draw.

    Returns:
        Two sorted, disjoint int64 tensors of positions that together hold every position, on the device of `labels`.

    >>> train, validation = split_validation(torch.arange(40) % 2)
    >>> len(train), len(validation)
    (36, 4)
    """
    checks.fraction("fraction", fraction)
    if len(checks.labels("labels", labels)) < 2:
        raise invalid("labels", "hold at least two samples", len(labels))
    generator = torch.Generator().manual_seed(checks.whole("seed", seed, 0))
    on_cpu = labels.cpu()
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    # Sorted once, not searched class by class: twenty thousand classes would mean twenty thousand passes.
    sizes = torch.unique(on_cpu, return_counts=True)[1].tolist()
    for members in torch.split(torch.argsort(on_cpu, stable=True), sizes):
        take = held_out_of(len(members), fraction)
        held_out[members[torch.randperm(len(members), generator=generator)[:take]]] = True
    train, validation = torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()
    return train.to(labels.device), validation.to(labels.device)
