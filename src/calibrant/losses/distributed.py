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
    return _kept(total)


def _kept(filled: Tensor) -> Tensor:
    """What a collective has filled in place; a copy under the compiler: that of torch 2.11 would lose its gradient."""
    if torch.compiler.is_compiling():
        return filled.clone()
    return filled


def _sum_of_gradients(gradient: Tensor) -> Tensor:
    """Sum a gradient over all ranks; differentiable if the caller asked for second derivatives.

    With `create_graph=True` autograd records the backward pass, so the sum must be an autograd function there too.
    """
    # The compiler never takes second derivatives, and it cannot trace an autograd function inside its own backward.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return global_sum(gradient)
    return _all_reduced(gradient)


class _GlobalSum(torch.autograd.Function):
    """Sum over ranks, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:  # noqa: ARG004 (the signature is autograd's)
        return _all_reduced(local)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004 (as above)
        return _sum_of_gradients(gradients[0])


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


class _GlobalRows(torch.autograd.Function):
    """Forwards: the rows of all ranks. Backwards: the gradient of this rank's rows, summed over all ranks."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor) -> Tensor:
        ctx.rows = padded.shape[0]
        gathered = padded.new_empty((world_size() * ctx.rows, *padded.shape[1:]))
        dist.all_gather_into_tensor(gathered, padded.contiguous())
        return _kept(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _sum_of_gradients(gradients[0]).narrow(0, rank() * ctx.rows, ctx.rows)


def global_rows(local: Tensor) -> Tensor:
    """Join the rows of all ranks in the order of ranks; differentiable; the identity without a process group.

    Ranks may hold different numbers of rows: each is padded with zeros to the largest, on which they agree first (the
    host waits for that). A column of ones tells real rows from padding. Gradients follow the convention of
    `global_sum`.
    """
    if not is_distributed():
        return local
    most = torch.tensor(local.shape[0], device=local.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    padding = local.new_zeros((int(most) - local.shape[0], *local.shape[1:]))
    result: Tensor = _GlobalRows.apply(torch.cat((local, padding)))  # type: ignore[no-untyped-call]  # torch's
    return result
