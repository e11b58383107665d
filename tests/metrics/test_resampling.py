"""A weighted metric is the plain metric of the repeated rows."""

import numpy as np
import pytest
import torch
from calibrant.metrics.resampling import WeightedMetrics, draw_weights, resample
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import Predictions, evaluate
from calibrant.metrics import resampling

DELTAS = (0.7, 0.95)


def make(rows, classes, seed, coarse):
    rng = np.random.default_rng(seed)
    if coarse:
        p = rng.multinomial(10, np.full(classes, 1 / classes), rows) / 10
    else:
        p = rng.dirichlet(np.full(classes, 0.3), rows)
    return Predictions.from_probabilities(p, rng.integers(0, classes, rows))


def weighted(p, n_bins):
    return WeightedMetrics(p, n_bins, DELTAS)


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 999), st.booleans(), st.integers(1, 12))
def test_weights_mean_repetition(rows, classes, seed, coarse, n_bins):
    p = make(rows, classes, seed, coarse)
    drawn = np.random.default_rng(seed).integers(0, rows, rows)
    weights = np.stack([np.bincount(drawn, minlength=rows), np.ones(rows)]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = weighted(p, n_bins)(weights)
    for index, again in enumerate((p.subset(drawn), p)):
        expected = evaluate(again, n_bins, thresholds=DELTAS).values()
        del expected["classwise_ece"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            got = found[name][index]
            if value is None:
                assert np.isnan(got), name
            elif name == "debiased_ece":
                assert got**2 == pytest.approx(value**2, abs=1e-12)  # the root magnifies rounding near 0
            else:
                assert got == pytest.approx(value, abs=1e-9 if name == "smooth_ece" else 1e-12), name


def test_draws_depend_on_the_seed_alone():
    p = make(200, 3, 0, coarse=False)
    first = resample([weighted(p, 10)], 50, seed=4)[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = resample([weighted(p, 10)], 50, seed=4)[0]
    finally:
        torch.set_num_threads(threads)
    other = resample([weighted(p, 10)], 50, seed=5)[0]
    np.testing.assert_array_equal(first["ece"], again["ece"])
    assert not np.array_equal(first["ece"], other["ece"])


def test_every_resample_draws_n_rows(monkeypatch):
    monkeypatch.setattr(resampling, "_BLOCK", 64)
    blocks = [draw() for draw in draw_weights(10, 20, seed=0)]
    assert [len(block) for block in blocks] == [6, 6, 6, 2]
    weights = np.concatenate(blocks)
    assert (weights.sum(axis=1) == 10).all()
    assert len({tuple(row) for row in weights}) > 15
