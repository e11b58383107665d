"""What every reader returns: two splits of uint8 images with labels, and how to normalise and augment them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.checks import labels
from calibrant.errors import invalid
from calibrant.tables import FEW, Displayed, Table


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
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or not self.images.is_contiguous():
            raise invalid(
                "images",
                "be a contiguous uint8 tensor of shape (N, C, H, W)",
                f"{self.images.dtype} of shape {tuple(self.images.shape)}",
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise invalid(
                "labels",
                f"be int64, one for each of the {len(self.images)} images",
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}",
            )
        if self.ids is not None and len(self.ids) != len(self.images):
            raise invalid("ids", f"name each of the {len(self.images)} images", f"{len(self.ids)} names")
        if self.ids is not None and len(set(self.ids)) < len(self.ids):
            # Predictions, which need distinct ids, are made after the training: equal ids are refused before it.
            twice = next(name for name, count in Counter(self.ids).items() if count > 1)
            raise invalid("ids", "be distinct", f"{twice!r} more than once")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Images({len(self):,} images of {_size(self.images)})"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Displayed):
    """A labelled image set, ready to train on.

    Args:
        name: How the set is called in tables and reports.
        train: The images to train on; the validation part is taken from here by `split_validation`.
        test: The images to report on.
        class_names: One name for each of the K classes, in the order of the labels.
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
        augmentation: Random changes to training images.
        origin: Where it was read from.
        verified: The published digests or counts that it was compared with, in words; empty where there are none.
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
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise invalid(
                "test images",
                f"have the shape of the training images, {tuple(self.train.images.shape[1:])}",
                tuple(self.test.images.shape[1:]),
            )
        for split, part in (("train", self.train), ("test", self.test)):
            labels(f"{split} labels", part.labels, n_classes=self.n_classes)
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
        part = self.train if split == "train" else self.test
        chosen = range(len(part)) if rows is None else [int(row) for row in rows]
        if part.ids is None:
            return tuple(f"{split}-{row:06d}" for row in chosen)
        return tuple(part.ids[row] for row in chosen)

    def _overview(self) -> Table:
        counts = [part.labels.bincount(minlength=self.n_classes).tolist() for part in (self.train, self.test)]
        rows: list[tuple[object, ...]] = [("all", len(self.train), len(self.test))]
        rows += list(zip(self.class_names, *counts, strict=True))[:FEW]
        if self.n_classes > FEW:
            rows.append((f"{self.n_classes - FEW:,} more classes", *(sum(each[FEW:]) for each in counts)))
        shown = [(name, *(f"{number:,}" for number in numbers)) for name, *numbers in rows]
        return Table(self._headline, shown, ("class", "train", "test"))

    def _summary(self) -> Table:
        rows = [("training images", f"{len(self.train):,}"), ("test images", f"{len(self.test):,}")]
        names = ", ".join([*self.class_names[:5], *(["..."] if self.n_classes > 5 else [])])
        others = (("classes", names), ("origin", self.origin), ("verified", self.verified))
        return Table(self._headline, [*rows, *((name, text) for name, text in others if text)])

    @property
    def _headline(self) -> str:
        return f"{self.name}, {self.n_classes} classes, images of {_size(self.train.images)}"


def _size(images: Tensor) -> str:
    return " x ".join(map(str, images.shape[1:]))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the scale from 0 to 1.

    They are exact, because they come from the integer histogram of each channel: the order of images does not matter.

    >>> import torch
    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    return histogram_statistics(channel_histogram(images))


def channel_histogram(images: Tensor) -> Tensor:
    """How often each value from 0 to 255 occurs in each channel of uint8 images: `(C, 256)`."""
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])


def histogram_statistics(histogram: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from `channel_histogram`."""
    value = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for count in histogram.double():
        share = count / count.sum()
        mean = float((share * value).sum())
        means.append(mean)
        # The deviation of a constant channel counts as 1, so that normalising does not divide by zero.
        deviations.append(float((share * (value - mean) ** 2).sum().sqrt()) or 1.0)
    return tuple(means), tuple(deviations)


@dataclass(frozen=True, eq=False)
class Splits:
    """What a reader found: both splits, class names where the source has them, and how it was checked."""

    train: Images
    test: Images
    class_names: tuple[str, ...] | None = None
    verified: str = ""
