"""`compare`: paired differences and verdicts."""

import json

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics.model_comparison import judge, rests_on_few


def model(rows=1500, sharpness=1.0, seed=0, **more):
    """Logits whose softmax is calibrated at sharpness 1."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 3)) * 2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    targets = (rng.random(rows)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=2)
    return Predictions.from_logits(logits * sharpness, targets, **more)


def test_an_overconfident_model_is_worse_and_sharpening_does_not_change_its_error():
    result = compare(model(), model(sharpness=3.0), n_resamples=200)
    assert result["ece"].verdict == "worse"
    assert result["nll"].verdict == "worse"
    assert result["share@0.95"].verdict == "better"  # more rows above the threshold, whatever they are worth
    assert result["accuracy@0.95"].verdict == "worse"
    assert result["test_error"].verdict == "cannot tell"
    ends = result["test_error"].interval  # no row differs: in at most about 3.7 of 1,500 cases does either fail alone
    assert ends == pytest.approx((-3.7 / 1500, 3.7 / 1500), rel=0.01)
    back = compare(model(sharpness=3.0), model(), n_resamples=200)
    assert back["ece"].verdict == "better"
    assert back["ece"].difference == pytest.approx(-result["ece"].difference)


def test_differences_are_those_of_the_evaluations():
    a, b = model(), model(sharpness=1.3)
    result = compare(a, b, n_bins=7, thresholds=(0.8,), n_resamples=50)
    for name, value in evaluate(a, n_bins=7, thresholds=(0.8,)).values().items():
        row = result[name]
        assert row.a == value
        assert row.difference == row.b - value
        if row.interval is not None:
            assert row.interval[0] <= row.difference <= row.interval[1]
    printed = {"test_error", "nll", "brier", "auroc", "aurc", "share@0.8", "accuracy@0.8"}
    assert {row.name for row in result.rows if row.interval is not None} == printed


def test_unless_told_it_evaluates_as_evaluate_does_and_intervals_have_95_percent():
    a, b = model(300), model(300, sharpness=1.3)
    result = compare(a, b, n_resamples=50)
    assert {row.name: row.a for row in result.rows} == evaluate(a).values()
    assert result.rows == compare(a, b, n_resamples=50, level=0.95).rows


def test_equal_models_cannot_be_told_apart():
    assert {row.verdict for row in compare(model(), model(), n_resamples=50).rows} == {"cannot tell"}


def test_pairing_makes_intervals_narrow():
    a, b = model(), model(sharpness=1.2)
    low, high = compare(a, b, n_resamples=200)["nll"].interval
    alone = evaluate(a, n_resamples=200).intervals["nll"]
    assert high - low < 0.5 * (alone[1] - alone[0])


def test_a_handful_of_confident_rows_decides_nothing():
    # Three of three right has no spread under resampling; it proves little.
    top = np.r_[np.full(3, 0.97), np.full(97, 0.6)]
    right = np.r_[np.full(3, True), np.arange(97) < 60]
    a = Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))
    b = Predictions.from_probabilities(np.full((100, 2), 0.5), np.where(right, 0, 1))
    c = Predictions.from_probabilities(np.tile([0.98, 0.02], (100, 1)), np.where(right, 0, 1))
    assert compare(c, a, n_resamples=50)["accuracy@0.95"].verdict == "cannot tell"
    assert compare(a, b, n_resamples=50)["accuracy@0.95"].interval is None


@pytest.mark.parametrize(
    ("n", "inside_a", "inside_b", "few"),
    [
        (44, 30, 30, [False, False, False]),  # 30 / 44 * 44 is less than 30 in floating point
        (44, 29, 30, [False, False, True]),
        (44, 30, 29, [False, False, True]),
        (30, 30, 30, [False, False, False]),
        (29, 29, 29, [True, True, True]),
    ],
)
def test_thirty_rows_are_enough_for_a_verdict(n, inside_a, inside_b, few):
    a, b = ({"share@0.95": inside / n} for inside in (inside_a, inside_b))
    assert [rests_on_few(name, a, b, n) for name in ("share@0.95", "ece", "accuracy@0.95")] == few
    assert judge("ece", 0.1, 0.2, (0.05, 0.15), few=True).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((-0.1, 0.1), "cannot tell"),
        ((-0.1, 0.0), "cannot tell"),
        ((0.0, 0.1), "cannot tell"),
        ((-0.2, -0.1), "better"),
        ((0.1, 0.2), "worse"),
    ],
)
def test_a_verdict_needs_a_range_without_zero(ends, verdict):
    assert judge("ece", 0.3, 0.3, ends, few=False).verdict == verdict
    unprinted = judge("ece", 0.3, 0.3, ends, few=False, printed=False)
    assert (unprinted.interval, unprinted.verdict) == (None, verdict)


def test_a_value_that_one_model_does_not_have_leaves_no_difference():
    right = Predictions.from_probabilities([[0.9, 0.1]] * 40, [0] * 40)  # no wrong row: there is no AUROC
    half = Predictions.from_probabilities([[0.9, 0.1], [0.1, 0.9]] * 20, [0] * 40)
    for a, b in ((right, half), (half, right)):
        row = compare(a, b, n_resamples=20)["auroc"]
        assert (row.difference, row.interval, row.verdict) == (None, None, "cannot tell")


def test_infinite_nll_on_both_sides_is_not_a_verdict():
    a = Predictions.from_probabilities([[1.0, 0.0]] * 40, [0, 1] * 20)
    result = compare(a, a, n_resamples=20)
    assert result["nll"].verdict == "cannot tell"
    assert json.loads(result.to_json())["rows"][1]["a"] is None


def test_result_as_table_and_json():
    result = compare(model(200), model(200, sharpness=2.0), n_resamples=30)
    assert "b is" in result.table()
    content = json.loads(result.to_json())
    assert (content["n"], content["resamples"]) == (200, 30)
    assert {"name", "a", "b", "difference", "interval", "verdict"} == content["rows"][0].keys()
    expected = [None if row.interval is None else list(row.interval) for row in result.rows]
    assert [row["interval"] for row in content["rows"]] == expected
    with pytest.raises(KeyError):
        result["nothing"]


def test_other_rows_are_refused():
    a = model(40, ids=np.arange(40))
    targets = a.targets.copy()
    targets[7] = (targets[7] + 1) % 3
    with pytest.raises(InvalidInput, match=f"got {targets[7]} instead of {a.targets[7]} in row 7"):
        compare(a, Predictions.from_logits(a.logits, targets))
    for b, match in (
        (model(41), "have the 40 rows of a, got 41 rows"),
        (model(40, seed=1), "targets of a, got . instead of . in row"),
        (model(40, ids=np.arange(40)[::-1]), "ids of a .0 in row 0., got 39.*Sort both by id"),
        (Predictions.from_logits(np.ones((40, 2)), np.zeros(40, int)), "3 classes of a, got 2"),
    ):
        with pytest.raises(InvalidInput, match=match):
            compare(a, b)
    compare(a, model(40), n_resamples=20)
    compare(a, model(40, ids=np.arange(40).astype(str)), n_resamples=20)  # a table has its ids as text
    with pytest.raises(InvalidInput, match="be at least 20 to compare, got 0"):
        compare(a, a, n_resamples=0)


def test_rows_are_the_same_whatever_the_order_of_the_classes():
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(100, 3)), rng.integers(3, size=100)
    names = np.array(["cat", "dog", "owl"])
    a = Predictions.from_logits(scores, targets, class_names=list(names))
    turned = Predictions.from_logits(scores[:, ::-1], 2 - targets, class_names=list(names[::-1]))
    assert compare(a, turned, n_resamples=20)["test_error"].difference == 0.0
    with pytest.raises(InvalidInput, match="got owl instead of cat in row 0"):
        compare(a, Predictions.from_logits(scores, 2 - targets, class_names=list(names)), n_resamples=20)


def test_systems_that_answer_with_other_classes_are_compared():
    answers = np.array(["cat", "dog", "owl", "dog"] * 10), np.array(["cat", "dog", "cat", "cow"] * 10)
    truth = np.array(["cat", "dog", "owl", "owl"] * 10)
    a, b = (Predictions.from_confidence(each, np.full(40, 0.9), truth) for each in answers)
    assert compare(a, b, n_resamples=20)["test_error"].difference == pytest.approx(0.25)


def test_accuracies_of_small_sets_have_no_interval_of_their_difference():
    def confident(rows):
        top = np.r_[np.full(rows, 0.97), np.full(400 - rows, 0.6)]
        return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), (np.arange(400) % 20 == 0).astype(int))

    large, larger, small = (
        compare(confident(200), confident(rows), thresholds=(0.9,), n_resamples=20)["accuracy@0.9"].interval
        for rows in (200, 300, 199)
    )
    assert large is not None
    assert larger is not None
    assert small is None


def repaired(rows, cases):
    """A model, and one that is right in the first `rows` cases, too."""
    confidence = np.random.default_rng(0).uniform(0.6, 0.99, cases)
    first = np.stack([confidence, 1 - confidence], axis=1)
    second = first.copy()
    second[:rows] = second[:rows, ::-1]
    targets = np.arange(cases) < cases // 3
    return [Predictions.from_probabilities(scores, targets.astype(int)) for scores in (first, second)]


@pytest.mark.parametrize("rows", [0, 1, 9, 10])
def test_models_that_agree_on_all_but_few_rows_have_intervals_of_their_errors_alone(rows):
    result = compare(*repaired(rows, 60), n_resamples=40)
    for name in ("nll", "brier", "auroc", "aurc"):
        assert (result[name].interval is not None) == (rows == 10), name
        assert rows == 10 or result[name].verdict == "cannot tell"
    low, high = result["test_error"].interval
    assert low < -rows / 60 < high
    assert (result["test_error"].verdict == "better") == (rows >= 9)


def test_the_interval_of_a_difference_of_errors_holds_it_if_two_models_hardly_differ():
    """The second model repairs one case in 200; percentiles of resamples missed that whenever the 60 cases had none."""
    held = 0
    for seed in range(40):
        count = np.random.default_rng(seed).binomial(60, 0.005)
        low, high = compare(*repaired(int(count), 60), n_resamples=20)["test_error"].interval
        held += low <= -0.005 <= high
    assert held >= 35
