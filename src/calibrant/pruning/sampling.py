"""In which order the kept samples are visited, by which rank, and how an index travels with its sample."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler

from calibrant.checks import whole
from calibrant.errors import invalid
from calibrant.losses import distributed

if TYPE_CHECKING:
    from calibrant.pruning.pruner import ConfidencePruner


ORDER, DRAW = 0, 1
"""What a generator is for: the order of an epoch, or a policy's draw."""


def generator_for(seed: int, epoch: int, purpose: int) -> torch.Generator:
    """A CPU generator that depends on the three numbers alone; the global one is never touched."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def steps_in(n: int, *, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Number of batches that every rank takes through `n` samples."""
    block = whole("batch_size", batch_size, 1) * whole("world_size", world_size, 1)
    return n // block if drop_last else -(-n // block)


class KeptSampler(Sampler[int]):
    """Yields the indices of the current epoch for this rank; made by `pruner.sampler()`.

    They are positions `rank`, `rank + world_size`, ... of the global order. So the g-th batches of all ranks together
    are the g-th batch of one process with the global batch size. If the last of these has fewer samples than there are
    ranks, the order goes on from its beginning; with `drop_last` it ends before an incomplete one.

    Each iteration is a fresh pass. The length changes only in `pruner.step()`. There is no `set_epoch`: the epoch is
    the pruner's, so a framework's own counter cannot restart it after a resume.
    """

    def __init__(
        self, pruner: "ConfidencePruner", batch_size: int, drop_last: bool, rank: int | None, world_size: int | None
    ) -> None:
        self.pruner = pruner
        self._batches = batch_size, drop_last
        self._place = rank, world_size

    def _positions(self) -> range:
        """Positions of this rank in the global order; asked anew at each pass, as a process group may be made later."""
        (batch_size, drop_last), (rank, world_size) = self._batches, self._place
        if world_size is None:
            world_size = distributed.world_size()
        if rank is None:
            rank = distributed.rank()
        if not 0 <= rank < world_size:
            raise invalid("rank", f"lie in 0..{world_size - 1}", rank)
        length = self.pruner.n_kept
        block = whole("batch_size", batch_size, 1) * whole("world_size", world_size, 1)
        tail = length % block
        if drop_last:
            if tail == length:
                rule = f"fit into the {length} samples kept, with drop_last"
                raise invalid("batch_size", rule, f"{block} over all ranks")
            length -= tail
        elif 0 < tail < world_size:
            length += world_size - tail
        return range(rank, length, world_size)

    def order(self) -> Tensor:
        """All indices of this pass, int64, on the CPU."""
        order = self.pruner.global_order()
        return order[torch.tensor(self._positions(), dtype=torch.int64) % len(order)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order().tolist())

    def __len__(self) -> int:
        return len(self._positions())


class Indexed(Dataset[Any]):
    """Any map-style dataset, with the index of each sample added to it: indices travel in the batch.

    Tuples and lists become `(*item, index)`, dictionaries get one more key, anything else becomes `(item, index)`. It
    goes outermost, as in `Indexed(Subset(...))` and `Indexed(ConcatDataset(...))`: inside it would count others.

    Args:
        dataset: A dataset with `__getitem__` and `__len__`.
        key: The key to add to dictionaries.

    >>> Indexed(["a", "b"])[1]
    ('b', 1)
    >>> Indexed([{"x": 3}])[0]
    {'x': 3, 'index': 0}
    """

    def __init__(self, dataset: Any, *, key: str = "index") -> None:
        streams = isinstance(dataset, IterableDataset)  # which inherits a __getitem__ that only raises
        if streams or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            hint = "A stream has no indices to prune by."
            raise invalid("dataset", "have __getitem__ and __len__", type(dataset).__name__, hint)
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = operator.index(index)  # a list of indices would be taken for the index of one sample
        item = self.dataset[index]
        if index < 0:
            index += len(self)
        return self._with_index(item, index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A whole batch at once, if the wrapped dataset offers that."""
        if len(indices) and max(indices) >= len(self):
            hint = "Make the pruner with one label for each of its samples, in its order."
            raise invalid("index", f"lie in 0..{len(self) - 1} for this dataset", max(indices), hint)
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if callable(fetch) else [self.dataset[index] for index in indices]
        return [self._with_index(item, index) for item, index in zip(items, indices, strict=True)]

    def _with_index(self, item: Any, index: int) -> Any:
        if isinstance(item, Mapping):
            if self.key in item:
                raise invalid("key", "be new to the dataset's dictionaries", repr(self.key), "Choose another key.")
            return {**item, self.key: index}
        if isinstance(item, tuple | list):
            return (*item, index)
        return (item, index)
