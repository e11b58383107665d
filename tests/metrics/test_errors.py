"""Calibration errors against slow references written from their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant import metrics as m
from calibrant.errors import InvalidInput


@st.composite
def predictions(draw):
    """Random shapes with ties, edge confidences, one class, one row."""
    rows, classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    style = draw(st.sampled_from(["smooth", "coarse", "certain"]))
    if style == "certain":
        probabilities = np.eye(classes)[rng.integers(0, classes, rows)]
    elif style == "coarse":
        probabilities = rng.multinomial(20, np.full(classes, 1 / classes), rows) / 20
    else:
        probabilities = rng.dirichlet(np.full(classes, 0.4), rows)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    return Predictions.from_probabilities(probabilities, rng.integers(0, classes, rows))


def bin_of(value, n_bins):
    """The bin (lo, hi] of a value, by looking at each."""
    for index in range(n_bins):
        if index / n_bins < value <= (index + 1) / n_bins:
            return index
    return 0 if value <= 0 else n_bins - 1


def binned(values, hits, bins):
    """Rows of each bin: (value, hit)."""
    cells = {}
    for value, hit, index in zip(values, hits, bins, strict=True):
        cells.setdefault(index, []).append((float(value), float(hit)))
    return cells.values()


def mean_gap(cell):
    return abs(math.fsum(v for v, _ in cell) / len(cell) - math.fsum(h for _, h in cell) / len(cell))


def ece_reference(values, hits, n_bins):
    cells = binned(values, hits, [bin_of(v, n_bins) for v in values])
    return math.fsum(len(cell) / len(values) * mean_gap(cell) for cell in cells)


def equal_mass_reference(values, n_bins):
    """Bin of each row: ranks cut into almost equal parts, a cut moved up to the end of a tie."""
    parts = np.array_split(np.sort(values), min(n_bins, len(values)))
    tops = sorted({part[-1] for part in parts})
    return [next(i for i, top in enumerate(tops) if v <= top) for v in values]


@given(predictions(), st.integers(1, 20))
def test_ece_and_mce(p, n_bins):
    values, hits = p.probabilities.max(axis=1), p.probabilities.argmax(axis=1) == p.targets
    assert m.expected_calibration_error(p, n_bins) == pytest.approx(ece_reference(values, hits, n_bins), abs=1e-14)
    cells = binned(values, hits, [bin_of(v, n_bins) for v in values])
    assert m.maximum_calibration_error(p, n_bins) == pytest.approx(max(map(mean_gap, cells)), abs=1e-13)


@given(predictions(), st.integers(1, 20))
def test_classwise_error(p, n_bins):
    per_class = [ece_reference(p.probabilities[:, k], p.targets == k, n_bins) for k in range(p.n_classes)]
    assert m.classwise_calibration_error(p, n_bins) == pytest.approx(math.fsum(per_class) / p.n_classes, abs=1e-14)


@given(predictions(), st.integers(1, 20))
def test_equal_mass_and_debiased(p, n_bins):
    cells = binned(p.confidence, p.correct, equal_mass_reference(p.confidence, n_bins))
    expected = math.fsum(len(cell) / len(p) * mean_gap(cell) for cell in cells)
    assert m.equal_mass_calibration_error(p, n_bins) == pytest.approx(expected, abs=1e-14)
    square = 0.0
    for cell in cells:
        if len(cell) > 1:
            accuracy = sum(h for _, h in cell) / len(cell)
            square += len(cell) / len(p) * (mean_gap(cell) ** 2 - accuracy * (1 - accuracy) / (len(cell) - 1))
    assert m.debiased_calibration_error(p, n_bins) ** 2 == pytest.approx(max(square, 0.0), abs=1e-13)


@given(predictions())
def test_proper_scores(p):
    onehot = np.eye(p.n_classes)[p.targets]
    assert m.brier_score(p) == pytest.approx(((p.probabilities - onehot) ** 2).sum(axis=1).mean(), abs=1e-14)
    chosen = p.probabilities[np.arange(len(p)), p.targets]
    expected = math.inf if (chosen == 0).any() else -np.log(chosen).mean()
    assert m.negative_log_likelihood(p) == pytest.approx(expected, abs=1e-13)
    assert m.accuracy(p) + m.error_rate(p) == pytest.approx(1.0)
    assert m.accuracy(p) == p.correct.mean()


@settings(max_examples=30)
@given(predictions(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(p, random):
    order = list(range(len(p)))
    random.shuffle(order)
    mixed = p.subset(order)
    for metric in (
        m.expected_calibration_error,
        m.equal_mass_calibration_error,
        m.classwise_calibration_error,
        m.debiased_calibration_error,
        m.aurc,
        m.ks_calibration_error,
        m.smooth_calibration_error,
    ):
        assert metric(mixed) == pytest.approx(metric(p), abs=1e-12)


def test_confidence_one_is_in_the_last_bin():
    # {.95 right, 1.0 wrong}: an extra bin for 1.0 would give .525.
    p = Predictions.from_probabilities([[0.95, 0.05], [1.0, 0.0]], [0, 1])
    assert m.expected_calibration_error(p, 10) == pytest.approx(0.475, abs=1e-15)


def test_fifteen_bins_are_fifteen():
    # In 14 bins 0.65 and 0.67 share one and cancel; the edge 10/15 parts them.
    p = Predictions.from_probabilities([[0.65, 0.35], [0.67, 0.33]], [0, 1])
    assert m.expected_calibration_error(p, 15) == pytest.approx((0.35 + 0.67) / 2)


def test_the_number_of_classes_comes_from_the_columns_not_from_the_labels():
    p = Predictions.from_probabilities([[0.2, 0.3, 0.5], [0.1, 0.2, 0.7]], [0, 1])
    assert p.n_classes == 3
    assert m.classwise_calibration_error(p, 1) == pytest.approx((0.35 + 0.25 + 0.6) / 3)


def test_large_sums_lose_nothing():
    # A float32 sum of 0.45 stalls; 200 001 chunks-worth of rows must give the exact mean gap.
    p = Predictions.from_probabilities(np.tile(np.float32([0.45, 0.55]), (400_000, 1)), np.zeros(400_000, int))
    assert m.expected_calibration_error(p, 10) == pytest.approx(float(np.float32(0.55)), rel=1e-13)


@pytest.mark.parametrize(
    "metric",
    [
        m.expected_calibration_error,
        m.equal_mass_calibration_error,
        m.maximum_calibration_error,
        m.debiased_calibration_error,
        m.classwise_calibration_error,
    ],
)
def test_fifteen_bins_unless_told(metric):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 300)
    # Drawn as predicted: the gaps have both signs, so that other bins give another error.
    targets = (rng.random((300, 1)) > probabilities.cumsum(axis=1)[:, :-1]).sum(axis=1)
    p = Predictions.from_probabilities(probabilities, targets)
    assert metric(p) == metric(p, 15)
    assert metric(p) not in (metric(p, 14), metric(p, 16))


@pytest.mark.parametrize(
    "metric",
    [
        *(m.expected_calibration_error, m.equal_mass_calibration_error, m.maximum_calibration_error),
        *(m.debiased_calibration_error, m.classwise_calibration_error, m.smooth_calibration_error),
        *(m.ks_calibration_error, m.auroc, m.aurc, m.accuracy_coverage, m.accuracy, m.error_rate),
        *(m.negative_log_likelihood, m.brier_score, m.confident_set, m.noise_floor, m.reliability_bins),
        m.evaluate_classes,
    ],
)
def test_a_bare_array_is_refused_in_one_line(metric):
    """The habit from elsewhere is metric(probabilities, targets): the second would be taken for a number of bins."""
    arguments = [np.full((3, 2), 0.5), np.zeros(3, int)][: metric.__code__.co_argcount]
    with pytest.raises(
        InvalidInput, match=r"predictions must be Predictions, got ndarray\. Make them with Predictions"
    ):
        metric(*arguments)
