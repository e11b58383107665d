"""Rows by confidence: groups, bins and walks against plain NumPy."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.metrics.confidences import Ranked, RowConfidences


def make(rows, dtype, seed=0, levels=None):
    rng = np.random.default_rng(seed)
    confidence = rng.random(rows) if levels is None else rng.integers(1, levels + 1, rows) / levels
    return confidence.astype(dtype), rng.random(rows) < confidence


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("levels", [None, 1, 7])
def test_groups_of_equal_confidence_keep_their_rows(dtype, levels, weighted):
    confidence, correct = make(500, dtype, levels=levels)
    weights = np.arange(500) % 3 / 1.5 if weighted else np.ones(500)
    ranked = Ranked.of_rows(confidence, correct, weights if weighted else None)
    values = np.unique(confidence[weights > 0])
    assert ranked.confidence.tolist() == values.tolist()
    for place, value in enumerate(values):
        inside = confidence == value
        assert ranked.size[0, place] == pytest.approx(weights[inside].sum())
        assert ranked.wrong[0, place] == pytest.approx(weights[inside & ~correct].sum())


def test_bins_of_ranked_rows_hold_their_upper_edge():
    confidence, correct = np.asarray([0.1, 0.2, 0.2, 0.3, 1.0]), np.asarray([True, False, True, True, False])
    bins = Ranked.of_rows(confidence, correct).bins(np.asarray([0.0, 0.2, 0.3, 1.0]))
    assert bins.count.tolist() == [[3, 1, 1]]
    assert bins.correct_sum.tolist() == [[2, 1, 0]]
    np.testing.assert_allclose(bins.confidence_sum, [[0.5, 0.3, 1.0]])


@pytest.mark.parametrize("levels", [None, 1000])
def test_a_walk_in_several_steps_gives_the_plain_numbers(levels):
    confidence, correct = make(600_000, "f8", levels=levels)
    result = evaluate(Predictions.from_binary(0.5 + confidence / 2, correct.astype(int), kind="probabilities"))
    stated = 0.5 + confidence / 2
    order = np.argsort(stated, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(stated[order])), len(order) - 1)
    gaps = np.cumsum((stated - correct)[order])[ends]
    assert result.ks == pytest.approx(np.abs(gaps).max() / len(order), rel=1e-10)
    ranks = np.searchsorted(np.sort(stated), stated, "left") + np.searchsorted(np.sort(stated), stated, "right")
    right = int(correct.sum())
    area = (ranks[correct].sum() / 2 - right**2 / 2) / (right * (len(order) - right))
    assert result.auroc == pytest.approx(area, rel=1e-10)


def test_rows_without_order_and_ranked_rows_have_the_same_bins():
    confidence, correct = make(1000, "f4", levels=30)
    rows = RowConfidences(confidence, correct, 15, "float32")
    for part in (rows, rows.above(0.7)):
        ranked = part.ranked.bins(part.bins().edges)
        np.testing.assert_array_equal(ranked.count[0], part.bins().count)
        np.testing.assert_allclose(ranked.confidence_sum[0], part.bins().confidence_sum, rtol=1e-12)
