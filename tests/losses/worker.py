"""One rank of the multi-process test: every loss on a shard of the batch, through DistributedDataParallel.

    python worker.py RANK WORLD_SIZE RENDEZVOUS_FILE OUTPUT.npz

Writes the value and the averaged gradient of each loss, for equal and unequal shards.
"""

import sys
from datetime import timedelta

import numpy as np
import torch
from cases import CASES, make_batch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from calibrant.losses.distributed import global_rows, global_sum

N, FEATURES, CLASSES = 24, 6, 4
SHARDS = {2: {"equal": (12, 12), "unequal": (23, 1)}, 3: {"equal": (8, 8, 8), "unequal": (5, 1, 18)}}


def make_problem(dtype):
    """A linear model, its inputs, targets and weights."""
    inputs, _, _ = make_batch(N, FEATURES, seed=1, dtype=dtype)
    _, targets, weights = make_batch(N, CLASSES, seed=2, dtype=dtype)
    model = torch.nn.Linear(FEATURES, CLASSES).to(dtype)
    with torch.no_grad():
        model.weight.copy_(make_batch(CLASSES, FEATURES, seed=3, scale=0.3, dtype=dtype)[0])
        model.bias.zero_()
    return model, inputs, targets, weights


def backward(model, loss, inputs, targets, weights):
    """Value and flat gradient."""
    model.zero_grad()
    value = loss(model(inputs), targets, weights)
    value.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return np.append(gradient.numpy(), float(value.detach()))


def second_derivatives(rank):
    """Of the cube of 1 + 2 + ..., by this rank's number: through the sum over ranks, and through their joined rows."""
    found = []
    for joined in (global_sum, lambda rows: global_rows(rows).sum(0, keepdim=True)):
        mine = torch.tensor([[rank + 1.0]], requires_grad=True)
        (first,) = torch.autograd.grad(joined(mine).pow(3).sum(), mine, create_graph=True)
        found.append(float(torch.autograd.grad(first.sum(), mine)[0]))
    return np.array(found)


def main(rank, world_size, rendezvous, output):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    results = {}
    for dtype in (torch.float32, torch.float64):
        for kind, sizes in SHARDS[world_size].items():
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            model, *batch = make_problem(dtype)
            parallel = DistributedDataParallel(model)
            shard = [tensor[mine] for tensor in batch]
            for name, (loss, _) in CASES.items():
                results[f"{name}/{kind}/{dtype}"] = backward(parallel, loss, *shard)
    # Without MMCE, whose ranks tell each other their batch sizes.
    compiled = torch.compile(CASES["sum_of_gaps"][0], fullgraph=True, backend="aot_eager")
    results[f"sum_of_gaps/{kind}-compiled/{dtype}"] = backward(parallel, compiled, *shard)
    results["second"] = second_derivatives(rank)
    np.savez(output, **{name.replace("/", "|"): value for name, value in results.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
