"""Layers under training: batch normalisation over all processes, and convolutions of batches of several sizes.

torch's own `SyncBatchNorm` runs on GPUs only. With `GlobalBatchNorm2d` a run over several CPU processes equals the run
of one process with the same global batch, shards of unequal size included; on a GPU the engine takes torch's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from calibrant.losses.distributed import global_sum


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose training statistics are those of the global batch."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is torch's)
        """Normalise `(N, C, H, W)` by the mean and variance over N, H, W of every rank."""
        if not self.training:
            return super().forward(input)
        local = input.new_full((1,), input.numel() / input.shape[1])
        count = global_sum(local)
        mean = global_sum(input.sum((0, 2, 3))) / count
        centred = input - mean.view(1, -1, 1, 1)
        variance = global_sum(centred.square().sum((0, 2, 3))) / count
        self._track(mean, variance * count / (count - 1).clamp(min=1))
        result = centred * torch.rsqrt(variance + self.eps).view(1, -1, 1, 1)
        if self.affine:
            result = result * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return result

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Replace each batch normalisation by one over the global batch, keeping parameters and buffers."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's
        return converted
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            # Same attributes, another forward: nothing has to be copied, and names in the state stay the same.
            module.__class__ = GlobalBatchNorm2d
    return model


@torch.no_grad()
def measure_statistics(network: nn.Module, images: Iterable[Tensor]) -> None:
    """Take the running statistics anew, as plain means over these batches, save in parts that rest.

    A network in training whose frozen parts are in evaluation mode is measured as it is.
    """
    before = network.training
    if not before:
        network.train()
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # a plain mean
    if norms:
        for batch in images:
            network(batch)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    if not before:
        network.eval()


_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def convolutions(size: int, full_size: int, device: torch.device) -> AbstractContextManager[object]:
    """How to run the convolutions of a batch of `size` samples if most batches have `full_size`."""
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
        """Pad if `func` is a convolution of fewer rows than `size`."""
        kwargs = kwargs or {}
        if func not in _CONVOLUTIONS or len(args) < 2 or args[0].ndim != args[1].ndim or len(args[0]) >= self.size:
            return func(*args, **kwargs)
        rows: Tensor = args[0]
        padded = functional.pad(rows, (0, 0) * (rows.ndim - 1) + (0, self.size - len(rows)))
        return func(padded, *args[1:], **kwargs)[: len(rows)]
