"""Rows by confidence: one sort that carries the correctness, walked in parts."""

import numpy as np
import pytest
from calibrant.metrics.ranking import Ranking
from calibrant.metrics.tops import SortedTops, Tops

from calibrant.metrics import tops as module


def make(rows, dtype, seed=0, levels=None):
    rng = np.random.default_rng(seed)
    confidence = rng.random(rows) if levels is None else rng.integers(1, levels + 1, rows) / levels
    return Tops(confidence.astype(dtype), rng.random(rows) < confidence, "float32" if dtype == "f4" else "float64")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("levels", [None, 1, 7])
def test_the_sort_keeps_confidence_and_correctness_together(dtype, levels):
    tops = make(500, dtype, levels=levels)
    groups = list(SortedTops(tops).groups())
    confidence, size, wrong = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    values = np.unique(tops.confidence)
    assert confidence.tolist() == values.tolist()
    assert size.tolist() == [int((tops.confidence == value).sum()) for value in values]
    assert wrong.tolist() == [int((~tops.correct[tops.confidence == value]).sum()) for value in values]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("levels", [None, 1, 3, 40])
def test_parts_of_a_walk_do_not_show(monkeypatch, dtype, levels):
    tops = make(997, dtype, levels=levels)
    wrong = int((~tops.correct).sum())
    whole = SortedTops(tops)
    expected = Ranking.of(whole, wrong), whole.equal_mass_bins(15)
    monkeypatch.setattr(module, "BLOCK", 10)
    rows = SortedTops(tops)
    found = Ranking.of(rows, wrong), rows.equal_mass_bins(15)
    assert (found[0].auroc, found[0].aurc, found[0].ks) == pytest.approx(
        (expected[0].auroc, expected[0].aurc, expected[0].ks), abs=1e-14
    )
    assert found[1].count.tolist() == expected[1].count.tolist()
    np.testing.assert_allclose(found[1].confidence_sum, expected[1].confidence_sum, rtol=1e-14)


def test_bins_of_sorted_rows_hold_their_upper_edge():
    tops = Tops(np.asarray([0.1, 0.2, 0.2, 0.3, 1.0]), np.asarray([True, False, True, True, False]), "float64")
    found = SortedTops(tops).bins(np.asarray([0.0, 0.2, 0.3, 1.0]))
    assert found.count.tolist() == [3, 1, 1]
    assert found.correct_sum.tolist() == [2, 1, 0]
    np.testing.assert_allclose(found.confidence_sum, [0.5, 0.3, 1.0])
