"""OrderDP and Selective against plain loops from their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.pruning import ConfidencePruner, OrderDP, Selective
from calibrant.pruning.policies import scaled_to, systematic
from calibrant.pruning.sampling import DRAW, generator_for

N, CLASSES = 61, 3
LABELS = np.random.default_rng(1).permutation(np.arange(N) % CLASSES)


def logits_of(seed, epoch):
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return 3 * torch.randn(N, CLASSES, generator=generator)


def observe(pruner, seed):
    """An epoch; returns the losses of the samples that trained, by index, as the table holds them."""
    logits = logits_of(seed, pruner.epoch)
    trained = pruner.kept.tolist()
    pruner.observe(pruner.order(), logits[pruner.order()])
    expected = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(LABELS), reduction="none")
    column = pruner.table.column("loss")
    np.testing.assert_allclose(column[trained], expected[trained].numpy(), rtol=1e-4, atol=1e-6)
    return trained, {i: float(column[i]) for i in trained}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 500), st.sampled_from([(0.8, 0.75), (1, 0.5), (0.5, 0.6)]))
def test_orderdp_is_its_definition(seed, shares):
    """Jin et al. 2026: a uniform pool of s samples, then the q of them with the largest scores; lazy refresh."""
    pool_share, top_share = shares
    pruner = ConfidencePruner(LABELS, policy=OrderDP(pool_share, top_share), seed=seed)
    score = [3.0] * N
    for epoch in range(4):
        _, losses = observe(pruner, seed)
        pruner.step()
        for i, loss in losses.items():
            score[i] = loss
        s = int(pool_share * N)
        pool = torch.randperm(N, generator=generator_for(seed, epoch, DRAW)).tolist()[:s]
        q = int(top_share * s)
        best = sorted(pool, key=lambda i: (-score[i], i))[:q]
        assert pruner.kept.tolist() == sorted(best)
        assert pruner.weights(pruner.kept).eq(1).all()
    assert pruner.kept_by_epoch == [N, q, q, q]


def chances(sizes, power, total):
    """min(1, c size**power) with the sum `total`, by halving an interval for c."""
    low, high = 0.0, 1e40
    for _ in range(300):
        middle = (low + high) / 2
        if sum(min(1.0, middle * size**power) for size in sizes) < total:
            low = middle
        else:
            high = middle
    return [min(1.0, high * size**power) for size in sizes]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(1, 24)), st.sampled_from([0.5, 1.0, 3.0, 20.0]), st.integers(1, 23))
def test_the_chances_of_selective_are_its_definition(ranks, power, total):
    found = scaled_to((np.array(ranks) / len(ranks)) ** power, total)
    np.testing.assert_allclose(found, chances([k / len(ranks) for k in ranks], power, total), rtol=1e-9)


def test_each_is_drawn_as_often_as_its_chance_says():
    chance = scaled_to((np.arange(1, 13) / 12) ** 2.0, 5)
    generator = torch.Generator().manual_seed(0)
    draws = np.array([systematic(chance, 5, generator) for _ in range(4000)])
    assert (draws.sum(1) == 5).all()
    # Five standard errors of 4,000 draws.
    np.testing.assert_allclose(draws.mean(0), chance, atol=5 * 0.5 / 4000**0.5)
    assert draws[:, chance == 1].all()


@pytest.mark.parametrize("by", ["rank", "error"])
def test_selective_is_its_definition(by):
    """Drawn as often as the plain loop says, and always as many as stated, with weight 1."""
    policy = Selective(0.4, 3.0, by=by)
    first = ConfidencePruner(LABELS, policy=policy, seed=5)
    _, losses = observe(first, 5)
    in_order = sorted(range(N), key=lambda i: (losses[i], i))
    size = {i: (k / N if by == "rank" else 1 - math.exp(-losses[i])) for k, i in enumerate(in_order, start=1)}
    expected = chances([size[i] for i in range(N)], 3.0, N - int(0.4 * N))
    times = np.zeros(N)
    for seed in range(400):
        pruner = ConfidencePruner(LABELS, policy=policy, seed=seed)
        pruner.observe(torch.arange(N), logits_of(5, 0))
        pruner.step()
        assert len(pruner.kept) == N - int(0.4 * N)
        assert pruner.weights(pruner.kept).eq(1).all()
        times[pruner.kept] += 1
    # Five standard errors of 400 draws.
    np.testing.assert_allclose(times / 400, expected, atol=5 * 0.5 / 400**0.5)


# With a budget of 0.9, OrderDP must draw a larger pool than 0.8.
@pytest.mark.parametrize(("policy", "percent"), [(Selective(power=2.0), 55), (OrderDP(0.8), 55), (OrderDP(0.8), 90)])
def test_a_budget_is_met_to_the_sample(policy, percent):
    pruner = ConfidencePruner(LABELS, policy=policy, epochs=7, budget=percent / 100)
    for _ in range(7):
        observe(pruner, 3)
        pruner.step()
    assert sum(pruner.kept_by_epoch) == percent * 7 * N // 100


def test_steps_are_not_known_ahead():
    with pytest.raises(InvalidInput, match="to know the steps ahead"):
        ConfidencePruner(LABELS, policy=OrderDP()).total_steps(5, batch_size=8)


@pytest.mark.parametrize("policy", [OrderDP(0.5, 0.2), Selective(0.7, 4.0)])
def test_the_class_floor_holds(policy):
    pruner = ConfidencePruner(LABELS, policy=policy, minimum_per_class=17, batch_size=8)
    for _ in range(4):
        observe(pruner, 2)
        pruner.step()
        assert np.bincount(LABELS[pruner.kept]).min() >= 17


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: OrderDP(0), lambda: OrderDP(1.1), lambda: OrderDP(0.5, 1)),
        *(lambda: Selective(0), lambda: Selective(1), lambda: Selective(0.5, 0), lambda: Selective(0.5, float("nan"))),
        lambda: Selective(0.5, by="loss"),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        make()
