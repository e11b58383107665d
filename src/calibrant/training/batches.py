"""Batches of a run: a set that lives on the device, or any `Dataset` through a `DataLoader`, in the epoch's order.

Both sources number the samples of an epoch by their position in the epoch's global order, and draw the augmentation of
a position from the seed and the epoch alone. So both, and any number of processes, train on the same pixels.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from calibrant.errors import CalibrantError, InvalidInput, invalid
from calibrant.losses import distributed
from calibrant.pruning import ConfidencePruner, Indexed
from calibrant.training.data import Augmentation, StreamedImages, augment, draw_augmentation, normalise
from calibrant.training.data.dataset import Size, resized
from calibrant.training.launch import ProcessLost, lost_message
from calibrant.training.reproducibility import derive_seed

# More decode no faster than a GPU trains on pictures of the usual size, and each takes memory.
_MOST_WORKERS = 16


@dataclass(frozen=True)
class TrainingBatch:
    """What a step trains on: images ready for the network, targets, and indices into the training set."""

    images: Tensor
    targets: Tensor
    indices: Tensor


class Preparation:
    """uint8 images in, network input out: crop, mirror, normalise, all in batch on the device.

    `full_size` is that of the data set's images; images that come in smaller get smaller crops. `size` is the present
    size of training images; None leaves them as they are.
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


class EpochTables:
    """The order of an epoch and its augmentation, as device tensors whose addresses never change.

    A captured step reads its samples at a cursor that it moves itself, so a replay needs nothing from the host, and
    pruning changes only what these tables say and how often the graph is replayed. Ranks take turns within each global
    batch of `batch_size`, so a batch holds the same samples for any number of ranks. `balanced` are the targets of all
    samples, if each class is to be drawn as often as any other.
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
        self.pruner, self.augmentation, self.balanced = pruner, augmentation, balanced
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
            # Each sample has a random first side and changes it every epoch.
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "mirror"))
            first_sides = torch.randint(0, 2, (self.capacity,), generator=generator)
            flips = ((first_sides + epoch) % 2 == 1)[order[mine].cpu()]
        self.offsets[: self.length].copy_(offsets[mine])
        self.flips[: self.length].copy_(flips)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        """The epoch's samples of this rank, for a loader that lives through all epochs."""
        return iter(self.order[: self.length].tolist())

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


class Batches:
    """The batches of an epoch, cropped, mirrored and normalised on the device.

    `items` are any map-style dataset of `(image, label)`, read through a `DataLoader`; a sample that rests is not read.
    Images that are not uint8 are the user's own finished input and pass through. If `resident`, `items` are `Images`
    on the device and a batch is a gather: only tensor operations, so it can be captured.
    """

    def __init__(
        self,
        items: TorchDataset[Any],
        tables: EpochTables,
        preparation: Preparation,
        *,
        batch_size: int,
        workers: int = 0,
        resident: bool = False,
    ) -> None:
        self.items, self.tables, self.preparation = items, tables, preparation
        self.batch_size, self.workers, self.resident = batch_size, workers, resident
        self.device = tables.order.device
        self._steps = torch.arange(batch_size, device=self.device)
        if not resident:
            self._read_from(items)

    def begin(self, epoch: int) -> None:
        """Lay out an epoch; a dataset with random items gets its number."""
        self.tables.begin(epoch)
        if self.resident:
            return
        if isinstance(self.items, StreamedImages) and self.items.decoder.size is not None:
            self._decode_at(min(self.preparation.size or (self.items.decoder.size,)))
        if hasattr(self.items, "set_epoch"):
            self.items.set_epoch(epoch)
        self._coming = iter(self._reader)

    def take(self, total: int) -> TrainingBatch:
        """This rank's part of the next global batch of `total` samples; of a small last one some ranks hold none."""
        tables = self.tables
        size = tables.part(total)
        positions = tables.cursor + self._steps[:size]
        if self.resident:
            indices = tables.order[positions]
            images, labels = self.items[indices]
        else:
            images, labels, indices = self._next(size)
        images = self.preparation(images, tables.offsets[positions], tables.flips[positions])
        tables.cursor += size
        return TrainingBatch(images, labels, indices)

    def batches(self) -> Iterator[TrainingBatch]:
        """The epoch's batches."""
        return map(self.take, self.tables.totals())

    def stored(self, indices: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices and images of these samples in batches, as they are stored."""
        if self.resident:
            for rows in torch.split(indices.to(self.device), batch_size):
                yield rows, self.items[rows][0]
            return
        reader = BatchReader(self.items, batch_size=batch_size, workers=self.workers, order=indices.tolist())
        for images, _, rows in reader:
            yield rows, images

    def _next(self, size: int) -> tuple[Tensor, ...]:
        if size:
            batch = next(self._coming)
        else:  # of a small last batch some processes hold nothing, in the shape of their images
            none = torch.empty(0, dtype=torch.int64)
            batch = self._items_read[0][0][None][:0], none, none
        return tuple(part.to(self.device, non_blocking=True) for part in batch)

    def _decode_at(self, side: int) -> None:
        """Read pictures of this side from now on. Processes that read have a copy of the old dataset: they end."""
        if isinstance(self._items_read, StreamedImages) and self._items_read.decoder.size != side:
            self._read_from(self._items_read.at_side(side))

    def _read_from(self, items: TorchDataset[Any]) -> None:
        self._items_read = items
        self._reader = BatchReader(
            items,
            batch_size=self.batch_size,
            workers=self.workers,
            order=self.tables,
            pin=self.device.type == "cuda",
            persistent=True,
        )


def balanced_draw(order: Tensor, targets: Tensor, seed: int) -> Tensor:
    """As many of these samples, drawn again so that each class that is among them is equally likely at every place.

    >>> targets = torch.tensor([0] * 99 + [1])
    >>> drawn = balanced_draw(torch.arange(100), targets, seed=0)
    >>> len(drawn), 30 < int((targets[drawn] == 1).sum()) < 70
    (100, True)
    """
    here = order.cpu()
    labels = targets.cpu()[here]
    chances = 1.0 / torch.bincount(labels).double()[labels]
    generator = torch.Generator().manual_seed(seed)
    return here[torch.multinomial(chances, len(here), replacement=True, generator=generator)].to(order.device)


# reading any dataset --------------------------------------------------------------------------------------------------


class BatchReader:
    """Reads a map-style dataset of `(image, label)` items in batches: images, labels, indices.

    With 0 `workers` this process reads, or, if pictures are decoded, one process per core. `order` holds the indices to
    read, and is read anew at each pass; None reads all. `persistent` workers stay between passes.
    """

    def __init__(
        self,
        items: TorchDataset[Any],
        *,
        batch_size: int,
        workers: int,
        order: Iterable[int] | None = None,
        pin: bool = False,
        persistent: bool = False,
    ) -> None:
        if isinstance(items, StreamedImages):
            workers = workers or default_workers()
        self.loader: DataLoader[Any] = DataLoader(
            Indexed(items),
            batch_size=batch_size,
            sampler=order,
            num_workers=workers,
            worker_init_fn=_ignore_interrupts,
            persistent_workers=persistent and workers > 0,
            pin_memory=pin,
            # Without this the loader draws its workers' base seed from the global generator.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        batches = iter(self.loader)
        try:
            while (batch := next(batches, None)) is not None:
                yield tuple(batch)
        except Exception as error:
            # Otherwise the processes that read would live as long as the traceback is kept.
            if isinstance(batches, _MultiProcessingDataLoaderIter):
                batches._shutdown_workers()  # noqa: SLF001  # torch has no other way
                self.loader._iterator = None  # noqa: SLF001  # if workers stay from epoch to epoch
            # A data set's own images may differ in shape, which only joining them shows.
            _, differ, shapes = str(error).partition("stack expects each tensor to be equal size, but got ")
            if differ:
                hint = "Resize them in the data set."
                raise invalid("images", "have one shape", shapes.splitlines()[0], hint) from None
            if isinstance(error, InvalidInput):
                # torch puts the traceback of a process that reads in front of the message.
                message = str(error).rpartition(f"{type(error).__name__}: ")[2]
                raise type(error)(message.strip()) from None
            raise


def default_workers() -> int:
    """One process per core that this process may use, fewer if several processes of a run share a machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_WORKERS, cores // distributed.world_size()))


def lost_worker(error: BaseException, path: Path) -> CalibrantError | None:
    """The error to raise if torch reports that a process that reads images died; None for any other error.

    torch raises from a signal handler, wherever the main thread is, so the text is all there is to go by.
    """
    if not isinstance(error, RuntimeError) or not str(error).startswith("DataLoader worker"):
        return None
    # torch's handler would raise again, anywhere, for every other worker that ends while these are cleaned up. Loaders
    # that are made later in this process still find out within five seconds.
    if hasattr(signal, "SIGCHLD"):
        with suppress(ValueError):  # another thread than the main one, where no handler is called
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return ProcessLost(lost_message("a process that reads images (killed, or out of memory)", path))


def _ignore_interrupts(_: int) -> None:
    """Leave Ctrl-C to the first process, which ends the workers; each of them would show a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
