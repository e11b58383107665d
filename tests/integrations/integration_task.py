"""A small task on real data, in float64, and the plain loop of docs/pruning.md that the adapters are held against."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.losses import Focal, HuberCalibration
from calibrant.pruning import ConfidencePruner, Every, Indexed, InfoBatch, LowestConfidence, Unbiased

SAMPLES, EPOCHS, BATCH, RATE = 203, 6, 16, 0.1
PLANS = {
    # Weights other than 1, and epochs that get shorter and, at the end, longer again.
    "unbiased": {"policy": Unbiased(0.6, 0.5), "epochs": EPOCHS, "anneal": 1},
    "lowest": {"policy": LowestConfidence(0.2), "schedule": Every(1, start=2)},
    # Told the loss of each epoch, and its course depends on it.
    "infobatch": {"policy": InfoBatch(0.4)},
}


def digits():
    """Some handwritten digits: pixels in float64, labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:SAMPLES] / 16), torch.tensor(labels[:SAMPLES])


def criterion():
    return Focal(gamma=1.0) + 2 * HuberCalibration()


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10)).double()


def pruner_for(plan, **options):
    return ConfidencePruner(digits()[1], seed=5, **PLANS[plan], **options)


def plain_loop(plan, *, epochs=EPOCHS, batch=BATCH, accumulate=1, divide=None, limit=None, record=None):
    """Train with nothing but torch; returns the network and the pruner.

    Args:
        divide: The loss of each batch is divided by this; the number of batches that share a step unless told.
        record: Called at the end of each epoch, before the pruner's step.
    """
    model, pruner, loss_of = network(), pruner_for(plan), criterion()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loader = DataLoader(Indexed(TensorDataset(*digits())), batch_size=batch, sampler=pruner.sampler())
    for _ in range(epochs):
        batches = list(loader)[:limit]
        for first in range(0, len(batches), accumulate):
            group = batches[first : first + accumulate]
            optimiser.zero_grad()
            for x, y, i in group:
                logits = model(x)
                loss = loss_of(logits, y, weights=pruner.weights(i))
                (loss / (divide or len(group))).backward()
                pruner.observe(i, logits)
            optimiser.step()
        if record:
            record(pruner)
        pruner.step()
    return model, pruner


def assert_same(model, pruner, reference, reference_pruner):
    """Equal parameters, scores, kept sets and course."""
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-9)
    assert pruner.epoch == reference_pruner.epoch
    assert torch.equal(pruner.kept, reference_pruner.kept)
    torch.testing.assert_close(pruner.table.rows, reference_pruner.table.rows, rtol=0, atol=1e-9)
    assert pruner.kept_by_epoch == reference_pruner.kept_by_epoch
