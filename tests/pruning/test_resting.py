"""InfoBatch and its relatives against plain loops from their definitions, and the exact counts under a budget."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.pruning import ConfidencePruner, EasyHard, Every, InfoBatch, Unbiased
from calibrant.pruning.sampling import DRAW, generator_for

CLASSES = 3


def logits_of(seed, epoch, n):
    """What a model says depends on sample and epoch alone; some samples are learned better than others."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.randn(n, CLASSES, generator=generator) * torch.linspace(0.2, 6, n)[:, None]


def last_loss(logits, label):
    """-log softmax(logits)[label], in Python floats."""
    values = [float(z) for z in logits]
    top = max(values)
    return math.log(sum(math.exp(z - top) for z in values)) + top - values[label]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.25, 0.5, 0.8]), st.integers(0, 2))
def test_infobatch_is_its_definition(seed, ratio, anneal):
    """Qin et al. 2024: H_i is the last loss; below the mean: pruned with probability r, else weight 1/(1-r)."""
    labels = np.random.default_rng(seed).permutation(np.arange(60) % CLASSES)
    epochs = 6
    pruner = ConfidencePruner(labels, policy=InfoBatch(ratio), seed=seed, epochs=epochs, anneal=anneal)
    score = [3.0] * len(labels)
    for epoch in range(epochs - 1):
        logits = logits_of(seed, epoch, len(labels))
        trained = pruner.kept.tolist()
        pruner.observe(pruner.order(), logits[pruner.order()])
        pruner.step()
        for i in trained:
            score[i] = last_loss(logits[i], labels[i])
        np.testing.assert_allclose(pruner.table.column("loss"), score, rtol=1e-4, atol=1e-6)
        if epoch + 1 >= epochs - anneal:
            assert pruner.n_kept == len(labels)
            assert pruner.weights(pruner.kept).eq(1).all()
            continue
        mean = sum(score) / len(score)
        chance = torch.rand(len(labels), generator=generator_for(seed, epoch, DRAW), dtype=torch.float64).tolist()
        expected = [1.0] * len(labels)
        for i, value in enumerate(score):
            if value < mean:
                expected[i] = 0.0 if chance[i] < ratio else 1 / (1 - ratio)
        np.testing.assert_allclose(pruner.weights(torch.arange(len(labels))).numpy(), expected, rtol=1e-6)
        assert pruner.kept.tolist() == [i for i, weight in enumerate(expected) if weight]


def test_before_the_first_observation_nobody_lies_below_the_mean():
    pruner = ConfidencePruner(np.zeros(4, int), policy=InfoBatch(), n_classes=2)
    assert pruner.table.column("loss").tolist() == [3.0] * 4
    # One sample was seen and learned; the three unseen ones have the loss 3, and the mean lies below it.
    pruner.observe(torch.tensor([0]), torch.tensor([[9.0, 0.0]]))
    pruner.step()
    assert {1, 2, 3} <= set(pruner.kept.tolist())


def test_a_label_with_no_probability_does_not_lift_the_mean_to_infinity():
    pruner = ConfidencePruner(np.zeros(3, int), policy=InfoBatch(), n_classes=2)
    pruner.observe(torch.arange(3), torch.tensor([[-torch.inf, 0.0], [0.0, 0.0], [torch.nan, 0.0]]))
    loss = pruner.table.column("loss")
    assert np.isfinite(loss).all()
    assert loss[2] == 3.0  # a row that is not finite counts not at all


def test_infobatch_expects_the_weight_one_of_every_sample():
    labels = np.zeros(40, int)
    pruner = ConfidencePruner(labels, policy=InfoBatch(0.4), n_classes=2, seed=3)
    pruner.observe(torch.arange(40), torch.stack([torch.linspace(-2, 5, 40), torch.zeros(40)], 1))
    epochs, total = 3000, torch.zeros(40, dtype=torch.float64)
    for _ in range(epochs):
        pruner.step()
        total += pruner.weights(torch.arange(40)).double()
    deviation = (total / epochs - 1) / math.sqrt(0.4 / 0.6 / epochs)
    assert deviation.abs().max() < 4.5
    assert (deviation[:5] == 0).all()  # the largest losses never rest


def train(pruner, epochs, seed=0):
    n = pruner.samples
    for _ in range(epochs):
        logits = logits_of(seed, pruner.epoch, n)
        pruner.observe(pruner.order(), logits[pruner.order()])
        pruner.step()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(5, 12), st.integers(0, 3), st.floats(0.6, 0.99))
def test_a_budget_is_met_exactly_or_what_is_missing_is_reported(seed, epochs, anneal, budget):
    labels = np.arange(90) % CLASSES
    n, last = len(labels), epochs - anneal - 1
    budget = max(budget, 1 - 0.4 * last / epochs)
    options = {"policy": InfoBatch(), "epochs": epochs, "anneal": anneal, "seed": seed}
    pruner = ConfidencePruner(labels, budget=budget, **options)
    train(pruner, epochs, seed)
    missing = sum(pruner.kept_by_epoch) - math.floor(Fraction(budget).limit_denominator(10**6) * n * epochs)
    notes = [note for note in pruner.notes if "budget is not met" in note]
    assert missing >= 0
    assert (missing > 0) == bool(notes)
    assert not any("no sample left" in note for note in pruner.notes)
    assert pruner.kept_by_epoch[0] == n
    assert all(kept == n for kept in pruner.kept_by_epoch[epochs - anneal :])


def test_under_a_budget_the_same_number_rests_each_epoch_and_what_cannot_is_carried_over():
    n, epochs = 100, 6
    pruner = ConfidencePruner(np.zeros(n, int), policy=InfoBatch(), n_classes=2, epochs=epochs, budget=0.75)
    few = torch.zeros(n, 2)
    few[:20, 0] = 8.0  # 20 learned samples: 18 of them may rest
    many = torch.zeros(n, 2)
    many[:80, 0] = 8.0
    for epoch in range(epochs):
        pruner.observe(pruner.order(), (few if epoch == 0 else many)[pruner.order()])
        pruner.step()
    # 150 over five epochs is 30; the first gives 18 of them, so each of the other four lets 12 / 4 = 3 more rest.
    assert [n - kept for kept in pruner.kept_by_epoch] == [0, 18, 33, 33, 33, 33]
    assert sum(pruner.kept_by_epoch) == 450


def test_weights_under_a_budget_add_up_to_the_whole_set():
    n = 50
    pruner = ConfidencePruner(np.zeros(n, int), policy=InfoBatch(), n_classes=2, epochs=4, budget=0.85)
    pruner.observe(torch.arange(n), torch.stack([torch.linspace(-2, 5, n), torch.zeros(n)], 1))
    pruner.step()
    weights = pruner.weights(torch.arange(n))
    assert pruner.n_kept == n - 10
    assert weights.sum().item() == pytest.approx(n, rel=1e-6)
    assert len(set(weights[weights > 0].tolist())) == 2


def test_a_budget_that_cannot_be_met_is_refused_or_reported():
    labels = np.arange(60) % CLASSES
    with pytest.raises(InvalidInput, match=r"budget must be at least 0.4 with InfoBatch.*got 0.3"):
        ConfidencePruner(labels, policy=InfoBatch(), epochs=3, budget=0.3)
    pruner = ConfidencePruner(labels, policy=InfoBatch(), epochs=3, budget=0.45)
    train(pruner, 3)
    assert sum(pruner.kept_by_epoch) > 0.45 * 180
    assert any("the budget is not met" in note for note in pruner.notes)


def test_easy_and_hard_by_thresholds_of_the_average():
    labels = np.zeros(6, int)
    pruner = ConfidencePruner(labels, policy=EasyHard(0.5, easy=0.9, hard=0.05), n_classes=2, ema=0.3, seed=1)
    p = torch.tensor([0.95, 0.5, 0.02, 0.91, 0.04, 0.3])
    for _ in range(2):
        pruner.observe(torch.arange(6), torch.stack([p, 1 - p], 1).log())
    np.testing.assert_allclose(pruner.table.column("label"), p, rtol=1e-5)  # corrected for the zero start
    rested = set()
    for _ in range(60):
        pruner.step()
        rested |= set(range(6)) - set(pruner.kept.tolist())
        assert set(pruner.weights(pruner.kept).tolist()) <= {1.0, 2.0}
    assert rested == {0, 2, 3, 4}


@pytest.mark.parametrize("policy", [InfoBatch(0.5, weights="mean"), Unbiased(0.6, 0.5, weights="mean")])
def test_weights_of_mean_one(policy):
    pruner = ConfidencePruner(np.arange(60) % CLASSES, policy=policy)
    train(pruner, 1)
    weights = pruner.weights(pruner.kept)
    assert weights.mean().item() == pytest.approx(1, rel=1e-6)
    assert len(set(weights.tolist())) == 2


@pytest.mark.parametrize("policy", [InfoBatch(0.5, weights="none"), Unbiased(0.6, 0.5, weights="none")])
def test_no_weights(policy):
    pruner = ConfidencePruner(np.arange(60) % CLASSES, policy=policy)
    train(pruner, 1)
    assert pruner.n_kept < 60
    assert pruner.weights(pruner.kept).eq(1).all()


def test_the_class_floor_holds_without_looking_at_classes():
    labels = np.array([0] * 30 + [1] * 3)
    pruner = ConfidencePruner(labels, policy=InfoBatch(0.9), minimum_per_class=3)
    logits = torch.zeros(33, 2)
    logits[30:, 1] = 9.0  # the small class is learned first
    pruner.observe(torch.arange(33), logits)
    pruner.step()
    assert pruner.kept.tolist() == list(range(33))
    assert "minimum_per_class" in pruner.notes[0]


def test_the_number_of_steps_is_not_known_ahead():
    with pytest.raises(InvalidInput, match="not depend on scores"):
        ConfidencePruner(np.arange(60) % CLASSES, policy=InfoBatch()).total_steps(5, batch_size=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: InfoBatch(0),
        lambda: InfoBatch(1.0),
        lambda: InfoBatch(weights="half"),
        lambda: EasyHard(easy=1.2),
        lambda: EasyHard(easy=0.3, hard=0.4),
        lambda: Unbiased(weights=True),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        make()


def test_a_schedule_may_begin_later_than_the_first_epoch():
    pruner = ConfidencePruner(np.arange(60) % CLASSES, policy=InfoBatch(), schedule=Every(1, start=3))
    train(pruner, 6)
    kept = pruner.kept_by_epoch
    assert kept[:3] == [60] * 3
    assert all(number < 60 for number in kept[3:])
