import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.training.data import split_validation

labels_strategy = st.lists(st.integers(0, 4), min_size=2, max_size=80).map(torch.tensor)


@given(labels=labels_strategy, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**40))
def test_a_partition_with_every_class_on_both_sides(labels, fraction, seed):
    train, validation = split_validation(labels, fraction=fraction, seed=seed)
    assert sorted(train.tolist() + validation.tolist()) == list(range(len(labels)))
    for part in (train, validation):
        assert part.dtype == torch.int64
        assert part.tolist() == sorted(part.tolist())
    for label in set(labels.tolist()):
        size = int((labels == label).sum())
        held = int((labels[validation] == label).sum())
        if size == 1:
            assert held == 0
        else:
            assert 1 <= held <= size - 1
            assert held in {1, size - 1} or abs(held - fraction * size) <= 0.5 + 1e-6


def test_ten_percent_of_each_class():
    labels = torch.arange(1000) % 10
    _, validation = split_validation(labels)
    assert torch.bincount(labels[validation]).tolist() == [10] * 10


def test_depends_on_the_seed_and_nothing_else():
    labels = torch.arange(300) % 3
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = split_validation(labels, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    again, other = split_validation(labels, seed=7), split_validation(labels, seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


def test_every_sample_can_be_held_out():
    labels = torch.zeros(20, dtype=torch.int64)
    held = {row for seed in range(80) for row in split_validation(labels, seed=seed)[1].tolist()}
    assert held == set(range(20))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_a_fraction_that_leaves_a_side_empty(fraction):
    with pytest.raises(InvalidInput, match="fraction must"):
        split_validation(torch.arange(10), fraction=fraction)


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([1])])
def test_refuses_labels_that_are_none(labels):
    with pytest.raises(InvalidInput, match="labels must"):
        split_validation(labels)
