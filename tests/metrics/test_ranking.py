"""AUROC, AURC, KS and the accuracy-coverage curve against slow references."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant import metrics as m


def make(confidences, rights):
    top = np.asarray(confidences, dtype=np.float64)
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(rights, 0, 1))


rows = st.lists(st.tuples(st.sampled_from([0.55, 0.6, 0.7, 0.85, 0.9, 1.0]), st.booleans()), min_size=1, max_size=25)


@given(rows)
def test_auroc_counts_pairs(pairs):
    right = [c for c, hit in pairs if hit]
    wrong = [c for c, hit in pairs if not hit]
    found = m.auroc(make(*zip(*pairs, strict=True)))
    if not right or not wrong:
        assert found is None
        return
    wins = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert found == pytest.approx(sum(wins) / len(wins), abs=1e-14)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0.6, 0.7, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_all_orders_of_ties(pairs):
    areas = []
    for order in permutations(pairs):
        if [c for c, _ in order] == sorted((c for c, _ in order), reverse=True):
            errors = np.cumsum([not hit for _, hit in order])
            areas.append(np.mean(errors / np.arange(1, len(order) + 1)))
    assert m.aurc(make(*zip(*pairs, strict=True))) == pytest.approx(np.mean(areas), abs=1e-13)


@given(rows)
def test_ks_is_the_largest_cumulative_gap(pairs):
    gaps = [abs(sum(c - hit for c, hit in pairs if c <= t)) / len(pairs) for t, _ in pairs]
    assert m.ks_calibration_error(make(*zip(*pairs, strict=True))) == pytest.approx(max(gaps), abs=1e-14)


@given(rows, st.booleans())
def test_accuracy_coverage_is_what_thresholds_keep(pairs, weighted):
    weights = np.arange(len(pairs)) % 3 + 0.5 if weighted else np.ones(len(pairs))
    curve = m.accuracy_coverage(make(*zip(*pairs, strict=True)), weights=weights if weighted else None)
    assert curve.threshold.tolist() == sorted({c for c, _ in pairs}, reverse=True)
    for threshold, coverage, accuracy in zip(curve.threshold, curve.coverage, curve.accuracy, strict=True):
        kept = sum(w for (c, _), w in zip(pairs, weights, strict=True) if c >= threshold)
        right = sum(w for (c, hit), w in zip(pairs, weights, strict=True) if c >= threshold and hit)
        assert coverage == pytest.approx(kept / weights.sum())
        assert accuracy == pytest.approx(right / kept)


def test_accuracy_coverage_leaves_out_rows_without_weight():
    curve = m.accuracy_coverage(make([0.9, 0.8, 0.7], [True, False, True]), weights=[1, 0, 3])
    assert curve.threshold.tolist() == [0.9, 0.7]
    assert (curve.coverage.tolist(), curve.accuracy.tolist()) == ([0.25, 1.0], [1.0, 1.0])


def test_perfect_order_and_no_order():
    assert m.auroc(make([0.9, 0.8, 0.6], [True, True, False])) == 1.0
    assert m.auroc(make([0.9, 0.9], [True, False])) == 0.5
    assert m.aurc(make([0.9, 0.8], [True, True])) == 0.0
    assert m.aurc(make([0.9, 0.8], [False, False])) == 1.0
    assert m.aurc(make([0.9, 0.8, 0.7], [True, True, False])) == pytest.approx(1 / 9)
