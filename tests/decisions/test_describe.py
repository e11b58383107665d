import numpy as np

from calibrant import Predictions
from calibrant.decisions import (
    BinaryRule,
    Costs,
    Evidence,
    RoutingRule,
    Shortlist,
    binary_rates,
    check_promise,
    fit_policy,
    risk_coverage,
)
from calibrant.decisions.risk_coverage import coverage_table


def test_thresholds_that_agree_in_six_digits_are_told_apart():
    confidence = np.array([0.999_999_91, 0.999_999_92, 0.999_999_93, 0.6])
    predictions = Predictions.from_probabilities(np.stack([confidence, 1 - confidence], axis=1), [0, 0, 1, 0])
    text = coverage_table(risk_coverage(predictions, (1.0, 0.75, 0.5, 0.25)))
    for value in ("0.600000", "0.999999910", "0.999999920", "0.999999930"):
        assert f" {value} " in text
    assert RoutingRule(confidence[1], 2).describe().endswith("Threshold: 0.999999920")


def test_ordinary_thresholds_have_six_digits():
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    assert " 0.900000 " in coverage_table(risk_coverage(predictions))
    assert RoutingRule(0.9, 2).describe().endswith("Threshold: 0.900000")


def test_a_notebook_shows_promise_threshold_and_evidence(notebook_rows):
    evidence, costs = Evidence(2000, 1500, 7), Costs(50.0, 2.0, 675.0, 2000.0)
    rule = RoutingRule(0.875, 3, 0.99, 0.95, evidence=evidence, costs=costs, groups="<i>site</i>", note="a < b")
    assert notebook_rows(rule) == [
        ["promised accuracy", "0.99, with probability 0.95"],
        ["threshold", "0.875000"],
        ["automated", "1,500 of 2,000 cases (75.0 %), 7 wrong"],
        ["of 1,000 cases a person sees", "250 (231 to 270)"],
        ["promised by group", "<i>site</i>"],
        ["cost per 1,000 cases", "675.0; 2000.0 if a person sees all"],
        ["note", "a < b"],
    ]
    lines = repr(rule).splitlines()
    assert lines[0] == "RoutingRule: 3 classes"
    assert lines[2].split() == ["threshold", "0.875000"]


def test_a_rule_that_automates_nothing_says_so(notebook_rows):
    assert notebook_rows(RoutingRule(None, 3)) == [["threshold", "nothing is automated"]]


def test_thresholds_of_many_classes_are_cut_short(notebook_rows):
    names = tuple(f"<{number}>" for number in range(23))
    rule = RoutingRule(None, 23, class_thresholds=(0.5, None, *[0.75] * 21), class_names=names)
    rows = notebook_rows(rule)
    assert rows[:3] == [
        ["threshold of <0>", "0.500000"],
        ["threshold of <1>", "never automated"],
        ["threshold of <2>", "0.750000"],
    ]
    assert rows[20:] == [["3 more thresholds", "see class_thresholds"]]


def test_a_notebook_shows_a_shortlist(notebook_rows):
    shortlist = Shortlist(0.125, 3, 0.95, 0.9, cases=1200, missed=40, mean_length=1.25, note="<b>")
    assert notebook_rows(shortlist) == [
        ["promised coverage", "0.95, with probability 0.9"],
        ["least confidence", "0.125000"],
        ["chosen on", "1,200 cases"],
        ["true class not listed", "40"],
        ["mean length", "1.25"],
        ["note", "<b>"],
    ]
    assert repr(shortlist).startswith("Shortlist: 3 classes\n  promised coverage      0.95")


def test_a_notebook_shows_whether_the_promise_held(notebook_rows):
    cases = Predictions.from_probabilities([[0.9, 0.1]] * 9 + [[0.6, 0.4]], [0] * 8 + [1, 1])
    found = check_promise(RoutingRule(0.8, 2, target_accuracy=0.9, confidence=0.95), cases)
    assert repr(found).startswith(
        "PromiseCheck: The promised accuracy of 90 % is missed, but by no more than chance, on"
    )
    headings, row = notebook_rows(found)
    assert headings == ["group", "automated", "wrong", "accuracy %", "95 % interval", "promise held"]
    assert row == ["all", "9", "1", "88.89", "51.75 to 99.72", "yes"]
    assert found.describe().splitlines()[-1] == repr(found).splitlines()[0].removeprefix("PromiseCheck: ")


def test_a_notebook_shows_a_rule_for_two_classes(notebook_rows):
    cases = Predictions.from_binary([0.1, 0.3, 0.6, 0.9], [0, 1, 0, 1], kind="probabilities")
    rule = BinaryRule(0.2, 0.8, 1, 0.95, None, 0.9, ("well", "ill"), binary_rates(cases, 0.2, 0.8), "A note.")
    assert repr(rule).splitlines()[0] == "BinaryRule: positive is ill"
    assert notebook_rows(rule) == [
        ["negative below", "0.2"],
        ["positive from", "0.8"],
        ["promised sensitivity", "at least 0.95, with probability 0.9"],
        ["positive cases missed", "0 of 2"],
        ["negative cases flagged", "0 of 2"],
        ["cases for a person", "2 of 4"],
        ["note", "A note."],
    ]
    assert notebook_rows(BinaryRule(0.2, None, 1, None, None, 0.9))[1] == [
        "positive from",
        "nothing is called positive",
    ]


def test_a_policy_that_automates_nothing_shows_why():
    predictions = Predictions.from_probabilities(np.full((50, 2), [0.9, 0.1]), (np.arange(50) % 10 == 0).astype(int))
    policy = fit_policy(predictions, 0.99, calibrator=None)
    assert not policy.automates
    assert "No threshold can be promised: 50 cases do not show" in repr(policy)
