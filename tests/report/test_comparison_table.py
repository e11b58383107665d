import math

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.intervals import exact_interval
from calibrant.report.comparison_table import Compared, columns, compared, comparison, same_cases
from calibrant.report.summaries import automated

NBSP = "\N{NO-BREAK SPACE}"


def method(values, intervals=None, verdicts=None, wins=()):
    return Compared(values, intervals or {}, verdicts or {}, wins)


def test_only_columns_with_a_number_are_shown_and_the_best_is_marked():
    methods = [
        method({"test_error": 0.10, "nll": 0.3, "auroc": 0.8}, {"test_error": (0.09, 0.11)}, wins=["nll"]),
        method({"test_error": 0.08, "nll": 0.5}, verdicts={"test_error": "better"}, wins=["test_error"]),
    ]
    used, rows = comparison(methods, 0.95)
    assert [column.key for column in used] == ["test_error", "nll", "auroc"]
    first, second = rows
    assert (first[0].value, first[0].text, first[0].interval) == (0.10, f"10.00{NBSP}%", "[9.00, 11.00]")
    assert [cell.best for cell in first] == [False, True, False]
    assert (second[0].best, second[0].verdict) == (True, "better")
    assert second[2].text == "\N{EN DASH}"
    _, unmarked = comparison(methods, 0.95, comparable=False)
    assert not any(cell.best for row in unmarked for cell in row)


def test_an_infinite_nll_says_so_and_is_never_best():
    _, rows = comparison(
        [method({"nll": math.inf}, {"nll": (0.5, math.inf)}), method({"nll": 0.4}, {"nll": (0.3, 0.45)})], 0.95
    )
    assert (rows[0][0].value, rows[0][0].text, rows[0][0].interval) == (math.inf, "∞", "[0.500, ∞]")
    assert [row[0].best for row in rows] == [False, True]


def test_threshold_is_in_the_headings():
    labels = [column.label for column in columns(0.9)]
    assert "Automated at 0.9" in labels
    assert {column.key for column in columns(0.9)} >= {"share@0.9", "accuracy@0.9", "ece@0.9"}


def test_counts_have_no_decimals_and_thousands_are_grouped():
    _, rows = comparison([method({"nll": 1.0, "samples_seen": 1_234_567, "train_seconds": 61.25})], 0.95)
    assert [cell.text for cell in rows[0]] == ["1.000", "1,234,567", "61.3"]


def test_a_share_at_a_fixed_confidence_is_never_best_and_one_at_a_promise_is():
    metrics = [{"promised@0.99": 0.7, "share@0.95": 0.8}, {"promised@0.99": 0.6, "share@0.95": 0.9}]
    intervals = [{"promised@0.99": (0.68, 0.72), "share@0.95": (0.78, 0.82)}]
    intervals += [{"promised@0.99": (0.58, 0.62), "share@0.95": (0.88, 0.92)}]
    methods = [
        method(values, ends, {"share@0.95": "better"}, ["share@0.95"])
        for values, ends in zip(metrics, intervals, strict=True)
    ]
    used, rows = comparison(methods, 0.95)
    found = {column.key: [row[i].best for row in rows] for i, column in enumerate(used) if column.key != "nll"}
    assert found == {"promised@0.99": [True, False], "share@0.95": [False, False]}
    assert not any(cell.verdict for row in rows for cell in row)


@pytest.mark.parametrize(
    "intervals",
    [
        [(0.68, 0.72), (0.70, 0.74)],  # they overlap
        [(0.68, 0.72), None],
        [None, None],
    ],
)
def test_values_that_cannot_be_told_apart_have_no_best(intervals):
    methods = []
    for value, pair in zip((0.70, 0.72), intervals, strict=True):
        ends = {}
        if pair is not None:
            ends["promised@0.99"] = pair
        methods.append(method({"nll": 1.0, "promised@0.99": value}, ends))
    _, rows = comparison(methods, 0.95)
    assert not any(cell.best for row in rows for cell in row)


def test_one_method_alone_is_not_best():
    _, rows = comparison([method({"nll": 1.0}, {"nll": (0.9, 1.1)})], 0.95)
    assert not rows[0][0].best


# What chance allows to say.


def measured(methods, n_resamples=40):
    return compared(methods, [evaluate(each, thresholds=(0.9,)) for each in methods], n_resamples=n_resamples)


def test_one_shared_pass_gives_what_evaluate_and_compare_give(make):
    methods = [make(seed=1), make(seed=2, sharpness=2.0), make(seed=3)]
    for each, result in zip(methods, measured(methods), strict=True):
        expected = evaluate(each, thresholds=(0.9,), n_resamples=40).intervals
        assert result.intervals == expected
        rows = [] if each is methods[0] else compare(methods[0], each, thresholds=(0.9,), n_resamples=40).rows
        assert result.verdicts == {row.name: row.verdict for row in rows if row.verdict != "cannot tell"}
    assert measured(methods)[1].verdicts["ece"] == "worse"


def test_a_method_wins_a_metric_only_against_every_other_one(make):
    sharp, plain, again = make(seed=1, sharpness=3.0), make(seed=1), make(seed=1, sharpness=1.001)
    results = measured([sharp, plain])
    assert "ece" in results[1].wins
    assert results[0].wins == [name for name in results[0].wins if name.startswith("share@")]
    # Two that are almost equal: neither wins, though both are better than the first.
    results = measured([sharp, plain, again])
    assert [result.verdicts.get("ece") for result in results] == [None, "better", "better"]
    assert not any("ece" in result.wins for result in results)


def test_shares_have_exact_intervals_with_and_without_resamples(predictions):
    result = automated(predictions, 0.9)
    expected = {
        "test_error": exact_interval(int((~predictions.correct).sum()), 600),
        "share@0.9": exact_interval(result.automated, 600),
        "accuracy@0.9": result.interval,
    }
    alone = measured([predictions], n_resamples=0)[0]
    assert (alone.intervals, alone.verdicts, alone.wins) == (expected, {}, [])
    intervals = measured([predictions])[0].intervals
    assert {name: intervals[name] for name in expected} == expected


def test_nothing_wrong_is_not_certainty():
    predictions = Predictions.from_probabilities([[0.99, 0.01]] * 20, [0] * 20)
    low, high = measured([predictions])[0].intervals["accuracy@0.9"]
    assert (low, high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)


def test_nothing_automated_has_no_interval():
    ends = measured([Predictions.from_probabilities([[0.6, 0.4]], [0])], n_resamples=0)[0].intervals
    assert set(ends) == {"test_error", "share@0.9"}


def test_methods_on_other_cases_are_measured_but_not_judged(make):
    methods = [make(n=300), make(n=200, sharpness=0.3), make(n=300, sharpness=0.3)]
    results = measured(methods)
    assert results[1].intervals["ece"] == evaluate(methods[1], thresholds=(0.9,), n_resamples=40).intervals["ece"]
    assert results[1].verdicts == {}
    assert results[2].verdicts["ece"] == "worse"


def test_same_cases_looks_at_targets_and_ids(make):
    ids = [f"case {i}" for i in range(100)]
    assert same_cases(make(n=100), make(n=100, seed=1))
    assert same_cases(make(n=100, ids=ids), make(n=100, seed=1))
    assert not same_cases(make(n=100, ids=ids), make(n=100, ids=ids[::-1]))
    assert not same_cases(make(n=100), make(n=101))
    assert not same_cases(make(n=100), make(n=100, classes=5))


def test_same_cases_goes_by_the_names_of_classes():
    scores = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    first = Predictions.from_probabilities(scores, ["cat", "owl"], class_names=["cat", "dog", "owl"])
    turned = Predictions.from_probabilities(scores[:, ::-1], ["cat", "owl"], class_names=["owl", "dog", "cat"])
    assert same_cases(first, turned)
    assert not same_cases(first, turned.subset([1, 0]))
    answers = Predictions.from_confidence(["cat", "ant"], [0.9, 0.8], ["cat", "owl"])
    assert same_cases(answers, Predictions.from_confidence(["owl", "dog"], [0.9, 0.8], ["cat", "owl"]))
    assert not same_cases(answers, Predictions.from_confidence(["owl", "dog"], [0.9, 0.8], ["cat", "dog"]))
