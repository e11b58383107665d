"""A budget of updates is met to the sample."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.pruning import (
    Choice,
    ConfidencePruner,
    Every,
    LowestConfidence,
    PruningPolicy,
    RandomSubset,
    Unbiased,
)
from calibrant.pruning.quotas import apportion, lowest
from calibrant.pruning.timetable import Rest


def trained(pruner, epochs):
    """Samples that a real loop sees, epoch by epoch, counted by hand."""
    seen = []
    for _ in range(epochs):
        order = pruner.order()
        seen.append(len(order))
        generator = torch.Generator().manual_seed(len(seen))
        pruner.observe(order, torch.randn(len(order), pruner.n_classes, generator=generator))
        pruner.step()
    return seen


def labels_of(sizes):
    return [k for k, size in enumerate(sizes) for _ in range(size)]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(8, 60), min_size=1, max_size=5),
    epochs=st.integers(4, 12),
    budget=st.integers(55, 99).map(lambda percent: percent / 100),
    start=st.integers(1, 2),
    policy=st.sampled_from([RandomSubset(0.5), Unbiased(0.9, 0.5)]),
)
def test_samples_counted_equal_samples_planned_and_the_budget_exactly(sizes, epochs, budget, start, policy):
    # At most 0.9 * 0.9 of a class rest, in all but the first epochs; whatever can be met is met.
    can_rest = (epochs - start) * sum(9 * (9 * n // 10) // 10 for n in sizes)
    assume(can_rest >= (1 - budget) * sum(sizes) * epochs + epochs)
    pruner = ConfidencePruner(
        labels_of(sizes), policy=policy, schedule=Every(1, start=start), epochs=epochs, budget=budget
    )
    planned = pruner.samples_by_epoch(epochs)
    assert trained(pruner, epochs) == planned
    percent = round(100 * budget)
    assert sum(planned) == percent * sum(sizes) * epochs // 100
    assert max(planned[start:]) - min(planned[start:]) <= 1  # even over the epochs that rest
    assert pruner.audit().kept_counts.min() >= 1


def test_the_weights_stay_unbiased():
    pruner = ConfidencePruner(labels_of([50, 30]), policy=Unbiased(0.8, 0.5), epochs=10, anneal=2, budget=0.7)
    # 240 of 800 rest, in 7 of 10 epochs: 34.29 of the 64 well-learned.
    pruner.observe(torch.arange(80), torch.randn(80, 2, generator=torch.Generator().manual_seed(0)))
    pruner.step()
    assert pruner.n_kept == 46
    # The expected weight of each sample is 1: the weights of the well-learned of a class sum to their number.
    weights = pruner.weights(torch.arange(80))
    assert weights[:50].sum() == pytest.approx(50, rel=1e-5)
    assert weights[50:].sum() == pytest.approx(30, rel=1e-5)


def test_classes_take_turns_and_rest_in_proportion():
    pruner = ConfidencePruner(labels_of([20, 20, 60]), policy=RandomSubset(0.5), epochs=31, budget=0.6)
    trained(pruner, 31)
    rested = np.array([20, 20, 60]) * 31 - pruner.audit().kept_counts.sum(0)
    assert rested.sum() == 100 * 31 - 1860
    assert abs(rested[0] - rested[1]) <= 2
    assert rested[2] / rested.sum() == pytest.approx(0.6, abs=0.02)


def test_a_policy_that_does_not_choose_by_class_meets_the_sum():
    @dataclass(frozen=True)
    class Anywhere(PruningPolicy):
        fraction: float = 0.5
        obeys: bool = True
        known_ahead: ClassVar[bool] = False
        redraws: ClassVar[bool] = True
        free: ClassVar[str] = "fraction"

        def quota(self, sizes):
            return list(sizes)

        def choose(self, pool, leave):
            everybody = np.zeros(len(pool.targets), dtype=np.int64)
            keys = torch.randperm(len(everybody), generator=pool.generator).numpy().astype(np.uint64)
            out = lowest(keys, everybody, [pool.asked + (not self.obeys)])
            return Choice(~out)

    pruner = _meeting_sixty_percent(Anywhere())
    assert sum(trained(pruner, 8)) == 480
    pruner = _meeting_sixty_percent(Anywhere(obeys=False))
    with pytest.raises(CalibrantError, match="let 46 samples go, but 45 were requested"):
        trained(pruner, 8)


def _meeting_sixty_percent(policy):
    return ConfidencePruner(labels_of([50, 50]), policy=policy, epochs=8, budget=0.6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": RandomSubset(0.5), "budget": 0.0}, "budget must lie strictly between 0 and 1"),
        ({"policy": RandomSubset(0.5), "budget": 1.2}, "budget must lie strictly between 0 and 1"),
        ({"policy": RandomSubset(0.5), "budget": "half"}, "budget must be a number"),
        ({"policy": RandomSubset(0.5), "budget": 0.1}, "budget must be at least 0.145 with RandomSubset"),
        ({"policy": RandomSubset(0.5), "budget": 0.2, "minimum_per_class": 9}, "budget must be at least 0.505"),
        ({"policy": Unbiased(0.5, 0.5), "budget": 0.5}, "budget must be at least 0.595 with Unbiased"),
        ({"policy": RandomSubset(0.5), "budget": 0.5, "anneal": 6}, "budget must be at least 0.715"),
        ({"policy": RandomSubset(0.5), "budget": 0.5, "epochs": None}, "budget must come with epochs"),
        ({"policy": None, "budget": 0.5}, "budget must come with a policy"),
        ({"policy": RandomSubset(0.5), "budget": 0.5, "schedule": Every(1, start=10)}, "leave an epoch in which"),
        (
            {"policy": LowestConfidence(0.1), "schedule": Every(2), "budget": 0.6},
            "budget must be 1 with LowestConfidence.*, which has a rate of its own, got 0.6. Use a plan with a free",
        ),
    ],
)
def test_what_cannot_be_met_is_one_line(options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        ConfidencePruner(labels_of([20, 20]), **{"epochs": 10, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("minimum", [1, 9])
def test_the_least_budget_that_is_named_can_be_met(minimum):
    options = {"policy": RandomSubset(0.5), "minimum_per_class": minimum, "epochs": 10}
    with pytest.raises(InvalidInput) as caught:
        ConfidencePruner(labels_of([20, 21]), budget=0.1, **options)
    least = float(str(caught.value).split("at least ")[1].split()[0])
    pruner = ConfidencePruner(labels_of([20, 21]), budget=least, **options)
    assert sum(trained(pruner, 10)) == int(round(least * 1000) * 410 // 1000)


def test_a_budget_of_one_changes_nothing():
    one, none = (
        ConfidencePruner(labels_of([9, 9]), policy=RandomSubset(0.5), epochs=6, **budget)
        for budget in ({"budget": 1.0}, {})
    )
    assert one.settings() == none.settings()
    assert trained(one, 6) == trained(none, 6)


def test_a_state_of_another_budget_is_refused():
    first, second = (
        ConfidencePruner(labels_of([20, 20]), policy=RandomSubset(0.5), epochs=8, budget=budget)
        for budget in (0.6, 0.7)
    )
    trained(first, 3)
    with pytest.raises(InvalidInput, match="come from a pruner with the same"):
        second.load_state_dict(first.state_dict())
    again = ConfidencePruner(labels_of([20, 20]), policy=RandomSubset(0.5), epochs=8, budget=0.6)
    again.load_state_dict(first.state_dict())
    assert sum(trained(again, 5)) + sum(first.kept_by_epoch) == 192


@given(limits=st.lists(st.integers(0, 50), min_size=1, max_size=8), share=st.floats(0, 1), turn=st.integers(0, 20))
def test_apportioning_is_exact_within_limits_and_fair(limits, share, turn):
    total = int(share * sum(limits))
    given_ = apportion(total, limits, turn)
    assert sum(given_) == total
    for part, limit in zip(given_, limits, strict=True):
        assert 0 <= part <= limit
        assert abs(part - total * limit / max(sum(limits), 1)) < 1


def test_resting_sums_to_the_total():
    for total in range(40):
        for epochs in range(1, 9):
            rest = Rest(total, 3, epochs)
            counts = [rest.after(finished) for finished in range(3, 3 + epochs)]
            assert sum(counts) == total
            assert max(counts) - min(counts) <= 1
