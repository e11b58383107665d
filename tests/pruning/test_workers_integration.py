"""Data loaders with workers: the same batches whoever fetches them."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from calibrant.pruning import ConfidencePruner, Every, Indexed, LowestConfidence

N, EPOCHS = 60, 3
LABELS = torch.arange(N) % 3
LOADERS = {
    "1 worker": {"num_workers": 1},
    "4 workers": {"num_workers": 4},
    "4 persistent": {"num_workers": 4, "persistent_workers": True},
    "2 spawned, persistent": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
}


def run(drop_last=False, **options):
    """Three epochs of batches and what is kept; what the model says depends on the sample and the epoch alone."""
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.3), schedule=Every(1), seed=9)
    data = Indexed(TensorDataset(10 * torch.arange(N), LABELS))
    loader = DataLoader(data, batch_size=8, sampler=pruner.sampler(), drop_last=drop_last, **options)
    epochs = []
    for epoch in range(EPOCHS):
        logits = torch.randn(N, 3, generator=torch.Generator().manual_seed(epoch))
        batches = []
        for x, y, indices in loader:
            assert torch.equal(x, 10 * indices)
            assert torch.equal(y, LABELS[indices])
            pruner.observe(indices, logits[indices])
            batches.append(indices.tolist())
        assert len(batches) == len(loader)
        pruner.step()
        epochs.append((batches, pruner.kept.tolist()))
    return epochs


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_workers_change_nothing(options):
    assert run(**options) == run()


def test_workers_with_drop_last():
    epochs = run(drop_last=True)
    assert all(len(batch) == 8 for batches, _ in epochs for batch in batches)
    assert run(drop_last=True, num_workers=2) == epochs
