"""Items of a dataset through a `DataLoader`: one reader for training, scoring and held-out parts."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from calibrant.errors import CalibrantError, invalid
from calibrant.pruning import Indexed
from calibrant.training.data import StreamedImages
from calibrant.training.data.pictures import Unreadable
from calibrant.training.launch import ProcessLost, lost_message

# More decode no faster than a GPU trains on pictures of the usual size, and each takes memory.
_MOST_WORKERS = 16


class Read(NamedTuple):
    """A batch."""

    images: Tensor
    targets: Tensor
    indices: Tensor


class BatchReader:
    """Reads a dataset of `(image, target)` items in batches, with their indices.

    Args:
        items: A map-style dataset.
        batch_size: Items per batch.
        workers: Processes that read; 0 reads in this process, or, if pictures are decoded, with one process per core.
        order: Indices to read; read anew at each pass. None for all, in order.
        pin: Whether to put batches into pinned memory.
        persistent: Whether workers stay between passes.
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
        self._streamed = isinstance(items, StreamedImages)
        source: TorchDataset[Any] = Indexed(items)
        collate = None
        if self._streamed:
            source, collate = items, _as_it_is
            workers = workers or default_workers()
        self.loader: DataLoader[Any] = DataLoader(
            source,
            batch_size=batch_size,
            sampler=order,
            num_workers=workers,
            collate_fn=collate,
            worker_init_fn=_ignore_interrupts,
            persistent_workers=persistent and workers > 0,
            pin_memory=pin,
            # Without this the loader draws its workers' base seed from the global generator.
            generator=torch.Generator(),
        )

    def close(self) -> None:
        """End the processes that read, if they stay between passes."""
        _end_workers(self.loader, self.loader._iterator)  # noqa: SLF001  # torch has no other way

    def __iter__(self) -> Iterator[Read]:
        with _batches(self.loader) as batches:
            while (batch := _next(batches)) is not None:
                if self._streamed and batch.fault:
                    raise Unreadable(batch.fault)
                yield Read(*batch[:3])


def default_workers() -> int:
    """One process per core that this process may use, fewer if several processes of a run share a machine."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(_MOST_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


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


@contextmanager
def _batches(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """The loader's batches. An error ends the processes that read; else they live as long as its traceback is kept."""
    batches = iter(loader)
    try:
        yield batches
    except Exception:
        _end_workers(loader, batches)
        raise


def _end_workers(loader: DataLoader[Any], batches: object) -> None:
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        batches._shutdown_workers()  # noqa: SLF001  # torch has no other way
        loader._iterator = None  # noqa: SLF001  # if workers stay from epoch to epoch


def _next(batches: Iterator[Any]) -> Any:
    """The next batch, None at the end. A data set's own images may differ in shape, which only joining them shows."""
    try:
        return next(batches, None)
    except RuntimeError as error:
        _, differ, shapes = str(error).partition("stack expects each tensor to be equal size, but got ")
        if not differ:
            raise
        raise invalid("images", "have one shape", shapes.splitlines()[0], "Resize them in the data set.") from None


def _as_it_is(batch: Any) -> Any:
    return batch


def _ignore_interrupts(_: int) -> None:
    """Leave Ctrl-C to the first process, which ends the workers; each of them would show a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
