"""Numbers known before training, against the training itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.pruning import (
    ConfidencePruner,
    Every,
    HighestConfidence,
    Indexed,
    LowestConfidence,
    RandomSubset,
    Unbiased,
)

EPOCHS = 9
PLANS = {
    "nothing": {},
    "paper": {"policy": LowestConfidence(0.2), "schedule": Every(2, start=3)},
    "reselect": {"policy": LowestConfidence(0.3, readmit=True), "schedule": Every(3, start=2)},
    "highest, annealed": {"policy": HighestConfidence(0.5), "schedule": Every(2), "anneal": 3, "epochs": EPOCHS},
    "lowest, floor": {"policy": LowestConfidence(0.5), "schedule": Every(1), "minimum_per_class": 6},
    "random": {"policy": RandomSubset(0.4)},
    "unbiased, annealed": {"policy": Unbiased(0.7, 0.5), "anneal": 0.25, "epochs": EPOCHS},
}


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_total_steps_is_what_the_loader_takes(options, drop_last):
    labels = np.repeat([0, 1, 2], [33, 20, 9])
    pruner = ConfidencePruner(labels, seed=4, **options)
    loader = DataLoader(
        Indexed(TensorDataset(torch.from_numpy(labels))), batch_size=8, sampler=pruner.sampler(), drop_last=drop_last
    )
    ahead = pruner.total_steps(EPOCHS, 8, drop_last=drop_last)
    by_epoch = pruner.samples_by_epoch(EPOCHS)
    steps = 0
    generator = torch.Generator().manual_seed(0)
    for epoch in range(EPOCHS):
        assert pruner.n_kept == by_epoch[epoch]
        expected = len(loader)
        for taken, (_, indices) in enumerate(loader, start=1):
            pruner.observe(indices, torch.randn(len(indices), 3, generator=generator))
            assert taken <= expected
        steps += taken
        pruner.step(score=lambda rows: [(rows, torch.randn(len(rows), 3, generator=generator))])
    assert steps == ahead
    assert pruner.total_steps(EPOCHS, 8, drop_last=drop_last) == ahead  # and still, at the end
    assert sum(pruner.kept_by_epoch) == sum(by_epoch)


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 4), st.booleans())
@settings(max_examples=50)
def test_steps_of_several_ranks_are_those_of_one_with_the_global_batch(n, batch_size, ranks, drop_last):
    pruner = ConfidencePruner(np.zeros(n, int))
    many = pruner.total_steps(3, batch_size, ranks, drop_last=drop_last)
    assert many == pruner.total_steps(3, batch_size * ranks, drop_last=drop_last)
    assert many == 3 * (n // (batch_size * ranks) if drop_last else math.ceil(n / (batch_size * ranks)))


def test_the_anneal_trains_on_everything_with_weight_one():
    pruner = ConfidencePruner(np.zeros(20, int), policy=Unbiased(1, 0.5), epochs=8, anneal=0.25)
    sizes = []
    for _ in range(8):
        sizes.append(pruner.n_kept)
        pruner.observe(torch.arange(20), torch.zeros(20, 1))
        pruner.step()
    assert sizes == [20, 10, 10, 10, 10, 10, 20, 20]
    assert pruner.weights(torch.arange(20)).tolist() == [1.0] * 20


def test_those_who_left_return_for_the_anneal_and_stay_on_record():
    pruner = ConfidencePruner(np.zeros(10, int), policy=LowestConfidence(0.5), schedule=Every(1), epochs=3, anneal=1)
    for _ in range(2):
        pruner.observe(torch.arange(10), torch.zeros(10, 1))
        pruner.step()
    assert pruner.n_kept == 10
    assert (pruner.audit().left == 1).sum() == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": LowestConfidence(0.1)}, "schedule must be given"),
        ({"schedule": Every(1)}, "schedule must be left out without a policy"),
        ({"anneal": 2}, "epochs must be given with anneal"),
        ({"anneal": 5, "epochs": 5}, "anneal must be"),
        ({"anneal": 1.5, "epochs": 5}, "anneal must be"),
        ({"anneal": -1, "epochs": 5}, "anneal must be"),
        ({"anneal": float("inf"), "epochs": 5}, "anneal must be"),
        ({"anneal": "x", "epochs": 5}, "anneal must be a number, got 'x'"),
        ({"policy": "lowest"}, r"policy must be a policy such as LowestConfidence\(0\.1\), got 'lowest'"),
        (
            {"policy": LowestConfidence, "schedule": Every(1)},
            "policy must be a policy .* got <class",
        ),
        ({"policy": LowestConfidence(0.1), "schedule": 10}, r"schedule must be a schedule such as Every\(.*, got 10"),
        ({"policy": LowestConfidence(0.1), "schedule": Every}, "schedule must be .* got <class"),
    ],
)
def test_plans_that_cannot_work_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        ConfidencePruner([0, 1], **options)


def test_a_schedule_that_starts_too_late_says_so():
    with pytest.warns(CalibrantWarning, match=r"starts after epoch 40, too late .* epochs=40") as caught:
        ConfidencePruner([0, 1], policy=LowestConfidence(0.1), schedule=Every(10, start=40), epochs=40)
    assert caught[0].filename == __file__
    with pytest.warns(CalibrantWarning, match="anneal=10"):
        ConfidencePruner([0, 1], policy=LowestConfidence(0.1), schedule=Every(30), epochs=40, anneal=10)


def test_what_cannot_be_known_ahead_is_not_guessed():
    pruner = ConfidencePruner([0, 1], policy=LowestConfidence(0.1, within="batch"), schedule=Every(1), batch_size=8)
    with pytest.raises(InvalidInput, match="upper bound"):
        pruner.total_steps(10, 1)


def test_the_anneal_fixes_the_number_of_epochs():
    pruner = ConfidencePruner([0, 1], policy=RandomSubset(0.5), epochs=10, anneal=2)
    with pytest.raises(InvalidInput, match="epochs must equal"):
        pruner.total_steps(20, 1)


class TooMany(RandomSubset):
    """Lets go of everything, and then of more."""

    def quota(self, sizes):
        return list(sizes) if self.fraction < 0.75 else [size + 1 for size in sizes]


def test_a_policy_that_lets_everybody_go_keeps_the_class_floor():
    pruner = ConfidencePruner([0, 0, 0, 1, 1, 1], policy=TooMany(0.5))
    pruner.step()
    assert pruner.n_kept == 2
    assert "refused to prune below minimum_per_class=1 in 2 of 2 classes" in pruner.notes[0]


def test_a_policy_that_lets_more_go_than_there_are_is_one_line():
    with pytest.raises(InvalidInput, match="must let 0 to as many samples leave as"):
        ConfidencePruner([0, 0, 0, 1, 1, 1], policy=TooMany(0.75))
