"""A pruner goes on from a saved state as if nothing had happened, and refuses states that are not its own."""

import copy
import json

import numpy as np
import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.pruning import (
    ConfidencePruner,
    EasyHard,
    Every,
    HighestConfidence,
    InfoBatch,
    LowestConfidence,
    OrderDP,
    RandomSubset,
    Selective,
    Unbiased,
)

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [30, 22, 11]))
EPOCHS = 7
# Every policy and every schedule once: the table over which resuming is tested.
RUNS = {
    "nothing": {},
    "lowest": {"policy": LowestConfidence(0.2), "schedule": Every(2)},
    "within batches": {"policy": LowestConfidence(0.3, within="batch"), "schedule": Every(1), "batch_size": 16},
    "reselect": {"policy": LowestConfidence(0.3, readmit=True), "schedule": Every(1)},
    "highest": {"policy": HighestConfidence(0.2), "schedule": Every(3, start=1)},
    "lowest above a floor": {"policy": LowestConfidence(0.2), "schedule": Every(2, start=3), "minimum_per_class": 9},
    "random": {"policy": RandomSubset(0.4), "anneal": 2, "epochs": EPOCHS},
    "unbiased": {"policy": Unbiased(0.8, 0.5), "schedule": Every(1, start=3), "ema": 1.0},
    "infobatch": {"policy": InfoBatch(0.4), "anneal": 2, "epochs": EPOCHS},
    "infobatch with a budget": {"policy": InfoBatch(), "budget": 0.75, "anneal": 1, "epochs": EPOCHS},
    "easy and hard": {"policy": EasyHard(easy=0.6, hard=0.1, weights="mean"), "schedule": Every(1, start=2)},
    "orderdp": {"policy": OrderDP(0.8, 0.5)},
    "selective": {"policy": Selective(0.5, 2.0)},
}


def train_epoch(pruner):
    """One epoch of a stand-in for training: what the model says depends on the sample and the epoch alone."""
    generator = torch.Generator().manual_seed(1000 + pruner.epoch)
    logits = 3 * torch.randn(len(LABELS), 3, generator=generator)
    order = pruner.order()
    for indices in order.split(16):
        pruner.observe(indices, logits[indices])
    kept, weights = pruner.kept.tolist(), pruner.weights(torch.arange(len(LABELS))).tolist()
    pruner.step(score=lambda rows: [(rows, logits[rows])])
    return order.tolist(), kept, weights


def through_files(state):
    """What a checkpoint does: tensors to safetensors, the rest to JSON, and back."""
    from safetensors.torch import load, save

    tensors = load(save({name: value for name, value in state.items() if isinstance(value, torch.Tensor)}))
    rest = json.loads(json.dumps({name: value for name, value in state.items() if name not in tensors}))
    return {**tensors, **rest}


def equal(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name] for name in a
    )


def test_nothing_leaves_without_a_policy():
    pruner = ConfidencePruner(LABELS)
    orders = [tuple(train_epoch(pruner)[0]) for _ in range(3)]
    assert len(set(orders)) == 3
    assert pruner.n_kept == len(LABELS)
    assert pruner.scores.min() > 0


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_resuming_at_every_epoch_changes_nothing(options):
    straight = ConfidencePruner(LABELS, seed=6, **options)
    course, states = [], []
    for _ in range(EPOCHS):
        states.append(straight.state_dict())
        course.append(train_epoch(straight))
    for start, state in enumerate(states):
        resumed = ConfidencePruner(LABELS, seed=6, **options)
        addresses = resumed.table.rows.data_ptr(), resumed.kept_mask.data_ptr()
        resumed.load_state_dict(through_files(state))
        assert equal(resumed.state_dict(), state)
        assert resumed.epoch == start
        assert [train_epoch(resumed) for _ in range(start, EPOCHS)] == course[start:]
        assert equal(resumed.state_dict(), straight.state_dict())
        assert addresses == (resumed.table.rows.data_ptr(), resumed.kept_mask.data_ptr())
        assert (resumed.notes, resumed.kept_by_epoch) == (straight.notes, straight.kept_by_epoch)
    if options:  # the run is worth resuming: somebody was out at some time
        assert min(len(kept) for _, kept, _ in course) < len(LABELS)


def test_resuming_in_the_middle_of_an_epoch_keeps_what_was_observed():
    whole, broken = (ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1)) for _ in range(2))
    logits = torch.randn(len(LABELS), 3, generator=torch.Generator().manual_seed(2))
    order = whole.order()
    for indices in order.split(16):
        whole.observe(indices, logits[indices])
    whole.step()
    for indices in order[:32].split(16):
        broken.observe(indices, logits[indices])
    resumed = ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1))
    resumed.load_state_dict(broken.state_dict())
    for indices in order[32:].split(16):
        resumed.observe(indices, logits[indices])
    resumed.step()
    assert equal(resumed.state_dict(), whole.state_dict())


def test_a_state_is_a_copy():
    pruner = ConfidencePruner(LABELS)
    state = pruner.state_dict()
    pruner.observe(torch.arange(3), torch.ones(3, 3))
    assert state["rows"][:, 0].eq(0).all()


def test_neither_saving_nor_loading_ties_a_state_to_its_pruner():
    first, second = (ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1)) for _ in range(2))
    train_epoch(first)
    state = first.state_dict()
    before = copy.deepcopy(state)
    second.load_state_dict(state)
    for pruner in (first, second):
        train_epoch(pruner)
        assert equal(state, before)


def test_a_loaded_state_counts_as_shared_by_all_ranks():
    # Several processes that go on from the state of one must not take its rows as news.
    pruner, resumed = ConfidencePruner(LABELS), ConfidencePruner(LABELS)
    train_epoch(pruner)
    resumed.load_state_dict(pruner.state_dict())
    assert resumed.table.shared_count.tolist() == [1.0] * len(LABELS)


def test_a_state_of_other_data_or_other_settings_is_refused():
    state = ConfidencePruner(LABELS, seed=1).state_dict()
    with pytest.raises(InvalidInput, match=r"another seed \(1 there, 2 here\)"):
        ConfidencePruner(LABELS, seed=2).load_state_dict(state)
    swapped = LABELS.copy()
    swapped[[0, np.flatnonzero(swapped != swapped[0])[0]]] = swapped[[np.flatnonzero(swapped != swapped[0])[0], 0]]
    with pytest.raises(InvalidInput, match="another targets"):
        ConfidencePruner(swapped, seed=1).load_state_dict(state)
    with pytest.raises(InvalidInput, match="another policy"):
        ConfidencePruner(LABELS, seed=1, policy=InfoBatch()).load_state_dict(state)
    other = ConfidencePruner(LABELS, seed=1)
    with pytest.raises(InvalidInput, match="what state_dict gave"):
        other.load_state_dict({})
    with pytest.raises(InvalidInput):
        other.load_state_dict(None)
    del state["notes"]
    with pytest.raises(InvalidInput):
        other.load_state_dict(state)
