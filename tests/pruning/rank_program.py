"""One rank of a gloo group; run by test_ranks_integration.py. Writes what it saw as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import CalibrantError
from calibrant.pruning import (
    ConfidencePruner,
    Every,
    Indexed,
    InfoBatch,
    LowestConfidence,
    OrderDP,
    Selective,
    Unbiased,
)

EPOCHS, BATCH = 6, 4
PLANS = {
    "nothing": {},
    "lowest": {"policy": LowestConfidence(0.2), "schedule": Every(1, start=2)},
    "batch": {"policy": LowestConfidence(0.4, within="batch"), "schedule": Every(2)},
    "resting": {"policy": LowestConfidence(0.3, readmit=True), "schedule": Every(1, start=2)},
    "unbiased": {"policy": Unbiased(0.6, 0.5), "anneal": 1, "epochs": EPOCHS},
    "infobatch": {"policy": InfoBatch(0.5), "anneal": 1, "epochs": EPOCHS},
    "infobatch budget": {"policy": InfoBatch(), "budget": 0.7, "epochs": EPOCHS},
    "orderdp": {"policy": OrderDP(0.8, 0.6)},
    "selective": {"policy": Selective(0.4)},
}
SIZES = [57, 61, 64]


def labels_of(n):
    return np.random.default_rng(n).permutation(np.arange(n) % 3)


def make(n, plan, batch_size):
    return ConfidencePruner(labels_of(n), seed=8, batch_size=batch_size, **PLANS[plan])


def train(pruner, batch_size):
    """What the model says depends on the sample and the epoch alone, so one process and many must agree exactly."""
    n = pruner.samples
    loader = DataLoader(Indexed(TensorDataset(torch.arange(n))), batch_size=batch_size, sampler=pruner.sampler())
    record = []
    for epoch in range(EPOCHS):
        logits = torch.randn(n, 3, generator=torch.Generator().manual_seed(100 + epoch))
        kept = pruner.kept.tolist()
        batches = []
        for _, indices in loader:
            pruner.observe(indices, logits[indices])
            batches.append(indices.tolist())
        pruner.step(score=lambda indices, logits=logits: [(indices, logits[indices])])
        rows = pruner.table.rows.tolist()
        weights = pruner.weights(torch.arange(n)).tolist()
        record.append({"kept": kept, "batches": batches, "rows": rows, "weights": weights})
    return record


def failure(act):
    try:
        act()
    except CalibrantError as error:
        return str(error)
    return None


def disagreements(rank):
    """Each of these goes wrong on one rank only; every rank must hear of it."""

    def tampered():
        pruner = make(57, "nothing", BATCH)
        if rank == 1:
            pruner.kept_mask[3] = False
        pruner.step()

    def other_seed():
        ConfidencePruner(labels_of(57), seed=rank).step()

    return {act.__name__: failure(act) for act in (tampered, other_seed)}


def main(rank, world_size, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    seen = {}
    for n in SIZES:
        for plan in PLANS:
            seen[f"{plan} {n}"] = train(make(n, plan, BATCH), BATCH)
    seen["disagreements"] = disagreements(rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
