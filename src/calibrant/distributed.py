"""The little that this package needs to know about `torch.distributed`, in one place."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def is_distributed() -> bool:
    """Whether a default process group with more than one rank exists."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if is_distributed() else 0


class _GlobalSum(torch.autograd.Function):
    """Sum over ranks, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:  # noqa: ARG004 (the signature is autograd's)
        total = local.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def global_sum(local: Tensor) -> Tensor:
    """Sum a tensor over all ranks; differentiable; the identity without a process group.

    The backward pass sums the ranks' gradients too. A loss that is a function of such sums has the same value on
    every rank, and after DistributedDataParallel's averaging the parameters receive exactly the gradient that one
    process with the whole batch would compute.
    """
    if not is_distributed():
        return local
    result: Tensor = _GlobalSum.apply(local)  # type: ignore[no-untyped-call]
    return result
