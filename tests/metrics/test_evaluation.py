"""`evaluate` and its result."""

import json
import math

import numpy as np
import pytest

import calibrant
from calibrant import Evaluation, Predictions, evaluate
from calibrant import metrics as m
from calibrant.errors import InvalidInput
from calibrant.metrics.intervals import exact_interval


def calibrated(rows, seed=0, power=1.0):
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.5, 1.0, rows)
    right = rng.random(rows) < top**power
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))


def test_the_json_has_the_promised_keys_as_fractions():
    content = json.loads(evaluate(calibrated(400)).to_json())
    assert {
        *("n", "classes", "test_error", "nll", "brier", "ece", "ece_equal_mass", "mce", "classwise_ece", "smooth_ece"),
        *("debiased_ece", "ks", "auroc", "aurc", "noise_floor", "thresholds"),
    } <= content.keys()
    assert [row["delta"] for row in content["thresholds"]] == [0.95, 0.99]
    assert content["thresholds"][0].keys() == {"delta", "share", "accuracy", "ece", "ece_inside"}
    assert "intervals" not in content
    assert 0 < content["test_error"] < 1
    assert (content["n"], content["classes"], content["n_bins"]) == (400, 2, 15)


def test_each_value_is_its_function():
    p = calibrated(300)
    result = evaluate(p, n_bins=12, thresholds=(0.9,))
    assert result.ece == m.expected_calibration_error(p, 12)
    assert result.ece_equal_mass == m.equal_mass_calibration_error(p, 12)
    assert result.mce == m.maximum_calibration_error(p, 12)
    assert result.classwise_ece == m.classwise_calibration_error(p, 12)
    assert result.debiased_ece == m.debiased_calibration_error(p, 12)
    assert result.smooth_ece == m.smooth_calibration_error(p)
    assert (result.ks, result.auroc, result.aurc) == (m.ks_calibration_error(p), m.auroc(p), m.aurc(p))
    assert (result.test_error, result.nll, result.brier) == (
        m.error_rate(p),
        m.negative_log_likelihood(p),
        m.brier_score(p),
    )
    assert (result.noise_floor, result.noise_floor_95) == (m.noise_floor(p, 12).mean, m.noise_floor(p, 12).upper)
    assert result.thresholds == (m.confident_set(p, 0.9, n_bins=12),)


@pytest.mark.parametrize("bootstrap", [0, 20])
def test_json_round_trip_also_where_values_are_not_defined(bootstrap):
    sure_and_wrong = Predictions.from_probabilities([[1.0, 0.0], [0.6, 0.4]], [1, 1])
    for p in (calibrated(50), sure_and_wrong):
        result = evaluate(p, n_resamples=bootstrap)
        assert Evaluation.from_dict(json.loads(result.to_json())) == result
    assert (result.nll, result.auroc) == (math.inf, None)
    assert json.loads(result.to_json())["nll"] is None
    with pytest.raises(InvalidInput, match="content"):
        Evaluation.from_dict({"n": 3})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("n", "4"), ("ece", "small"), ("auroc", []), ("nll", {}), ("classes", 2.5), ("level", "high")),
        *(("thresholds", [{"delta": "0.9"}]), ("thresholds", 3), ("intervals", {"ece": [1, "x"]}), ("more", 1)),
        ("intervals", {"ece": [0.1]}),
    ],
)
def test_right_names_with_wrong_types_are_refused_in_one_line(key, value):
    content = evaluate(calibrated(40), n_resamples=20).to_dict()
    assert Evaluation.from_dict(content).n == 40
    with pytest.raises(InvalidInput, match="content must be"):
        Evaluation.from_dict({**content, key: value})


def test_the_table_is_in_percent():
    p = Predictions.from_probabilities([[0.95, 0.05], [1.0, 0.0]], [0, 1])
    text = evaluate(p, thresholds=(0.95, 0.999)).table()
    assert "2 rows, 2 classes, 15 bins" in text
    lines = {line[:25].strip(): line[25:].strip() for line in text.splitlines()}
    assert lines["ECE"] == "47.50 %"
    assert lines["share, ≥ 99.9 % sure"] == "50.00 %"
    assert lines["NLL"] == "inf"
    assert "interval" not in text
    with_intervals = evaluate(calibrated(60), n_resamples=30, level=0.9).table()
    assert "90 % interval" in with_intervals
    assert " % to " in with_intervals


def test_intervals_hold_the_value_and_repeat_with_their_seed():
    p = calibrated(500, power=2.0)
    result = evaluate(p, n_resamples=200, seed=3)
    assert result == evaluate(p, n_resamples=200, seed=3)
    assert result.intervals != evaluate(p, n_resamples=200, seed=4).intervals
    assert result.level == 0.95
    for name in ("test_error", "nll", "brier", "auroc", "aurc", "ks", "share@0.95"):
        low, high = result.intervals[name]
        assert low < result.values()[name] < high, name
    narrow = evaluate(p, n_resamples=200, seed=3, level=0.5).intervals
    assert result.intervals["brier"][0] < narrow["brier"][0] < narrow["brier"][1] < result.intervals["brier"][1]


def test_an_interval_that_is_mostly_undefined_is_left_out():
    p = Predictions.from_probabilities([[0.9, 0.1]] * 5, [0] * 5)
    result = evaluate(p, n_resamples=20)
    assert "auroc" not in result.intervals
    assert "accuracy@0.95" not in result.intervals
    # No resample holds a confident row or a mistake, but five rows are no proof: 1 - 0.025 ** (1 / 5).
    assert result.intervals["share@0.95"] == pytest.approx((0.0, 1 - 0.025**0.2))
    assert result.intervals["test_error"] == result.intervals["share@0.95"]
    assert evaluate(p, n_resamples=20, level=0.5).intervals["test_error"][1] == pytest.approx(1 - 0.25**0.2)


def test_shares_of_rows_have_the_exact_interval():
    p = Predictions.from_probabilities([[0.98, 0.02]] * 4 + [[0.6, 0.4]] * 6, [0] * 7 + [1] * 3)
    found = evaluate(p, thresholds=(0.95,), n_resamples=20).intervals
    for name, counts in {"test_error": (3, 10), "share@0.95": (4, 10), "accuracy@0.95": (4, 4)}.items():
        assert found[name] == pytest.approx(tuple(map(float, exact_interval(*counts))), abs=1e-12), name


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_resamples": -1}, "n_resamples must"),
        ({"n_resamples": 2.5}, "n_resamples must"),
        ({"n_resamples": 1}, "n_resamples must be 0 for none, or at least 20, got 1"),
        ({"n_resamples": 19}, "at least 20, got 19"),
        ({"level": 95}, "0.95, not 95"),
        ({"level": 0.0}, "level must"),
        ({"level": 1.0}, "level must"),
        ({"level": "x"}, "level must"),
        ({"thresholds": "0.95"}, "thresholds must"),
        ({"thresholds": (95,)}, "0.95, not 95"),
        ({"n_bins": 0}, "n_bins must be"),
        ({"seed": True}, "seed must"),
        ({"n_resamples": True}, "n_resamples must"),
        ({"seed": -1}, "seed must"),
        ({"thresholds": 0.95}, r"thresholds must be a sequence of numbers, got 0.95. One is written \(0.95,\)"),
    ],
)
def test_bad_options_are_refused_before_work_begins(options, match):
    with pytest.raises(InvalidInput, match=match):
        evaluate(calibrated(10), **options)


def test_a_bare_array_is_refused():
    with pytest.raises(InvalidInput, match=r"be Predictions"):
        evaluate(np.eye(3))


def test_one_row():
    result = evaluate(Predictions.from_probabilities([[1.0, 0.0]], [0]), n_resamples=20)
    assert (result.test_error, result.ece, result.nll, result.brier, result.aurc) == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert result.auroc is None


def test_public_names():
    assert calibrant.evaluate is m.evaluate
    for name in m.__all__:
        assert getattr(m, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = m.nothing


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_set_that_was_not_read_yet_gives_the_same_and_keeps_nothing(tmp_path, kind):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(700, 5))
    if kind == "probabilities":
        scores = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    p = getattr(Predictions, f"from_{kind}")(scores.astype(np.float32), rng.integers(0, 5, 700))
    p.save(tmp_path / "p.npz")
    unread = Predictions.load(tmp_path / "p.npz", mmap=True)
    found, expected = evaluate(unread).values(), evaluate(p).values()
    assert found == pytest.approx(expected, abs=1e-14)
    assert "_rows" not in vars(unread)
