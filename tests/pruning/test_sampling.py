"""Orders, shards, samplers and indices that travel with their samples."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
)

from calibrant.errors import InvalidInput
from calibrant.pruning import ConfidencePruner, Every, Indexed, LowestConfidence
from calibrant.pruning.sampling import DRAW, ORDER, generator_for


def pruned(n=40, fraction=0.25, **options):
    """A pruner that has let the lowest quarter go."""
    pruner = ConfidencePruner(np.arange(n) % 2, policy=LowestConfidence(fraction), schedule=Every(1), seed=3, **options)
    pruner.observe(torch.arange(n), torch.randn(n, 2, generator=torch.Generator().manual_seed(0)))
    pruner.step()
    return pruner


@settings(max_examples=200)
@given(st.integers(1, 120), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_ranks_share_the_order_batch_by_batch(n, ranks, batch_size, drop_last):
    pruner = ConfidencePruner(np.zeros(n, int), seed=n)
    order = pruner.global_order()
    options = {"batch_size": batch_size, "drop_last": drop_last, "world_size": ranks}
    shards = [pruner.sampler(rank=r, **options) for r in range(ranks)]
    block = ranks * batch_size
    if drop_last and n < block:
        with pytest.raises(InvalidInput, match="batch_size must fit"):
            len(shards[0])
        return
    parts = [list(shard) for shard in shards]
    assert [len(part) for part in parts] == [len(shard) for shard in shards]
    whole = order.tolist()
    steps = {-(-len(part) // batch_size) for part in parts}
    assert len(steps) == 1  # nobody waits for a rank that has finished
    if drop_last:
        whole = whole[: n - n % block]
    repeated = 0
    for g in range(steps.pop()):
        together = [i for part in parts for i in part[g * batch_size : (g + 1) * batch_size]]
        alone = whole[g * block : (g + 1) * block]
        assert set(alone) <= set(together)
        repeated += len(together) - len(alone)
    tail = len(whole) % block
    assert repeated == (ranks - tail if 0 < tail < ranks else 0)


@pytest.mark.parametrize("wrong", [{"rank": 2, "world_size": 2}, {"rank": -1}, {"batch_size": -1}])
def test_impossible_parts_are_refused(wrong):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        list(pruned().sampler(**wrong))


def test_the_order_is_a_shuffle_of_the_kept_by_seed_and_epoch():
    pruner = pruned()
    order = pruner.order()
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == pruner.kept.tolist()
    assert order.tolist() != pruner.kept.tolist()
    assert torch.equal(order, pruner.order())
    assert list(pruner.sampler()) == order.tolist()
    pruner.step()
    again = pruner.order()
    assert again.tolist()[:5] != order.tolist()[:5]


def test_orders_and_draws_have_generators_of_their_own():
    asked = [(seed, epoch, purpose) for seed in (0, 1) for epoch in (0, 1) for purpose in (ORDER, DRAW)]
    assert len({generator_for(*each).initial_seed() for each in asked}) == 8


def test_explicit_ranks():
    pruner = pruned()
    parts = [list(pruner.sampler(rank=r, world_size=3, batch_size=4)) for r in range(3)]
    assert sorted(i for part in parts for i in part) == pruner.kept.tolist()


def test_the_sampler_is_a_sampler_whose_length_changes_only_in_step():
    pruner = ConfidencePruner(np.arange(40) % 2, policy=LowestConfidence(0.25), schedule=Every(1))
    sampler = pruner.sampler()
    assert isinstance(sampler, Sampler)
    assert not hasattr(sampler, "set_epoch")
    assert len(sampler) == 40
    for _ in range(3):  # a fresh, whole pass each time
        assert len(list(sampler)) == 40
    pruner.observe(torch.arange(40), torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))
    assert len(sampler) == 40
    running = iter(sampler)
    next(running)
    pruner.step()
    assert len(sampler) == len(list(sampler)) == 30
    assert len(list(running)) == 39  # a pass that has begun is not disturbed
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


class Batched(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise AssertionError("the batch is fetched at once")

    def __getitems__(self, indices):
        return [(10 * i,) for i in indices]


def test_indexed_adds_the_index_to_any_kind_of_item():
    assert Indexed([(1, 2), (3, 4)])[1] == (3, 4, 1)
    assert Indexed([[1, 2]])[0] == (1, 2, 0)
    assert Indexed([5, 6])[-1] == (6, 1)
    assert Indexed([{"x": 1}], key="row")[0] == {"x": 1, "row": 0}
    assert len(Indexed([1, 2, 3])) == 3
    assert Indexed(Batched()).__getitems__([1, 4]) == [(10, 1), (40, 4)]
    assert Indexed("ab").__getitems__([1, 0]) == [("b", 1), ("a", 0)]
    with pytest.raises(InvalidInput, match=r"index must lie in 0\.\.1 for this dataset, got 2"):
        Indexed("ab").__getitems__([0, 2])
    assert Indexed("ab")[np.int64(1)] == ("b", 1)


def test_indexed_leaves_the_users_dictionary_alone():
    item = {"x": 1}
    Indexed([item])[0]
    assert item == {"x": 1}


class Stream(IterableDataset):
    def __len__(self):
        return 1

    def __iter__(self):
        return iter([1])


def test_indexed_refuses_streams_and_taken_keys():
    with pytest.raises(InvalidInput, match="dataset must have __getitem__"):
        Indexed(iter([1]))
    with pytest.raises(InvalidInput, match="dataset must have __getitem__"):
        Indexed({1, 2})  # it has a length
    with pytest.raises(InvalidInput, match="dataset must have __getitem__ and __len__"):
        Indexed(type("Endless", (), {"__getitem__": lambda self, index: index})())
    with pytest.raises(InvalidInput, match="dataset must have"):
        Indexed(Stream())
    with pytest.raises(InvalidInput, match="key must be new"):
        Indexed([{"index": 0}])[0]


def test_a_dataset_smaller_than_the_pruner_is_refused_in_one_line():
    loader = DataLoader(Indexed(TensorDataset(torch.zeros(30, 2))), batch_size=40, sampler=pruned().sampler())
    with pytest.raises(
        InvalidInput, match=r"index must lie in 0\.\.29 for this dataset, got 39\. Make the pruner with one"
    ):
        list(loader)
    assert [int(i) for _, i in Indexed(TensorDataset(torch.zeros(3, 2)))] == [0, 1, 2]  # iterating still ends


def test_batches_of_indices_are_told_where_they_belong():
    around = BatchSampler(pruned().sampler(), 8, drop_last=False)
    assert sorted(index for batch in around for index in batch) == pruned().kept.tolist()
    with pytest.raises(TypeError):
        Indexed([1, 2])[[0, 1]]


def test_dictionaries_collate_with_their_index():
    loader = DataLoader(Indexed([{"x": float(i)} for i in range(4)]), batch_size=2)
    assert [batch["index"].tolist() for batch in loader] == [[0, 1], [2, 3]]
