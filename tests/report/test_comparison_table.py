import math

import pytest

from calibrant.report.comparison_table import columns, comparison

NBSP = "\N{NO-BREAK SPACE}"


def method(metrics, intervals=None, verdicts=None, wins=()):
    return {"metrics": metrics, "intervals": intervals or {}, "verdicts": verdicts or {}, "wins": wins}


def test_only_columns_with_a_number_are_shown_and_the_best_is_marked():
    methods = [
        method({"test_error": 0.10, "nll": 0.3, "auroc": 0.8}, {"test_error": (0.09, 0.11)}, wins=["nll"]),
        method({"test_error": 0.08, "nll": 0.5, "auroc": None}, verdicts={"test_error": "better"}, wins=["test_error"]),
    ]
    used, rows = comparison(methods, 0.95)
    assert [column.key for column in used] == ["test_error", "nll", "auroc"]
    first, second = rows
    assert (first[0].value, first[0].text, first[0].interval) == (0.10, f"10.00{NBSP}%", "[9.00, 11.00]")
    assert [cell.best for cell in first] == [False, True, False]
    assert (second[0].best, second[0].verdict) == (True, "better")
    assert second[2].text == "\N{EN DASH}"
    _, unmarked = comparison(methods, 0.95, same_cases=False)
    assert not any(cell.best for row in unmarked for cell in row)


def test_an_infinite_nll_says_so_and_is_never_best():
    _, rows = comparison(
        [method({"nll": None}, {"nll": (0.5, None)}), method({"nll": 0.4}, {"nll": (0.3, 0.45)})], 0.95
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
