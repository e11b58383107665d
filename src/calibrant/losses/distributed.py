"""Everything that this package needs from `torch.distributed`."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def is_distributed() -> bool:
    """Whether a default process group with more than one rank exists."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    if not is_distributed():
        return 1
    return dist.get_world_size()


def rank() -> int:
    """This process's rank; 0 without a process group."""
    if not is_distributed():
        return 0
    return dist.get_rank()


def _all_reduced(local: Tensor) -> Tensor:
    total = local.detach().contiguous().clone()
    dist.all_reduce(total)
    if torch.compiler.is_compiling():
        return total.clone()  # the compiler of torch 2.11 would lose the gradient of what a collective fills in place
    return total


class _GlobalSum(torch.autograd.Function):
    """Sum over ranks, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:  # noqa: ARG004 (the signature is autograd's)
        return _all_reduced(local)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004 (as above)
        # With `create_graph=True` autograd records the backward pass, so the sum must have a gradient there too. The
        # compiler never takes second derivatives, and it cannot trace an autograd function inside its own backward.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return global_sum(gradients[0])
        return _all_reduced(gradients[0])


def global_sum(local: Tensor) -> Tensor:
    """Sum a tensor over all ranks; differentiable; the identity without a process group.

    The backward pass sums the ranks' gradients too. A loss that is a function of such sums has the same value on
    every rank, and after DistributedDataParallel's averaging the parameters receive exactly the gradient that one
    process with the whole batch would compute.
    """
    if not is_distributed():
        return local
    result: Tensor = _GlobalSum.apply(local)  # type: ignore[no-untyped-call]  # torch's
    return result


def global_rows(local: Tensor) -> Tensor:
    """Join the rows `[B, columns]` of all ranks, in their order; differentiable; the identity without a process group.

    Ranks may hold different numbers of rows: each is padded with zeros to the largest, on which they agree first (the
    host waits for that). A column of ones tells real rows from padding. Gradients follow the convention of
    `global_sum`.
    """
    if not is_distributed():
        return local
    most = torch.tensor(local.shape[0], device=local.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    # Every rank's rows have a place of their own, to which all other ranks add zeros.
    before = rank() * int(most)
    after = (world_size() - rank()) * int(most) - local.shape[0]
    return global_sum(torch.nn.functional.pad(local, (0, 0, before, after)))
