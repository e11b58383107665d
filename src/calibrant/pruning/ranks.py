"""What the ranks of a distributed training tell each other, once per epoch."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from calibrant.errors import CalibrantError


@torch.no_grad()
def merge_rows_(rows: Tensor, updated: Tensor, rank: int) -> None:
    """Give all ranks the rows that any rank updated; exact.

    A row is taken whole from the lowest rank that updated it (with the pruner's own order only one rank did, padding
    apart: a repeated sample was first met on a lower rank). All others add zeros to a sum, and `x + 0` is `x`.

    Args:
        rows: Shape (n, columns); overwritten.
        updated: Shape (n,), bool: the rows that this rank updated.
        rank: This process's rank.
    """
    away = _collective_device(rows.device)
    no_rank = torch.iinfo(torch.int32).max
    owner = torch.where(updated, rank, no_rank).to(away, torch.int32)
    dist.all_reduce(owner, op=dist.ReduceOp.MIN)
    owner = owner.to(rows.device).unsqueeze(1)
    theirs = torch.where(owner == rank, rows, 0).to(away)
    dist.all_reduce(theirs)
    rows.copy_(torch.where(owner == no_rank, rows, theirs.to(rows.device)))


def mean_over_ranks(value: float, device: torch.device) -> float:
    """Mean of a number over all ranks, in float64: the same on each."""
    total = torch.tensor(value, dtype=torch.float64, device=_collective_device(device))
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def assert_agreement(values: Mapping[str, int], device: torch.device) -> None:
    """Raise, on every rank, where a number is not the same on all ranks."""
    mine = torch.tensor(list(values.values()), dtype=torch.int64, device=_collective_device(device))
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    differs = (torch.stack(rows) != mine).any(0).tolist()
    if any(differs):
        what = "; ".join(name for name, differ in zip(values, differs, strict=True) if differ)
        raise CalibrantError(f"the ranks disagree on: {what}.")


def short_digest(content: bytes | memoryview) -> int:
    """63 bits of a SHA-256, as a number that fits into a tensor."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def _collective_device(device: torch.device) -> torch.device:
    """Where a collective may run: NCCL alone cannot reduce tensors in main memory."""
    if dist.get_backend() == "nccl" and device.type == "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return device
