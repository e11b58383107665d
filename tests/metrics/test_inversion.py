"""Intervals of calibration errors: what they hold, and how often; benchmarks/interval_coverage.py counts that fully."""

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.inversion import calibration_errors

ERRORS = ("ece", "ece_equal_mass", "smooth_ece", "ks", "ece@0.8", "ece_inside@0.8")


def model(rows, classes=3, truth=1.0, seed=0, scale=2.5, dtype=np.float64):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * scale
    powers = np.exp(truth * logits)
    shares = powers / powers.sum(axis=1, keepdims=True)
    targets = (shares.cumsum(axis=1) < rng.random(rows)[:, None]).sum(axis=1).clip(max=classes - 1)
    return Predictions.from_logits(logits.astype(dtype), targets)


def found(p, seed=0, n_resamples=100, level=0.95):
    return calibration_errors(p, 15, [0.8], n_resamples=n_resamples, seed=seed, level=level)


def test_a_calibrated_model_is_left_at_zero_about_as_often_as_the_interval_says():
    holds = dict.fromkeys(ERRORS, 0)
    for seed in range(40):
        for name, each in found(model(300, seed=seed), seed).items():
            holds[name] += each.low == 0.0
    # 97.5 % of 40 is 39; fewer than 34 has a chance below 1 in 10,000.
    assert all(count >= 34 for count in holds.values()), holds


def test_an_overconfident_model_is_not():
    for name, each in found(model(4000, truth=0.6)).items():
        assert 0.0 < each.low < each.centre < each.high, name


def test_the_printed_value_lies_inside_its_interval():
    for seed, (rows, classes, truth) in enumerate([(1, 2, 1.0), (5, 3, 1.0), (60, 3, 0.5), (300, 20, 1.0)]):
        result = evaluate(model(rows, classes, truth, seed), thresholds=(0.8,), n_resamples=40)
        values = result.values()
        for name, (low, high) in result.intervals.items():
            assert low <= values[name] <= high, name
        assert not {"mce", "classwise_ece", "debiased_ece"} & result.intervals.keys()


def test_a_local_error_is_held():
    """Calibrated but for confidences above 0.99, of which half are right: lower ends lay above the truth."""
    truth = {"ece": 0.0099, "ece_equal_mass": 0.0099}
    missed = dict.fromkeys(truth, 0)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        top = rng.uniform(0.5, 1.0, 20_000)
        right = rng.random(20_000) < np.where(top > 0.99, 0.5, top)
        p = Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))
        ranges = calibration_errors(p, 15, [], n_resamples=100, seed=seed, level=0.95)
        for name, value in truth.items():
            missed[name] += not ranges[name].low <= value <= ranges[name].high
    # With one shape of the gap, the interval missed in 30 and 48 % of 40 draws.
    assert all(count <= 1 for count in missed.values()), missed


def test_few_errors_are_held_as_exactly_as_counts_allow():
    """All 200 sure cases right: the exact bound of the error rate is 0.0183; 1 of 50 wrong: at least 0.0005."""
    sure = np.full(200, 1.0 - 1e-6)
    p = Predictions.from_probabilities(np.stack([sure, 1 - sure], axis=1), np.zeros(200, int))
    assert 0.015 < found(p, n_resamples=400)["ece"].high < 0.022
    p = Predictions.from_probabilities(np.stack([sure[:50], 1 - sure[:50]], axis=1), (np.arange(50) == 0).astype(int))
    assert 0.0 < found(p, n_resamples=400)["ece"].low < 0.002


def saturated(rows, accuracy, seed):
    """Confidences above 0.9999, of which fewer are right."""
    rng = np.random.default_rng(seed)
    top = 1.0 - 1e-4 * rng.random(rows)
    wrong = (rng.random(rows) >= accuracy).astype(int)
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), wrong)


@pytest.mark.parametrize(("rows", "accuracy"), [(200, 0.995), (200, 0.985), (2000, 0.999), (50, 0.9)])
def test_no_interval_of_a_calibration_error_has_no_width_or_claims_more_than_it_holds(rows, accuracy):
    """The debiased error had intervals of 0 to 0; whatever has one must hold the truth in most of 20 draws."""
    truth = 1.0 - 0.5e-4 - accuracy
    held = {}
    for seed in range(20):
        intervals = evaluate(saturated(rows, accuracy, seed), n_resamples=40, seed=seed).intervals
        for name in ("ece", "ece_equal_mass", "smooth_ece", "debiased_ece", "ks"):
            if name in intervals:
                low, high = intervals[name]
                assert low < high, name
                held.setdefault(name, []).append(low <= truth <= high)
    assert all(sum(each) >= 15 for each in held.values()), held


def test_equal_models_get_no_verdict_from_the_debiased_error():
    """Two models with the same confidences that err in different rows, as often in the long run."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        top = 1.0 - 1e-4 * rng.random(200)
        models = []
        for _ in range(2):
            right = np.where(rng.random(200) < 0.99, top, 1.0 - top)
            models.append(Predictions.from_probabilities(np.stack([right, 1.0 - right], axis=1), np.zeros(200, int)))
        row = compare(*models, n_resamples=40)["debiased_ece"]
        assert (row.interval, row.verdict) == (None, "cannot tell")
        assert row.difference == pytest.approx(row.b - row.a)


def test_a_few_right_rows_prove_little():
    p = Predictions.from_probabilities([[0.98, 0.02]] * 10, [0] * 10)
    # An accuracy of 0.8 shows ten right rows of ten in 11 % of draws, so a gap of 0.18 cannot be ruled out.
    assert found(p, n_resamples=400)["ece@0.8"].high > 0.18


def test_errors_of_sets_of_fewer_than_ten_rows_have_no_range_and_their_differences_none_either():
    p = Predictions.from_probabilities([[0.98, 0.02]] * 9 + [[0.6, 0.4]] * 30, [0] * 30 + [1] * 9)
    assert not {"ece@0.8", "ece_inside@0.8"} & found(p, n_resamples=20).keys()
    few = compare(p, p, thresholds=[0.8], n_resamples=20)
    assert all(few[name].interval is None for name in ("ece@0.8", "ece_inside@0.8"))
    assert all(few[name].verdict == "cannot tell" for name in ("ece@0.8", "ece_inside@0.8"))


def test_gaps_of_both_signs_are_held():
    # Half of the rows are 0.15 too sure, half as much too modest: the gaps cancel in the mean, not in the ECE.
    rng = np.random.default_rng(0)
    top = np.repeat([0.7, 0.9], 3000)
    right = rng.random(6000) < np.repeat([0.85, 0.75], 3000)
    p = Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))
    ranges = found(p)
    assert ranges["ece"].low < 0.15 < ranges["ece"].high
    assert ranges["ks"].low < 0.075 < ranges["ks"].high


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_confidence_is_a_wider_interval_and_a_seed_repeats(dtype):
    p = model(500, truth=0.6, dtype=dtype)
    narrow, wide = found(p, level=0.5), found(p, level=0.99)
    assert wide == found(p, level=0.99)
    for name in ("ece", "ks", "smooth_ece"):
        assert wide[name].low < narrow[name].low < narrow[name].high < wide[name].high


def test_ties_are_not_torn_apart():
    # All rows have one confidence and are right as often as it says: no cut between wrong and right rows may show.
    p = Predictions.from_probabilities(np.tile([0.7, 0.3], (1000, 1)), [0] * 700 + [1] * 300)
    assert {name: each.low for name, each in found(p).items()} == dict.fromkeys(found(p), 0.0)
    assert found(p)["ks"].high < 0.05
