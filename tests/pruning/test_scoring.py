"""Scores from a pass of their own, at the cuts."""

import numpy as np
import pytest
import torch

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.pruning import ConfidencePruner, Every, LowestConfidence

LABELS = [0] * 10 + [1] * 10


def logits_for(confidence):
    """Two classes; the top probability is what is given."""
    top = torch.as_tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], dim=1).log().float()


def run(pruner, confidences, *, score=True):
    """Follow the given confidences (epochs x samples); returns what was trained on, and what was asked for a score."""
    asked, kept = [], []
    for now in confidences:
        kept.append(pruner.kept.tolist())
        order = pruner.order()
        pruner.observe(order, logits_for(now[order]))

        def scorer(indices, now=now):
            asked.append(indices.tolist())
            for part in indices.split(3):
                yield part, logits_for(now[part])

        pruner.step(score=scorer if score else None)
    kept.append(pruner.kept.tolist())
    return kept, asked


def confidences(epochs, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 1, (epochs, len(LABELS))))


def becoming_easy():
    """Samples 0, 1 (class 0) and 10, 11 (class 1) are hard in the first epochs and easy after the first cut."""
    planted = torch.full((7, 20), 0.9, dtype=torch.float64)
    planted[:2, [0, 1, 10, 11]] = 0.55
    planted[2:, [0, 1, 10, 11]] = 0.99
    planted[2:, [2, 3, 12, 13]] = 0.6  # others become hard and take their place
    return planted


@pytest.mark.parametrize("ema", [0.3, 1.0])
def test_samples_that_become_easy_return_at_the_next_cut(ema):
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.2, readmit=True), schedule=Every(4, start=2), ema=ema)
    kept, asked = run(pruner, becoming_easy())
    left = {0, 1, 10, 11}
    assert set(range(20)) - set(kept[2]) == left, "planted: these leave at the first cut, after epoch 2"
    assert set(range(20)) - set(kept[6]) == {2, 3, 12, 13}, "and are back after the second, after epoch 6"
    assert asked == [sorted(left)]
    assert pruner.resting.tolist() == [2, 3, 12, 13]


def test_against_a_slow_loop():
    now = confidences(9)
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.3, readmit=True), schedule=Every(2, start=3), ema=0.3)
    kept, asked = run(pruner, now)

    e, seen, train = [0.0] * 20, [0] * 20, set(range(20))
    for epoch in range(1, 10):
        assert kept[epoch - 1] == sorted(train)
        c = [float(value) for value in now[epoch - 1]]
        for i in train:
            e[i], seen[i] = 0.3 * c[i] + 0.7 * e[i], epoch
        if epoch < 3 or (epoch - 3) % 2:
            continue
        wanted = set(range(20)) - train
        assert (asked.pop(0) if wanted else []) == sorted(wanted)
        for i in wanted:
            for _ in range(epoch - seen[i]):  # as if it had been seen like this in every epoch that it missed
                e[i] = 0.3 * c[i] + 0.7 * e[i]
            seen[i] = epoch
        for label in (0, 1):
            members = sorted((i for i in range(20) if LABELS[i] == label), key=lambda i: (e[i], i))
            out = members[: int(0.3 * len(members))]
            train = (train | set(members)) - set(out)
    assert kept[9] == sorted(train)
    assert asked == []
    np.testing.assert_allclose(pruner.scores.numpy(), e, atol=1e-6)


def test_scoring_is_counted_by_step():
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.2, readmit=True), schedule=Every(2))
    counts = []
    for now in confidences(6):
        order = pruner.order()
        pruner.observe(order, logits_for(now[order]))
        pruner.step(score=lambda indices, now=now: [(indices, logits_for(now[indices]))])
        counts.append(pruner.scored)
    assert counts == [0, 0, 0, 4, 0, 4]  # nobody rests at the first cut


def test_it_goes_on_from_a_saved_state():
    options = {"policy": LowestConfidence(0.2, readmit=True), "schedule": Every(2), "ema": 0.3}
    whole, first, second = (ConfidencePruner(LABELS, **options) for _ in range(3))
    now = confidences(8)
    run(whole, now)
    run(first, now[:5])
    second.load_state_dict(first.state_dict())
    run(second, now[5:])
    assert torch.equal(second.kept, whole.kept)
    assert torch.equal(second.table.rows, whole.table.rows)


def test_a_scorer_must_be_given_and_must_score_everybody():
    options = {"policy": LowestConfidence(0.2, readmit=True), "schedule": Every(1)}
    now = confidences(1)[0]

    def observed():
        pruner = ConfidencePruner(LABELS, **options)
        pruner.observe(torch.arange(20), logits_for(now))
        pruner.step(score=lambda indices: [])  # nobody rests yet
        return pruner

    with pytest.raises(InvalidInput, match=r"score must be given to step\(\) with LowestConfidence.*, got None"):
        observed().step()
    with pytest.raises(CalibrantError, match="score gave logits for 3 samples, but was asked for 4"):
        observed().step(score=lambda indices: [(indices[:-1], logits_for(now[indices[:-1]]))])
    with pytest.raises(InvalidInput, match="logits must"):
        observed().step(score=lambda indices: [(indices, torch.zeros(4, 5))])
