"""Tables for people, from values that were written by hand."""

import math
import re
from dataclasses import replace

import pytest

from calibrant.metrics import Comparison, Evaluation
from calibrant.metrics.evaluation import ConfidentSet, evaluations_table
from calibrant.metrics.metric import definition, label
from calibrant.metrics.model_comparison import Difference
from calibrant.metrics.subgroups import GroupedEvaluation

METRICS = {
    "test_error": 0.125,
    "nll": 0.4567,
    "brier": 0.2,
    "ece": 0.031,
    "mce": 0.1,
    "debiased_ece": 0.0,
    "auroc": None,
    "aurc": 0.05,
}
PLAIN = Evaluation(
    n=40,
    n_classes=3,
    n_bins=10,
    metrics=METRICS,
    noise_floor=0.012,
    noise_floor_95=0.018,
    thresholds=(ConfidentSet(0.995, 0.25, 1.0, 0.004, 0.0041),),
)


def cells(text):
    """The cells of each line, by the first of them."""
    lines = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


@pytest.mark.parametrize(
    ("name", "value", "signed", "text"),
    [
        ("ece", 0.01234, False, "1.23 %"),
        ("ece", 0.01234, True, "+1.23 %"),
        ("ece", -0.01234, True, "-1.23 %"),
        ("nll", 0.5, False, "0.5000"),
        ("brier", 0.5, True, "+0.5000"),
        ("nll", math.inf, False, "inf"),
        ("auroc", None, False, "-"),
        ("accuracy@0.95", math.nan, False, "-"),
    ],
)
def test_a_number_is_in_percent_but_for_nll_and_brier(name, value, signed, text):
    assert definition(name).number(value, signed=signed) == text


def test_labels():
    assert [label(name) for name in ("ece", "share@0.95", "ece_inside@0.995")] == [
        "ECE",
        "share, ≥ 95 % sure",
        "ECE, ≥ 99.5 % sure, own bins",
    ]


def test_one_evaluation():
    found = cells(PLAIN.table())
    assert "40 rows, 3 classes, 10 bins" in found
    assert {label(name) for name in PLAIN.values()} < set(found)
    assert found["metric"] == ["value"]
    assert (found["ECE"], found["by chance alone"], found["AUROC, right or wrong"]) == (["3.10 %"], ["1.20 %"], ["-"])


def test_intervals_stand_beside_the_values_that_have_them():
    found = cells(replace(PLAIN, intervals={"ece": (0.02, 0.05), "nll": (0.4, math.inf)}, level=0.9).table())
    assert found["metric"] == ["value", "90 % interval"]
    assert found["ECE"] == ["3.10 %", "2.00 % to 5.00 %"]
    assert found["NLL"] == ["0.4567", "0.4000 to inf"]
    assert found["by chance alone"] == ["1.20 %", "95 % below 1.80 %"]
    assert found["MCE"] == ["10.00 %", "-"]


def test_several_evaluations_stand_side_by_side_and_one_alone_has_its_own_table():
    found = cells(
        evaluations_table({"a": PLAIN, "[b]": replace(PLAIN, n=50, metrics={**METRICS, "ece": 0.5, "auroc": 0.75})})
    )
    assert found["metric"] == ["a", "[b]"]
    assert (found["rows"], found["classes"]) == (["40", "50"], ["3", "3"])
    assert (found["ECE"], found["by chance alone"]) == (["3.10 %", "50.00 %"], ["1.20 %", "1.20 %"])
    assert (found["AUROC, right or wrong"], found["share, ≥ 99.5 % sure"]) == (["-", "75.00 %"], ["25.00 %", "25.00 %"])
    assert sum("by chance alone" in line for line in evaluations_table({"a": PLAIN, "b": PLAIN}).splitlines()) == 1
    assert evaluations_table({"a": PLAIN}) == PLAIN.table()


def test_a_comparison():
    rows = (
        Difference("ece", 0.03, 0.01, -0.02, (-0.03, -0.01), "better"),
        Difference("nll", 0.5, 0.75, 0.25, (0.125, 0.5), "worse"),
        Difference("auroc", None, 0.9, None, None, "cannot tell"),
    )
    found = cells(Comparison(40, 200, 0.9, rows).table())
    assert "40 rows, 200 paired resamples" in found
    assert found["metric"] == ["a", "b", "b - a", "90 % interval", "b is"]
    assert found["ECE"] == ["3.00 %", "1.00 %", "-2.00 %", "-3.00 % to -1.00 %", "better"]
    assert found["NLL"] == ["0.5000", "0.7500", "+0.2500", "+0.1250 to +0.5000", "worse"]
    assert found["AUROC, right or wrong"] == ["-", "90.00 %", "-", "-", "cannot tell"]


def test_a_notebook_shows_every_metric_and_the_prompt_a_few(notebook_rows):
    shown = replace(PLAIN, intervals={"ece": (0.02, 0.05)}, level=0.9)
    table = cells(shown.table())
    html = {name: values for name, *values in notebook_rows(shown)}
    assert html == {name: table[name] for name in html}
    assert set(html) == {*(label(name) for name in shown.values()), "metric", "by chance alone"}
    first, *lines = repr(shown).splitlines()
    assert first == f"Evaluation: {PLAIN.n} rows, {PLAIN.n_classes} classes, {PLAIN.n_bins} bins"
    few = {re.split(r" {2,}", line.strip())[0]: re.split(r" {2,}", line.strip())[1:] for line in lines}
    assert few == {name: table[name] for name in few}
    assert {"test error", "NLL", "ECE", "by chance alone"} < set(few) < set(html)


def test_a_notebook_shows_a_comparison(notebook_rows):
    better = Difference("ece", 0.03, 0.01, -0.02, (-0.03, -0.01), "better")
    comparison = Comparison(40, 200, 0.9, (better, Difference("auroc", None, 0.9, None, None, "cannot tell")))
    html = {name: values for name, *values in notebook_rows(comparison)}
    assert html["ECE"] == ["3.00 %", "1.00 %", "-2.00 %", "-3.00 % to -1.00 %", "better"]
    assert html["AUROC, right or wrong"] == ["-", "90.00 %", "-", "-", "cannot tell"]
    assert "AUROC, right or wrong" not in repr(comparison)
    assert cells(repr(comparison))["ECE"] == html["ECE"]


def test_a_notebook_shows_one_row_for_each_group(notebook_rows):
    other = replace(PLAIN, n=12, metrics={**METRICS, "test_error": 0.5})
    grouped = GroupedEvaluation(PLAIN, {"<b>site</b>": other, "b": PLAIN}, None)
    headings, *rows = notebook_rows(grouped)
    assert headings == ["group", "rows", "test error", "NLL", "ECE", "share, ≥ 99.5 % sure", "accuracy, ≥ 99.5 % sure"]
    assert rows[0] == ["all", "40", "12.50 %", "0.4567", "3.10 %", "25.00 %", "100.00 %"]
    assert rows[1] == ["<b>site</b>", "12", "50.00 %", "0.4567", "3.10 %", "25.00 %", "100.00 %"]
    assert rows[2] == ["b", *rows[0][1:]]
    assert repr(grouped).startswith("GroupedEvaluation: 2 groups, worst by test error: <b>site</b>\n  group ")


def test_an_infinite_nll_says_why():
    table = replace(
        PLAIN, metrics={**METRICS, "nll": math.inf}, intervals={"nll": (math.inf, math.inf)}, level=0.95
    ).table()
    (line,) = [line for line in table.splitlines() if line.strip().startswith("NLL")]
    assert line.split(None, 2) == ["NLL", "inf", "a true class has probability 0"]
