import numpy as np
import pytest

from calibrant.deployment import conformal_ranks


def slow(reference, new, draws):
    bag, found = list(reference), []
    for value, u in zip(new, draws, strict=True):
        bag.append(value)
        found.append((sum(v < value for v in bag) + u * sum(v == value for v in bag)) / len(bag))
    return found


@pytest.mark.parametrize("kinds", [3, 10**6])
def test_ranks_are_those_of_a_plain_loop(kinds):
    """With many ties and with none, over more than two blocks."""
    rng = np.random.default_rng(0)
    reference, new = rng.integers(kinds, size=37), rng.integers(kinds, size=1100)
    draws = np.random.default_rng(5).random(1100)
    assert conformal_ranks(reference, new, seed=5) == pytest.approx(slow(reference, new, draws), abs=1e-12)


def test_ranks_are_uniform_and_unrelated_while_nothing_changes():
    from scipy.stats import kstest

    rng = np.random.default_rng(1)
    ranks = conformal_ranks(rng.integers(2, size=50), rng.integers(2, size=4000))
    assert kstest(ranks, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 0.06
