"""Two sources of batches: a set that lives on the device, and any `Dataset` through a `DataLoader`.

Both number the samples of an epoch by their position in the epoch's global order, and draw the augmentation of a
position from the seed and the epoch alone. So both sources, and any number of processes, train on the same pixels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from calibrant.pruning import ConfidencePruner
from calibrant.training.data import Augmentation, StreamedImages, augment, draw_augmentation, normalise
from calibrant.training.reading import BatchReader, Read
from calibrant.training.reproducibility import derive_seed
from calibrant.training.resolution import Size, resized


@dataclass(frozen=True)
class Mixed:
    """What was mixed into a batch: the labels of the smaller parts `[B]`, and the share of the larger ones (0-dim)."""

    partners: Tensor
    share: Tensor


class Mixup:
    """Mixes each batch with itself, rolled by half of its length (mixup, Zhang et al. 2018).

    Sample i becomes `share * x_i + (1 - share) * x_j`, and its loss is `share * loss(y_i) + (1 - share) * loss(y_j)`.
    The order of an epoch is random, so the pairs are random too. One share is drawn for each batch from
    Beta(alpha, alpha), and the larger of it and the rest is taken: each pair is mixed both ways round, so this gives
    the same mixtures, and "the label of a mixed sample" is that of its larger part. The shares of an epoch are a tensor
    on the device: a captured step reads its own at each replay.

    With an even number of samples for each process the pairs of a full batch do not depend on the number of processes:
    ranks take turns in the order, so half of a rank's part is half of the global batch. In the last, partial batch of
    an epoch pairs are made among what each process holds.
    """

    def __init__(self, alpha: float, *, steps: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self.alpha, self.seed = alpha, seed
        self.shares = torch.ones(steps, device=device, dtype=dtype)

    def begin(self, epoch: int) -> None:
        """Draw the shares of an epoch, from the seed and the epoch alone."""
        generator = np.random.default_rng(derive_seed(self.seed, "mixup", epoch))
        drawn = generator.beta(self.alpha, self.alpha, len(self.shares))
        self.shares.copy_(torch.from_numpy(np.maximum(drawn, 1 - drawn)))

    def __call__(self, images: Tensor, targets: Tensor, step: Tensor | int) -> tuple[Tensor, Mixed]:
        """The mixed images of the epoch's batch number `step`, and what was mixed into them."""
        half = len(targets) // 2
        # Not `shares[step]`: with a tensor of one number torch asks the host for it, which no capture allows.
        share = self.shares[step] if isinstance(step, int) else self.shares.index_select(0, step.reshape(1)).squeeze(0)
        return images.lerp(images.roll(half, 0), 1 - share), Mixed(targets.roll(half, 0), share)


@dataclass(frozen=True)
class TrainingBatch:
    """What a step trains on: images ready for the network, targets, and indices into the training set.

    `mixed` holds what was mixed into the images, if anything; targets and indices are those of the larger parts.
    `total` is the number of samples over all processes; of a small last batch some processes may hold none.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    total: int
    mixed: Mixed | None = None

    def __getitem__(self, here: slice) -> "TrainingBatch":
        """A part of the batch."""
        mixed = self.mixed
        if mixed is not None:
            mixed = Mixed(mixed.partners[here], mixed.share)
        return TrainingBatch(self.images[here], self.targets[here], self.indices[here], self.total, mixed)


class Preparation:
    """uint8 images in, network input out: crop, mirror, normalise, all in batch on the device.

    Args:
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel.
        augmentation: Crops and mirror images; None for none.
        device: Where images are prepared.
        dtype: Floating-point type of the result.
        full_size: Height and width of the data set's images. Images that come in smaller get smaller crops.

    Attributes:
        size: The present size of training images; None leaves them as they are.
    """

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        augmentation: Augmentation | None,
        device: torch.device,
        dtype: torch.dtype,
        full_size: Size | None = None,
    ) -> None:
        # Tensors, not tuples: making a tensor from numbers copies from the host, which a graph capture forbids.
        self.mean = torch.tensor(mean, device=device, dtype=dtype)
        self.std = torch.tensor(std, device=device, dtype=dtype)
        self.augmentation = augmentation
        self.dtype = dtype
        self.memory_format = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        self.size: Size | None = None
        self.full_size = full_size
        self._batch_size: int | None = None
        self._full: Callable[[Tensor, Tensor, Tensor], Tensor] = self._augmented

    def compile(self, batch_size: int) -> None:
        """Compile for full batches; others stay eager."""
        self._batch_size = batch_size
        self._full = torch.compile(self._augmented, dynamic=False)

    def plain(self, images: Tensor) -> Tensor:
        """Normalise only, for evaluation. Images that are not uint8 are finished input and keep their values."""
        if images.dtype != torch.uint8:
            return images.to(self.dtype, memory_format=self.memory_format)
        return normalise(images, self.mean, self.std, self.dtype, self.memory_format)

    def __call__(self, images: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
        """Augment and normalise, for training."""
        if len(images) == self._batch_size:
            return self._full(images, offsets, flips)
        return self._augmented(images, offsets, flips)

    def _augmented(self, images: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
        if self.augmentation is not None:
            padding = self.augmentation.crop_padding
            if self.full_size is not None and images.shape[2] < self.full_size[0]:
                # The offsets were drawn for images of full size, from 0 to twice the padding.
                smaller = round(padding * images.shape[2] / self.full_size[0])
                shift = (offsets - padding) * (smaller / max(padding, 1))
                offsets, padding = smaller + shift.round().long(), smaller
            images = augment(images, offsets, flips, padding)
        prepared = self.plain(images)
        if self.size is None:
            return prepared
        return resized(prepared, self.size).contiguous(memory_format=self.memory_format)


class BatchSource(Protocol):
    """The batches of an epoch. Call `begin` once per epoch, then `batches`."""

    tables: "EpochTables"

    def begin(self, epoch: int) -> None:
        """Lay out the order and the augmentation of an epoch."""

    def batches(self) -> Iterator[TrainingBatch]:
        """The batches of the epoch in order."""


class EpochTables:
    """The order of an epoch and its augmentation, as device tensors whose addresses never change.

    A captured step reads its samples at a cursor that it moves itself, so a replay needs nothing from the host, and
    pruning changes only what these tables say and how often the graph is replayed.

    Ranks take turns within each global batch. So a batch holds the same samples for any number of ranks, also if
    that number does not divide it.
    """

    def __init__(
        self,
        pruner: ConfidencePruner,
        *,
        augmentation: Augmentation | None,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        balanced: Tensor | None = None,
    ) -> None:
        """`batch_size` is that of the global batch.

        `balanced` are the targets of all samples, if each class is to be drawn as often as any other.
        """
        self.pruner = pruner
        self.balanced = balanced
        if balanced is not None:
            self.balanced = balanced.cpu()
        self.augmentation = augmentation
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.capacity = pruner.samples
        device = pruner.device
        self.order = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self.offsets = torch.zeros(self.capacity, 2, dtype=torch.int64, device=device)
        self.flips = torch.zeros(self.capacity, dtype=torch.bool, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.length = self.samples = 0

    def begin(self, epoch: int) -> None:
        """Fill the tables for an epoch."""
        order = self.pruner.global_order()
        if self.balanced is not None:
            order = balanced_draw(order, self.balanced, derive_seed(self.seed, "balance", epoch, 0))
        self.samples = len(order)
        places = torch.arange(self.samples)
        mine = places[places % self.batch_size % self.world_size == self.rank]
        self.length = len(mine)
        self.order[: self.length].copy_(order[mine])
        self.cursor.zero_()
        if self.augmentation is None:
            return
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "augment", epoch))
        # Always draw for as many positions as there are samples: the draw must not depend on what was pruned.
        offsets, flips = draw_augmentation(
            self.capacity, self.augmentation.crop_padding, self.augmentation.flip, generator
        )
        flips = flips[mine]
        if self.augmentation.flip == "alternate":
            flips = self._alternating_sides(epoch)[order[mine].cpu()]
        self.offsets[: self.length].copy_(offsets[mine])
        self.flips[: self.length].copy_(flips)

    def _alternating_sides(self, epoch: int) -> Tensor:
        """Which samples are mirrored in this epoch: each has a random first side and changes it every epoch."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "mirror"))
        first_sides = torch.randint(0, 2, (self.capacity,), generator=generator)
        return (first_sides + epoch) % 2 == 1

    def totals(self) -> list[int]:
        """Sizes of the epoch's global batches: full ones, then what is left."""
        full, rest = divmod(self.samples, self.batch_size)
        totals = [self.batch_size] * full
        if rest:
            totals.append(rest)
        return totals

    def part(self, total: int) -> int:
        """How many samples of a global batch this rank holds."""
        return len(range(self.rank, total, self.world_size))


class ResidentBatches:
    """The whole set as one uint8 tensor on the device; a batch is a gather."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        tables: EpochTables,
        preparation: Preparation,
        *,
        batch_size: int,
        mixup: Mixup | None = None,
    ) -> None:
        self.images, self.labels = images, labels
        self.tables, self.preparation, self.mixup = tables, preparation, mixup
        self.batch_size = batch_size
        self._steps = torch.arange(batch_size, device=images.device)

    def begin(self, epoch: int) -> None:
        """Lay out an epoch."""
        self.tables.begin(epoch)
        if self.mixup is not None:
            self.mixup.begin(epoch)

    def take(self, total: int) -> TrainingBatch:
        """This rank's part of the next global batch; only tensor operations, so it can be captured."""
        tables = self.tables
        size = tables.part(total)
        positions = tables.cursor + self._steps[:size]
        indices = tables.order[positions]
        images = self.preparation(self.images[indices], tables.offsets[positions], tables.flips[positions])
        targets, mixed = self.labels[indices], None
        if self.mixup is not None:
            images, mixed = self.mixup(images, targets, tables.cursor // self.batch_size)
        tables.cursor += size
        return TrainingBatch(images, targets, indices, total, mixed)

    def batches(self) -> Iterator[TrainingBatch]:
        """The epoch's batches."""
        for total in self.tables.totals():
            yield self.take(total)


class _EpochOrder(Sampler[int]):
    """The epoch's samples as the tables have them, for a loader that lives through all epochs."""

    def __init__(self, tables: EpochTables) -> None:
        self.tables = tables

    def __len__(self) -> int:
        return self.tables.length

    def __iter__(self) -> Iterator[int]:
        return iter(self.tables.order[: self.tables.length].tolist())


class LoaderBatches:
    """Any map-style `Dataset` of `(image, target)` through a `DataLoader`; a sample that rests is not read.

    uint8 images are augmented and normalised on the device like resident ones; float images are the user's own
    finished input and pass through. While a run trains on smaller images, pictures of a stream that are resized anyway
    are decoded at that size.
    """

    def __init__(
        self,
        dataset: TorchDataset[Any],
        tables: EpochTables,
        preparation: Preparation,
        *,
        batch_size: int,
        workers: int,
        device: torch.device,
        mixup: Mixup | None = None,
    ) -> None:
        self.tables, self.preparation, self.device, self.mixup = tables, preparation, device, mixup
        self._dataset, self._full_side = dataset, 0
        if isinstance(dataset, StreamedImages):
            self._full_side = dataset.form.size or 0
        self._no_images: Tensor | None = None
        self._set_epoch: Callable[[int], None] | None = getattr(dataset, "set_epoch", None)
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "workers": workers,
            "order": _EpochOrder(tables),
            "pin": device.type == "cuda",
            "persistent": True,
        }
        self.reader = BatchReader(dataset, **self._options)

    def begin(self, epoch: int) -> None:
        """Lay out an epoch; a dataset with random items gets its number."""
        self.tables.begin(epoch)
        if self._full_side:
            self._decode_at(min(self.preparation.size or (self._full_side,)))
        if self.mixup is not None:
            self.mixup.begin(epoch)
        if self._set_epoch is not None:
            self._set_epoch(epoch)

    def batches(self) -> Iterator[TrainingBatch]:
        """The epoch's batches."""
        start, reader = 0, iter(self.reader)
        for step, total in enumerate(self.tables.totals()):
            size = self.tables.part(total)
            read = next(reader) if size else self._nothing()
            self._no_images = read.images[:0]
            offsets, flips = (table[start : start + size] for table in (self.tables.offsets, self.tables.flips))
            start += size
            moved, labels, rows = (part.to(self.device, non_blocking=True) for part in read)
            prepared, mixed = self.preparation(moved, offsets, flips), None
            if self.mixup is not None:
                prepared, mixed = self.mixup(prepared, labels, step)
            yield TrainingBatch(prepared, labels, rows, total, mixed)

    def _decode_at(self, side: int) -> None:
        """Read pictures of this side from now on. Processes that read have a copy of the old dataset: they end."""
        dataset = self._dataset
        if isinstance(dataset, StreamedImages) and dataset.form.size != side:
            self._dataset = dataset.at_side(side)
            self._no_images = None
            self.reader.close()
            self.reader = BatchReader(self._dataset, **self._options)

    def _nothing(self) -> Read:
        """The empty part of a batch with fewer samples than there are processes."""
        none = torch.empty(0, dtype=torch.int64)
        if self._no_images is None:
            self._no_images = self._dataset[0][0][None][:0]
        return Read(self._no_images, none, none)


def balanced_draw(order: Tensor, targets: Tensor, seed: int) -> Tensor:
    """As many of these samples, drawn again so that each class that is among them is equally likely at every place.

    >>> targets = torch.tensor([0] * 99 + [1])
    >>> drawn = balanced_draw(torch.arange(100), targets, seed=0)
    >>> len(drawn), 30 < int((targets[drawn] == 1).sum()) < 70
    (100, True)
    """
    here = order.cpu()
    labels = targets[here]
    chances = 1.0 / torch.bincount(labels).double()[labels]
    generator = torch.Generator().manual_seed(seed)
    return here[torch.multinomial(chances, len(here), replacement=True, generator=generator)].to(order.device)
