"""Static subsets (EL2N, forgetting) against plain loops: scores of the first epochs, one cut, the subset stays."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from calibrant.pruning import ConfidencePruner
from calibrant.training.methods import resolve

N, CLASSES, EPOCHS, START = 47, 3, 8, 3
LABELS = np.random.default_rng(5).permutation(np.arange(N) % CLASSES)


def logits_of(epoch):
    generator = torch.Generator().manual_seed(70 + epoch)
    return 2 * torch.randn(N, CLASSES, generator=generator)


def trained_subset(method, **budget):
    """What each epoch of a stand-in training keeps, and the pruner."""
    pruning = resolve(method, epochs=EPOCHS, start=START, rest=0.4).pruning
    pruner = ConfidencePruner(LABELS, epochs=EPOCHS, seed=1, **pruning.options(), **budget)
    kept = []
    for epoch in range(EPOCHS):
        kept.append(pruner.kept.tolist())
        pruner.observe(pruner.order(), logits_of(epoch)[pruner.order()])
        pruner.step()
    return kept, pruner


def without_lowest(scores, leave_share):
    """Class by class the lowest `floor(share * n_k)` leave; ties by index."""
    out = []
    for k in range(CLASSES):
        mine = sorted((i for i in range(N) if LABELS[i] == k), key=lambda i: (scores[i], i))
        out += mine[: math.floor(leave_share * len(mine))]
    return [i for i in range(N) if i not in out]


def probabilities(epoch, i):
    values = [math.exp(float(z)) for z in logits_of(epoch)[i]]
    return [value / sum(values) for value in values]


def test_el2n_is_its_definition():
    scores = [0.0] * N
    for epoch in range(START):
        for i in range(N):
            p = probabilities(epoch, i)
            norm = math.sqrt(sum((p[k] - (k == LABELS[i])) ** 2 for k in range(CLASSES)))
            scores[i] = 0.3 * norm + 0.7 * scores[i]
    subset = without_lowest(scores, 0.4)
    kept, _ = trained_subset("nll+el2n")
    assert kept == [list(range(N))] * START + [subset] * (EPOCHS - START)


def test_forgetting_is_its_definition():
    scores = []
    for i in range(N):
        right = [max(range(CLASSES), key=probabilities(epoch, i).__getitem__) == LABELS[i] for epoch in range(START)]
        events = sum(before and not after for before, after in pairwise(right))
        confidence = 0.0
        for epoch in range(START):
            confidence = 0.3 * max(probabilities(epoch, i)) + 0.7 * confidence
        scores.append((events if any(right) else math.inf, -confidence))
    subset = without_lowest(scores, 0.4)
    kept, _ = trained_subset("nll+forgetting")
    assert kept == [list(range(N))] * START + [subset] * (EPOCHS - START)


@pytest.mark.parametrize("method", ["nll+el2n", "nll+forgetting"])
def test_a_budget_counts_the_epochs_on_all_data(method):
    kept, pruner = trained_subset(method, budget=0.7)
    resting = N - len(kept[-1])
    allowed = 7 * N * EPOCHS // 10
    # As few leave as the budget needs: one more sample in the subset would be too many.
    assert pruner.report().seen <= allowed < pruner.report().seen + (EPOCHS - START)
    assert resting == -(-(N * EPOCHS - allowed) // (EPOCHS - START))
    assert pruner.samples_by_epoch(EPOCHS) == [len(each) for each in kept]
