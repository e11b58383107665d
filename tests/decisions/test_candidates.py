"""Shortlists of a system that names a class and a score, and further candidates in columns of their own."""

import json

import numpy as np
import pyarrow.csv
import pytest

from calibrant import Predictions
from calibrant.cli import run
from calibrant.decisions import check_shortlist, choose_shortlist, choose_threshold, fit_policy
from calibrant.errors import InvalidInput
from calibrant.predictions import table_writer

WORDS = np.array(["cat", "cut", "cot", "coat", "boat"], dtype=object)


def table(n, seed, third=True):
    """What such a system says: three guesses, of which the third is sometimes missing, and the truth."""
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(5), (n, 1)), axis=1)
    sure = np.sort(rng.dirichlet([0.4] * 5, n), axis=1)[:, ::-1].round(3)
    truth = order[np.arange(n), (rng.random((n, 1)) > np.cumsum(sure, axis=1)).sum(axis=1).clip(max=4)]
    empty = rng.random(n) < 0.2
    columns = {
        "id": [f"case {row}" for row in range(n)],
        "predicted": WORDS[order[:, 0]],
        "confidence": sure[:, 0],
        "predicted_2": WORDS[order[:, 1]],
        "confidence_2": sure[:, 1],
    }
    if third:
        columns["predicted_3"] = np.where(empty, "", WORDS[order[:, 2]])
        columns["confidence_3"] = np.array(["" if gone else f"{c}" for gone, c in zip(empty, sure[:, 2], strict=True)])
    return {**columns, "target": WORDS[truth]}


def written(path, columns):
    with path.open("wb") as handle, table_writer(handle, ".csv") as write:
        write(columns)
    return path


def slow_lists(columns, least):
    """The definition, row by row."""
    lists = []
    for row in range(len(columns["id"])):
        names = [columns["predicted"][row]]
        for place in (2, 3):
            name, sure = columns[f"predicted_{place}"][row], columns[f"confidence_{place}"][row]
            if name and float(sure) >= least:
                names.append(name)
        lists.append(names)
    return lists


def test_lists_are_those_of_the_definition(tmp_path):
    columns = table(800, 0)
    cases = Predictions.load(written(tmp_path / "cases.csv", columns))
    rule = choose_threshold(cases, 0.75)
    shortlist = choose_shortlist(cases, 0.8, rule=rule)
    lists = slow_lists(columns, shortlist.least)
    reviewed = columns["confidence"] < rule.threshold
    held = np.array([target in names for target, names in zip(columns["target"], lists, strict=True)])
    assert shortlist.holds_true(cases).tolist() == held.tolist()
    assert (shortlist.cases, shortlist.missed) == (reviewed.sum(), (reviewed & ~held).sum())
    assert shortlist.mean_length == pytest.approx(np.mean([len(lists[row]) for row in np.flatnonzero(reviewed)]))
    assert 1 < shortlist.mean_length < 3


def test_from_a_table_to_the_monitor(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("fit", "more", "new")):
        written(tmp_path / f"{name}.csv", table(1500, seed))
    assert run(["route", "fit", "fit.csv", "--target-accuracy", "0.8", "-o", "policy.json"]) == 0
    assert run(["route", "shortlist", "policy.json", "more.csv", "--coverage", "0.75"]) == 0
    assert "candidates on average" in capsys.readouterr().out
    assert run(["route", "apply", "policy.json", "new.csv", "-o", "decisions.csv", "--keep", "target"]) == 2
    (tmp_path / "other.csv").write_text("answer,confidence\ncat,0.5\n")
    assert run(["route", "apply", "policy.json", "other.csv", "-o", "decisions.csv"]) == 2
    assert "--columns predicted=COLUMN" in capsys.readouterr().err
    # The policy says that a probability is that of the prediction, although there are two classes only.
    (tmp_path / "other.csv").write_text("predicted,probability\ncat,0.5\ndog,0.6\n")
    assert run(["route", "apply", "policy.json", "other.csv", "-o", "decisions.csv"]) == 2
    assert "predicted_2" in capsys.readouterr().err
    assert run(["route", "apply", "policy.json", "new.csv", "-o", "decisions.csv"]) == 0
    assert run(["route", "check", "policy.json", "new.csv"]) == 0
    assert "Shortlists of" in capsys.readouterr().out
    assert run(["report", "new.csv", "--policy", "policy.json", "-o", "page.html"]) == 0
    assert "Shortlist: With confidence 0.95" in (tmp_path / "page.html").read_text()
    columns, decided = table(1500, 2), pyarrow.csv.read_csv("decisions.csv").to_pydict()
    least = json.loads((tmp_path / "policy.json").read_text())["shortlist"]["least"]
    for decision, cell, names in zip(
        decided["decision"], decided["shortlist"], slow_lists(columns, least), strict=True
    ):
        assert (cell == "") if decision == "auto" else (json.loads(cell) == names)
    # The promises are watched in the raw answers, and in decisions with labels from elsewhere.
    labels = {"id": columns["id"], "target": columns["target"]}
    written(tmp_path / "labels.csv", labels)
    capsys.readouterr()
    assert run(["monitor", "new.csv", "--policy", "policy.json", "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert run(["monitor", "decisions.csv", "--policy", "policy.json", "--labels", "labels.csv", "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)
    assert "shortlist" in str(raw["signals"])
    assert decisions["signals"] == raw["signals"]


def test_the_promise_is_kept_as_often_as_it_says(tmp_path):
    """Of many teams with 150 cases each, at most 1 - confidence get lists that hold the true class too rarely."""
    stream = Predictions.load(written(tmp_path / "stream.csv", table(6_000, 99)))
    rng = np.random.default_rng(0)
    broken = []
    for _ in range(150):
        team = stream.subset(rng.permutation(len(stream))[:150])
        shortlist = choose_shortlist(team, 0.7, confidence=0.8)
        broken.append(shortlist.holds_true(stream).mean() < 0.7)
    assert 0.05 < np.mean(broken) <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / len(broken))


def test_worse_candidates_break_the_promise(tmp_path):
    policy = fit_policy(Predictions.load(written(tmp_path / "fit.csv", table(3000, 0))), 0.8)
    shortlist = choose_shortlist(Predictions.load(written(tmp_path / "b.csv", table(1500, 1))), 0.75, rule=policy.rule)
    bad = table(1500, 2)
    bad["predicted_2"], bad["predicted_3"] = bad["predicted_3"], np.full(1500, "")
    cases = Predictions.load(written(tmp_path / "bad.csv", {**bad, "confidence_2": np.full(1500, 0.3)}))
    assert not check_shortlist(shortlist, cases, rule=policy.rule).held


def test_candidates_with_plain_scores_and_numbers_for_classes():
    rng = np.random.default_rng(4)
    first, points = rng.integers(3, size=600), rng.normal(50, 20, 600)
    second = (first + 1) % 3
    target = np.where(rng.random(600) < 0.7, first, second)
    extras = {"predicted_2": second.astype(float), "confidence_2": points - 30}
    cases = Predictions.from_confidence(first, points, target, kind="score", extras=extras)
    shortlist = choose_shortlist(cases, 0.8)
    assert shortlist.least > 1
    expected = (first == target) | (points - 30 >= shortlist.least)
    assert shortlist.holds_true(cases).tolist() == expected.tolist()


def test_the_predicted_class_alone_may_be_enough():
    rng = np.random.default_rng(5)
    right = rng.random(400) < 0.97
    extras = {"predicted_2": np.full(400, "cut"), "confidence_2": np.full(400, 0.1)}
    cases = Predictions.from_confidence(
        np.full(400, "cat"), np.full(400, 0.9), np.where(right, "cat", "x"), extras=extras
    )
    assert choose_shortlist(cases, 0.9).missed == (~right).sum()


@pytest.mark.parametrize(
    ("changed", "coverage", "message"),
    [
        (
            {"predicted_2": None, "confidence_2": None},
            0.5,
            "columns predicted_2 and confidence_2. Other columns here: none",
        ),
        ({"confidence_2": np.array(["0.1"] * 99 + ["high"])}, 0.5, "confidence_2 must be a number .* 'high' in row 99"),
        ({}, 0.99, "promise 0.99 of the cases, got [0-9]+ of 100 cases"),
    ],
)
def test_candidates_that_cannot_be_listed(changed, coverage, message):
    columns = {**table(100, 0, third=False), **changed}
    extras = {name: columns[name] for name in ("predicted_2", "confidence_2") if columns[name] is not None}
    cases = Predictions.from_confidence(columns["predicted"], columns["confidence"], columns["target"], extras=extras)
    with pytest.raises(InvalidInput, match=message):
        choose_shortlist(cases, coverage)
