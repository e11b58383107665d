"""Image sets in memory: uint8 images with labels, how to split them, and how to augment and normalise a batch.

Augmenting and normalising wait for no device, shapes do not depend on values, and randomness comes in as tensors, so
that a step which uses these functions can be compiled and captured in a CUDA graph.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset as TorchDataset

from calibrant import checks
from calibrant.errors import invalid
from calibrant.tables import Displayed, Table

Size = tuple[int, int]
"""Height and width in pixels."""
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
class Images(TorchDataset[tuple[Tensor, Tensor]]):
    """One split of a set: items `(image, label)`.

    Args:
        images: `(N, C, H, W)`, uint8, contiguous.
        labels: `(N,)`, int64, from 0 to K-1.
        ids: One name per row. If they are left out, a `Dataset` names the rows by their position: `train-000123`.
    """

    images: Tensor
    labels: Tensor
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.images)
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or not self.images.is_contiguous():
            rule = "be a contiguous uint8 tensor of shape (N, C, H, W)"
            raise invalid("images", rule, f"{self.images.dtype} of shape {tuple(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != (rows,):
            rule = f"be int64, one for each of the {rows} images"
            raise invalid("labels", rule, f"{self.labels.dtype} of shape {tuple(self.labels.shape)}")
        if self.ids and len(self.ids) != rows:
            raise invalid("ids", f"name each of the {rows} images", f"{len(self.ids)} names")
        if self.ids and len(set(self.ids)) < rows:
            # Predictions need distinct ids and are made after the training: equal ids are refused before it.
            repeated = next(name for name, count in Counter(self.ids).items() if count > 1)
            raise invalid("ids", "be distinct", f"{repeated!r} more than once")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __repr__(self) -> str:
        return f"Images({len(self):,} images of {_size(self.shape)})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def take(self, rows: Tensor) -> "Images":
        """The part with these rows."""
        ids = tuple(self.ids[row] for row in rows.tolist()) if self.ids else ()
        return Images(self.images[rows], self.labels[rows], ids)


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
        reason: Why it is in memory or streamed; empty if there was no choice.
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
    reason: str = ""

    def __post_init__(self) -> None:
        if self.train.shape != self.test.shape:
            rule = f"have the shape of the training images, {self.train.shape}"
            raise invalid("test images", rule, self.test.shape)
        for split, part in (("train", self.train), ("test", self.test)):
            checks.labels(f"{split} labels", part.labels, n_classes=self.n_classes)
            if isinstance(part, Images) and not part.ids:
                names = tuple(f"{split}-{row:06d}" for row in range(len(part)))
                object.__setattr__(self, split, replace(part, ids=names))
        if len(set(self.class_names)) < self.n_classes:
            repeated = next(name for name, count in Counter(self.class_names).items() if count > 1)
            raise invalid("class_names", "be distinct", f"{repeated!r} more than once")
        absent = set(range(self.n_classes)) - set(self.train.labels.tolist())
        if absent:
            rule = f"name each of the {self.n_classes} classes at least once"
            found = f"no image of class {min(absent)} ({self.class_names[min(absent)]})"
            hint = "Add images of it, or leave the class out and number the others 0, 1, 2, ..."
            raise invalid("train labels", rule, found, hint)
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
        return self.train.shape

    def _overview(self) -> Table:
        rows = [("training images", f"{len(self.train):,}"), ("test images", f"{len(self.test):,}")]
        names = ", ".join(self.class_names[:5])
        if self.n_classes > 5:
            names += ", ..."
        others = (("classes", names), ("origin", self.origin), ("verified", self.verified))
        title = f"{self.name}, {self.n_classes} classes, images of {_size(self.image_shape)}"
        return Table(title, [*rows, *((name, text) for name, text in others if text)])


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


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
    """Split positions into a training and a validation part with the same class shares, both sorted.

    Of a class with `n` samples, `fraction * n` (rounded, halves up) go to validation, but at least one and at most
    `n - 1`; a class with a single sample stays in training. The draw depends on the labels, `fraction` and `seed`
    alone: torch's global generator is neither read nor changed.

    Args:
        labels: `(N,)` integers, the class of each sample.
        fraction: Share of each class that goes to validation; the paper holds out 10 %.
        seed: Seed of the draw.

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


def draw_augmentation(
    n: int,
    padding: int,
    flip: bool | str,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw where to crop and what to mirror for `n` images.

    The result is made on `device`, where the generator must live: `(n, 2)` row and column offsets into an image that is
    padded by `padding` pixels on each side, and `(n,)` booleans, of which half are true if images are to `flip`.

    >>> offsets, flips = draw_augmentation(5, 0, False)
    >>> offsets.shape, int(offsets.sum()), int(flips.sum())
    (torch.Size([5, 2]), 0, 0)
    """
    offsets = torch.randint(0, 2 * padding + 1, (n, 2), generator=generator, device=device)
    coins = torch.rand(n, generator=generator, device=device)
    return offsets, coins < 0.5 * bool(flip)


def augment(images: Tensor, crop_offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Crop each image at its own offset out of a zero-padded copy, then mirror the chosen ones.

    uint8 images are padded with black; images that are normalised already are padded with the mean.

    Args:
        images: `(N, C, H, W)`, any dtype.
        crop_offsets: `(N, 2)` integers in `0..2 * padding`; `(padding, padding)` leaves the image where it is.
        flips: `(N,)` booleans.
        padding: Pixels of padding on each side.

    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> augment(image, torch.tensor([[1, 1]]), torch.tensor([True]), 1).flatten().tolist()
    [1, 0, 3, 2]
    """
    _, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    row = torch.arange(height, device=images.device) + crop_offsets[:, :1]
    column = torch.arange(width, device=images.device)
    column = torch.where(flips[:, None], width - 1 - column, column) + crop_offsets[:, 1:]
    # One flat position per pixel, shared by the channels: a single gather moves the whole batch.
    position = (row * (width + 2 * padding)).unsqueeze(2) + column.unsqueeze(1)
    flat = position.flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, flat).view(images.shape)


def normalise(
    images: Tensor,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Turn uint8 images into `(images / 255 - mean) / std`.

    Computed in float32 (float64 for float64) and rounded once, so that bfloat16 images are as exact as they can be.
    Inside a CUDA graph pass `mean` and `std` as tensors on the device: making one from numbers copies from the host,
    which a capture forbids. `torch.channels_last` is the fast memory format for convolutions on a GPU.

    >>> normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), [0.5], [0.25]).item()
    2.0
    """
    wide = torch.promote_types(dtype, torch.float32)
    middle, spread = (torch.as_tensor(v, dtype=wide, device=images.device).view(1, -1, 1, 1) for v in (mean, std))
    # In place: a batch of photographs takes tens of megabytes as floats, and a new array for each step costs more time
    # than the step itself.
    scaled = images.to(wide, copy=True).div_(255).sub_(middle).div_(spread)
    return scaled.to(dtype=dtype, memory_format=memory_format)


def resized(images: Tensor, size: Size) -> Tensor:
    """Float images `(N, C, H, W)` of another size; those of this size as they are."""
    if images.shape[2:] == size:
        return images
    return functional.interpolate(images, size=size, mode="bilinear", antialias=True)
