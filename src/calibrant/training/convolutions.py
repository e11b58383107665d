"""How cuDNN meets the sizes of batches: timed kernels for the one that comes at every step, no new plans for others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def convolutions(size: int, full_size: int, device: torch.device) -> AbstractContextManager[object]:
    """The way in which convolutions of a batch of `size` samples run where most batches have `full_size`."""
    return _measured() if size == full_size else padded(full_size, device)


def padded(full_size: int, device: torch.device) -> AbstractContextManager[object]:
    """On a GPU, `PaddedConvolutions`; elsewhere sizes cost nothing."""
    return PaddedConvolutions(full_size) if device.type == "cuda" else nullcontext()


@contextmanager
def _measured() -> Iterator[None]:
    """On a GPU, let cuDNN time its algorithms once for every new shape and take the fastest.

    Its own guess is poor for few channels: on an H200, ResNet-32 trained 19 % faster this way, six runs at once
    (results/benchmarks/together-h200.txt). The measuring takes seconds, so it pays for the shapes that come again at
    every step, not for a last partial batch.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class PaddedConvolutions(TorchFunctionMode):
    """Convolve small batches with rows of zeros up to `size`, and leave these rows out of what follows.

    A row of zeros adds nothing to the gradient of a kernel, so the step is the same up to rounding. What it saves: for
    every number of rows that it has not met, cuDNN plans every layer anew. With ResNet-32 on an H200 that took .1 s,
    and 1.2 s for a batch of two, where an epoch takes 1 s; and a plan that lets samples rest can end every epoch with a
    batch of another size.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pad where `func` is a convolution of fewer rows than `size`."""
        kwargs = kwargs or {}
        if func not in _CONVOLUTIONS or len(args) < 2 or args[0].ndim != args[1].ndim or len(args[0]) >= self.size:
            return func(*args, **kwargs)
        rows: Tensor = args[0]
        padded = functional.pad(rows, (0, 0) * (rows.ndim - 1) + (0, self.size - len(rows)))
        return func(padded, *args[1:], **kwargs)[: len(rows)]
