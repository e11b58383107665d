"""Who leaves, against the paper's procedures written out with lists."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.pruning import (
    Choice,
    ConfidencePruner,
    Every,
    HighestConfidence,
    LowestConfidence,
    PruningPolicy,
    RandomSubset,
    Unbiased,
)


def logits_for(confidences, predicted, classes):
    """Logits whose softmax has the given top probability; the other classes share the rest."""
    rest = (1 - np.asarray(confidences, dtype=np.float64)) / (classes - 1)
    rows = np.repeat(rest[:, None], classes, axis=1)
    rows[np.arange(len(rows)), predicted] = confidences
    return torch.from_numpy(np.log(rows)).float()


def prune_using_ema(De, fraction):
    """Procedure 1 of the paper, line by line; De is a list of (index, class, score)."""
    for k in sorted({y for _, y, _ in De}):
        De_k = [entry for entry in De if entry[1] == k]
        De = [entry for entry in De if entry[1] != k]
        De_k = sorted(De_k, key=lambda entry: entry[2])  # stable: ties stay in the order of the index
        top = De_k[: math.floor(fraction * len(De_k))]
        De_k = [entry for entry in De_k if entry not in top]
        De = sorted(De + De_k)
    return De


@settings(max_examples=80)
@given(st.data())
def test_procedure_1_over_classes_ties_and_fractions(data):
    classes = data.draw(st.integers(2, 4))
    labels = list(range(classes)) + data.draw(st.lists(st.integers(0, classes - 1), min_size=0, max_size=30))
    fraction = data.draw(
        st.sampled_from([Fraction(1, 10), Fraction(1, 5), Fraction(1, 3), Fraction(29, 100), Fraction(9, 10)])
    )
    ema = data.draw(st.sampled_from([0.3, 1.0]))
    pruner = ConfidencePruner(
        labels, policy=LowestConfidence(float(fraction)), schedule=Every(2, start=1), ema=ema, seed=1
    )
    n = len(labels)
    De = [(i, y, np.float32(0)) for i, y in enumerate(labels)]
    for epoch in range(1, 6):
        # Few distinct confidences, so that whole histories are equal and ties are common.
        c = data.draw(st.lists(st.sampled_from([0.5, 0.6, 0.8, 0.99]), min_size=n, max_size=n))
        logits = logits_for(c, np.zeros(n, int), classes)
        c32 = torch.softmax(logits, 1).max(1).values.numpy()
        indices = pruner.order()
        pruner.observe(indices, logits[indices])
        pruner.step()
        De = [(i, y, np.float32(ema) * c32[i] + np.float32(1 - ema) * e) for i, y, e in De]
        if epoch in (1, 3, 5):
            De = prune_using_ema(De, fraction)
        assert pruner.kept.tolist() == [i for i, _, _ in De]
        assert pruner.scores[pruner.kept].tolist() == [float(e) for _, _, e in De]


def observed(policy, confidences, *, labels=None, predicted=None, n_classes=2, schedule=None, **options):
    labels = np.zeros(len(confidences), int) if labels is None else np.asarray(labels)
    pruner = ConfidencePruner(labels, policy=policy, schedule=schedule or Every(1), n_classes=n_classes, **options)
    predicted = labels if predicted is None else predicted
    pruner.observe(torch.arange(len(labels)), logits_for(confidences, predicted, n_classes))
    return pruner


def test_highest_confidence_is_the_mirror_image():
    pruner = observed(HighestConfidence(0.5), [0.9, 0.6, 0.9, 0.7, 0.9])
    pruner.step()
    assert pruner.kept.tolist() == [1, 3, 4]  # two of the three at 0.9 leave: the first two by index


def test_cumulative_or_selected_anew():
    scores = np.linspace(0.55, 0.95, 20)
    cumulative = observed(LowestConfidence(0.2), scores)
    anew = observed(LowestConfidence(0.2, readmit=True), scores)
    # Now sample 0 is scored high and sample 10 low.
    flipped = scores.copy()
    flipped[[0, 10]] = 0.99, 0.51
    logits = logits_for(flipped, np.zeros(20, int), 2)
    for pruner in (cumulative, anew):
        pruner.step(score=lambda rows: [(rows, logits[rows])])
        assert pruner.kept.tolist() == list(range(4, 20))
        pruner.observe(pruner.order(), logits[pruner.order()])
        pruner.step(score=lambda rows: [(rows, logits[rows])])
    assert cumulative.n_kept == 20 - 4 - 3
    assert 0 not in cumulative.kept.tolist()
    assert anew.n_kept == 16
    assert 0 in anew.kept.tolist()
    assert 10 not in anew.kept.tolist()
    assert anew.audit().left[[0, 1, 10]].tolist() == [-1, 1, 2]


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.25, 0.5]), st.integers(4, 20), st.integers(1, 8))
def test_pruning_inside_each_minibatch(seed, fraction, batch_size, minimum):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(3), rng.integers(0, 3, 60)])
    scores = rng.choice([0.5, 0.6, 0.7, 0.8, 0.9], len(labels))
    pruner = ConfidencePruner(
        labels,
        policy=LowestConfidence(fraction, within="batch"),
        schedule=Every(1),
        batch_size=batch_size,
        minimum_per_class=minimum,
        seed=seed,
    )
    kept = list(range(len(labels)))
    for _ in range(2):
        order = pruner.order().tolist()
        pruner.observe(torch.arange(len(labels)), logits_for(scores, labels, 3))
        pruner.step()
        out = []
        for start in range(0, len(order), batch_size):
            for k in range(3):
                members = sorted(i for i in order[start : start + batch_size] if labels[i] == k)
                members.sort(key=lambda i: scores[i])
                out += members[: math.floor(Fraction(str(fraction)) * len(members))]
        for k in range(3):  # the class floor brings the highest back
            mine = sorted((i for i in out if labels[i] == k), key=lambda i: (scores[i], i))
            size = sum(labels[i] == k for i in kept)
            out = [i for i in out if i not in mine[max(size - minimum, 0) :]]
        kept = [i for i in kept if i not in out]
        assert pruner.kept.tolist() == kept


def test_random_subset_draws_an_exact_share_of_each_class_anew():
    labels = np.repeat([0, 1, 2], [50, 30, 7])
    pruner = ConfidencePruner(labels, policy=RandomSubset(0.4), schedule=Every(1, start=2), seed=5)
    kept = []
    for epoch in range(6):
        sizes = np.bincount(labels[pruner.kept]).tolist()
        assert sizes == ([50, 30, 7] if epoch < 2 else [30, 18, 5])
        assert pruner.weights(pruner.kept).eq(1).all()
        kept.append(tuple(pruner.kept.tolist()))
        pruner.step()
    assert len(set(kept[2:])) == 4


def test_random_subset_gives_everybody_the_same_chance():
    pruner = ConfidencePruner(np.zeros(40, int), policy=RandomSubset(0.25), seed=11)
    epochs, stayed = 2000, torch.zeros(40)
    for _ in range(epochs):
        pruner.step()
        stayed += pruner.kept_mask
    deviation = (stayed / epochs - 0.75) / math.sqrt(0.75 * 0.25 / epochs)
    assert deviation.abs().max() < 4.5
    assert 15 < deviation.square().sum() < 75  # chi-square with 39 degrees of freedom


def test_unbiased_weights_average_one_for_every_sample():
    labels = np.repeat([0, 1], [41, 24])
    scores = np.random.default_rng(0).permutation(np.linspace(0.55, 0.95, 65))
    pruner = observed(Unbiased(share=0.6, drop=0.35), scores, labels=labels, seed=2)
    learned, resting = [24, 14], [8, 4]  # floor(0.6 n), floor(0.35 m)
    epochs, total = 3000, torch.zeros(65, dtype=torch.float64)
    for _ in range(epochs):
        pruner.step()
        weights = pruner.weights(torch.arange(65)).double()
        total += weights
        for k in (0, 1):
            mine = weights[torch.from_numpy(labels == k)]
            assert int((mine == 0).sum()) == resting[k]
            assert mine.sum().item() == pytest.approx(len(mine), rel=1e-6)  # class shares are exact in every epoch
        assert torch.equal(weights > 0, pruner.kept_mask)
    for k in (0, 1):
        members = np.flatnonzero(labels == k)
        well = members[np.argsort(-scores[members], kind="stable")[: learned[k]]]
        rest = np.setdiff1d(members, well)
        assert (total[rest] == epochs).all()  # those still learning never rest
        # A weight is m/(m-r) with probability (m-r)/m, else 0: its variance is r/(m-r).
        sigma = math.sqrt(resting[k] / (learned[k] - resting[k]) / epochs)
        deviation = (total[well] / epochs - 1) / sigma
        assert deviation.abs().max() < 4.5
        assert 0.3 * learned[k] < deviation.square().sum() < 2.2 * learned[k]


def test_unbiased_may_take_everybody_for_well_learned():
    pruner = observed(Unbiased(share=1, drop=0.5), np.linspace(0.6, 0.9, 10))
    pruner.step()
    assert pruner.n_kept == 5
    assert pruner.weights(pruner.kept).tolist() == [2.0] * 5


def test_the_only_one_left_of_the_well_learned_weighs_as_much_as_all_of_them():
    pruner = observed(Unbiased(share=1, drop=0.9), np.linspace(0.6, 0.9, 10))
    pruner.step()
    assert pruner.weights(pruner.kept).tolist() == [10.0]


def test_unbiased_respects_the_class_floor_and_names_the_refused():
    labels = [0] * 20 + [1] * 12 + [2] * 4
    pruner = ConfidencePruner(labels, policy=Unbiased(share=1, drop=0.5), minimum_per_class=8)
    pruner.observe(torch.arange(36), torch.eye(3)[torch.tensor(labels)])
    pruner.step()
    assert np.bincount(np.array(labels)[pruner.kept]).tolist() == [10, 8, 4]
    assert "in 2 of 3 classes (first: class 1, 6 should leave, 4 did)" in pruner.notes[0]


def test_a_draw_depends_on_seed_and_epoch_alone():
    def run(seed, epochs):
        pruner = observed(Unbiased(), np.linspace(0.6, 0.9, 40), seed=seed)
        for _ in range(epochs):
            pruner.step()
        return pruner.kept.tolist()

    assert run(1, 3) == run(1, 3)
    assert run(1, 3) != run(2, 3)
    assert run(1, 3) != run(1, 4)


class EveryOther(PruningPolicy):
    """A policy of the user's: in each class, the samples at odd places leave."""

    columns = ()

    def __init__(self, obedient=True):
        self.obedient = obedient

    def quota(self, sizes):
        return [size // 2 for size in sizes]

    def choose(self, pool, leave):
        stay = np.ones(len(pool.targets), bool)
        for k in range(len(leave)):
            stay[np.flatnonzero(pool.targets == k)[1::2]] = False
        stay[0] = self.obedient
        return Choice(stay)


def test_a_policy_of_your_own():
    pruner = ConfidencePruner([0, 0, 0, 1, 1, 1, 1], policy=EveryOther(), schedule=Every(1))
    assert pruner.samples_by_epoch(3) == [7, 4, 2]
    pruner.step()
    assert pruner.kept.tolist() == [0, 2, 3, 5]
    pruner.step()
    assert pruner.kept.tolist() == [0, 3]
    # A fresh object of the same settings may go on: no memory address is part of what is compared.
    again = ConfidencePruner([0, 0, 0, 1, 1, 1, 1], policy=EveryOther(), schedule=Every(1))
    again.load_state_dict(pruner.state_dict())
    assert again.kept.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda c: Choice(np.flatnonzero(c.stay)),
            r"Choice.stay of .* must have the 7 rows of the pool, got shape \(4,\)",
        ),
        (lambda c: Choice(c.stay, np.full(7, np.nan)), "Choice.weights of .* must be 7 finite numbers"),
        (lambda c: Choice(c.stay, np.full(7, -1.0)), "Choice.weights of .* must be 7 finite numbers"),
        (lambda c: Choice(c.stay, np.ones(4)), "Choice.weights of .* must be 7 finite numbers"),
    ],
)
def test_a_choice_that_does_not_say_it_of_each_sample_is_refused(wrong, message):
    class Wrong(EveryOther):
        def choose(self, pool, leave):
            return wrong(super().choose(pool, leave))

    pruner = ConfidencePruner([0, 0, 0, 1, 1, 1, 1], policy=Wrong(), schedule=Every(1))
    with pytest.raises(InvalidInput, match=message):
        pruner.step()


def test_a_policy_that_breaks_its_promise_is_stopped():
    pruner = ConfidencePruner([0, 0, 0, 1, 1, 1, 1], policy=EveryOther(obedient=False), schedule=Every(1))
    with pytest.raises(CalibrantError, match="choose must obey"):
        pruner.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda: LowestConfidence(0),
        lambda: LowestConfidence(1),
        lambda: LowestConfidence(10),
        lambda: HighestConfidence(-0.1),
        lambda: HighestConfidence(float("nan")),
        lambda: RandomSubset(1.0),
        lambda: Unbiased(share=0),
        lambda: Unbiased(drop=1),
        lambda: Unbiased(share=1.5),
        lambda: LowestConfidence(0.1, within="epoch"),
        lambda: LowestConfidence(0.1, within="batch", readmit=True),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        make()
