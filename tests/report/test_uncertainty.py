import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.intervals import wilson
from calibrant.report.statistics import automated
from calibrant.report.uncertainty import same_cases, uncertainties


def measured(methods, n_resamples=40):
    return uncertainties(methods, [evaluate(each, thresholds=(0.9,)) for each in methods], n_resamples=n_resamples)


def test_one_shared_pass_gives_what_evaluate_and_compare_give(make):
    methods = [make(seed=1), make(seed=2, sharpness=2.0), make(seed=3)]
    for each, found in zip(methods, measured(methods), strict=True):
        expected = evaluate(each, thresholds=(0.9,), n_resamples=40).intervals
        assert found.intervals == expected
        rows = [] if each is methods[0] else compare(methods[0], each, thresholds=(0.9,), n_resamples=40).rows
        assert found.verdicts == {row.name: row.verdict for row in rows if row.verdict != "cannot tell"}
    assert measured(methods)[1].verdicts["ece"] == "worse"


def test_shares_have_wilson_intervals_with_and_without_resamples(predictions):
    result = automated(predictions, 0.9)
    expected = {
        "test_error": wilson(int((~predictions.correct).sum()), 600),
        "share@0.9": wilson(result.automated, 600),
        "accuracy@0.9": result.interval,
    }
    assert measured([predictions], n_resamples=0)[0] == (expected, {})
    found = measured([predictions])[0].intervals
    assert {name: found[name] for name in expected} == expected


def test_nothing_wrong_is_not_certainty():
    predictions = Predictions.from_probabilities([[0.99, 0.01]] * 20, [0] * 20)
    low, high = measured([predictions])[0].intervals["accuracy@0.9"]
    assert (low, high) == (pytest.approx(0.8389, abs=1e-4), 1.0)


def test_nothing_automated_has_no_interval():
    ends = measured([Predictions.from_probabilities([[0.6, 0.4]], [0])], n_resamples=0)[0].intervals
    assert set(ends) == {"test_error", "share@0.9"}


def test_methods_on_other_cases_are_measured_but_not_judged(make):
    methods = [make(n=300), make(n=200, sharpness=0.3), make(n=300, sharpness=0.3)]
    found = measured(methods)
    assert found[1].intervals["ece"] == evaluate(methods[1], thresholds=(0.9,), n_resamples=40).intervals["ece"]
    assert found[1].verdicts == {}
    assert found[2].verdicts["ece"] == "worse"


def test_same_cases_looks_at_targets_and_ids(make):
    ids = [f"case {i}" for i in range(100)]
    assert same_cases(make(n=100), make(n=100, seed=1))
    assert same_cases(make(n=100, ids=ids), make(n=100, seed=1))
    assert not same_cases(make(n=100, ids=ids), make(n=100, ids=ids[::-1]))
    assert not same_cases(make(n=100), make(n=101))
    assert not same_cases(make(n=100), make(n=100, classes=5))
