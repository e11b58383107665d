from itertools import pairwise

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from calibrant.calibration import HistogramBinning, IsotonicCalibration
from calibrant.errors import CalibrantWarning, InvalidInput


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mixed(q, n):
    """One imagined case, spread evenly."""
    return (1 - 1 / (n + 1)) * q + 1 / (n + 1) / q.shape[1]


def test_two_classes_equal_scikit_learn(draw):
    logits, targets = draw(400, 2, temperature=3.0)
    fresh, _ = draw(300, 2, temperature=3.0, seed=9)
    theirs = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(softmax(logits)[:, 1], targets)
    one = theirs.predict(softmax(fresh)[:, 1])
    expected = mixed(np.stack([1 - one, one], axis=1), len(targets))
    np.testing.assert_allclose(IsotonicCalibration().fit(logits, targets).transform(fresh), expected, atol=1e-9)


def test_one_vs_rest_equals_scikit_learn_class_by_class(draw):
    logits, targets = draw(500, 4)
    p = softmax(logits)
    columns = [IsotonicRegression(y_min=0, y_max=1).fit(p[:, k], targets == k).predict(p[:, k]) for k in range(4)]
    q = np.stack(columns, axis=1)
    expected = mixed(q / q.sum(axis=1, keepdims=True), len(targets))
    np.testing.assert_allclose(IsotonicCalibration().fit(logits, targets).transform(logits), expected, atol=1e-9)


def test_ties_get_one_value():
    logits = np.log([[0.7, 0.3], [0.7, 0.3], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8]])
    found = IsotonicCalibration().fit(logits, [0, 0, 1, 1, 0])
    expected = mixed(np.array([[2 / 3, 1 / 3]] * 3 + [[1 / 2, 1 / 2]] * 2), 5)
    np.testing.assert_allclose(found.transform(logits), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning])
def test_top_label_keeps_the_predicted_class_and_the_order_of_the_rest(draw, kind):
    logits, targets = draw(500, 4, temperature=4.0)
    found = kind(mode="top-label").fit(logits, targets)
    fresh, _ = draw(2000, 4, temperature=4.0, seed=5)
    q = found.transform(fresh)
    assert (q.argmax(axis=1) == fresh.argmax(axis=1)).all()
    assert (np.diff(np.take_along_axis(q, np.argsort(fresh, axis=1), axis=1), axis=1) >= -1e-15).all()


def test_top_label_confidence_is_the_isotonic_curve(draw):
    logits, targets = draw(600, 2, temperature=3.0)
    p = softmax(logits)
    right = p.argmax(axis=1) == targets
    theirs = IsotonicRegression(y_min=0, y_max=1).fit(p.max(axis=1), right).predict(p.max(axis=1))
    expected = (1 - 1 / 601) * np.maximum(theirs, 0.5 + 1e-6) + 1 / 601 / 2
    mine = IsotonicCalibration(mode="top-label").fit(logits, targets).transform(logits)
    np.testing.assert_allclose(mine.max(axis=1), expected, atol=1e-9)


def test_histogram_equals_a_loop(draw):
    logits, targets = draw(500, 2)
    p = softmax(logits)[:, 1]
    ranked = np.sort(p)
    edges = np.array([0.0, *(ranked[int(np.ceil(500 * j / 10)) - 1] for j in range(1, 10)), 1.0])
    values = np.empty(500)
    for low, high in pairwise(edges):
        inside = (p > low) & (p <= high)
        values[inside] = targets[inside].mean() if inside.any() else np.nan
    found = HistogramBinning(n_bins=10).fit(logits, targets)
    np.testing.assert_allclose(found.transform(logits)[:, 1], (1 - 1 / 501) * values + 1 / 1002, rtol=1e-12)


@pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning])
@pytest.mark.parametrize("mode", ["one-vs-rest", "top-label"])
def test_no_probability_is_zero(draw, kind, mode):
    logits, targets = draw(60, 3, temperature=8.0)
    q = kind(mode=mode).fit(logits, targets).transform(50 * logits)
    assert q.min() >= 1 / 61 / 3 * (1 - 1e-12)
    np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning])
def test_a_class_without_a_case_keeps_its_probabilities(draw, kind):
    logits, targets = draw(400, 4)
    keep = targets != 3
    with pytest.warns(CalibrantWarning, match=r"1 of 4 classes \(first: 3\) without a case"):
        found = kind().fit(logits[keep], targets[keep])
    assert found.curves_[3] is None
    assert np.isfinite(found.transform(logits)).all()


@pytest.mark.parametrize("mode", ["one-vs-rest", "top-label"])
@pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning])
def test_cases_that_are_all_right_are_said(draw, kind, mode):
    logits, _ = draw(12, 3)
    with pytest.warns(CalibrantWarning, match="every case is classified correctly"):
        found = kind(mode=mode).fit(logits, logits.argmax(axis=1))
    assert len(found.summary_.notes) == 1
    wrong = np.where(np.arange(12) == 0, (logits.argmax(axis=1) + 1) % 3, logits.argmax(axis=1))
    assert kind(mode=mode).fit(logits, wrong).summary_.notes == ()


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (IsotonicCalibration, {"mode": "all"}),
        (HistogramBinning, {"n_bins": 0}),
    ],
)
def test_parameters_out_of_range(kind, parameters):
    with pytest.raises(InvalidInput, match=f"{next(iter(parameters))} must"):
        kind(**parameters)
