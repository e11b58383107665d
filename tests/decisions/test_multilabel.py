"""Several labels per case: reading, metrics, rules with one confidence, ONNX, monitor and page."""

import numpy as np
import pandas as pd
import pytest

from calibrant import evaluate
from calibrant.cli import run
from calibrant.decisions import (
    MultiLabel,
    cases_by_label,
    choose_binary_rule,
    choose_label_rules,
    evaluate_labels,
    read_labels,
)
from calibrant.deployment import watch_labels
from calibrant.errors import InvalidInput
from calibrant.predictions import read_table, table_writer
from calibrant.report import write_label_report

NAMES = ["urgent", "invoice", "complaint", "legal"]


def draw(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    frequency = np.array([0.5, 0.3, 0.2, 0.002])
    z = rng.normal(size=(n, 1)) + 2 * rng.normal(size=(n, 4)) + np.log(frequency / (1 - frequency))
    probabilities = 1 / (1 + np.exp(-z))
    return probabilities, (rng.random((n, 4)) < probabilities).astype(int)


@pytest.fixture(scope="module")
def rules():
    return choose_label_rules(cases_by_label(*draw(), NAMES), sensitivity=0.9, specificity=0.9)


def test_each_label_has_the_binary_rule_at_its_part_of_the_level(rules):
    cases = cases_by_label(*draw(), NAMES)
    assert rules.left_out == ("legal",)
    for label, rule in rules.rules[:3]:
        alone = choose_binary_rule(cases[label], sensitivity=0.9, specificity=0.9, confidence=1 - 0.05 / 3)
        assert (rule.low, rule.high) == (alone.low, alone.high)
    probabilities, _ = draw(50, 1)
    decisions = rules.decide(probabilities)
    assert set(decisions[:, 3]) == {"review"}
    for place, (_, rule) in enumerate(rules.rules):
        for chance, decision in zip(probabilities[:, place], decisions[:, place], strict=True):
            called = "review"
            if chance < rule.low:
                called = "negative"
            elif chance >= rule.upper:
                called = "positive"
            assert decision == called


def test_labels_are_left_out_by_their_numbers_of_cases_alone():
    probabilities, targets = draw(300)
    rng = np.random.default_rng(2)
    for _ in range(3):
        shuffled = rng.permuted(probabilities, axis=0)  # other scores, the same numbers of positive cases
        assert choose_label_rules(cases_by_label(shuffled, targets, NAMES)).left_out == ("legal",)


def test_metrics_per_label_and_averaged():
    cases = cases_by_label(*draw(500), NAMES)
    rows = evaluate_labels(cases).rows
    errors = [evaluate(cases[label]).test_error for label in NAMES]
    assert [float(row[2]) for row in rows[:4]] == pytest.approx(errors, abs=1e-4)
    assert float(rows[4][2]) == pytest.approx(np.mean(errors), abs=1e-4)


def test_file_and_json(rules, tmp_path):
    probabilities, targets = draw(100, 3)
    header = ",".join([*(f"p_{name}" for name in NAMES), *(f"y_{name}" for name in NAMES)])
    np.savetxt(tmp_path / "t.csv", np.hstack([probabilities, targets]), "%.17g", ",", header=header, comments="")
    read = read_labels(tmp_path / "t.csv", NAMES)
    for place, label in enumerate(NAMES):
        assert read[label].probabilities[:, 1].tolist() == probabilities[:, place].tolist()
        assert read[label].targets.tolist() == targets[:, place].tolist()
    rules.save(tmp_path / "rules.json")
    assert MultiLabel.load(tmp_path / "rules.json") == rules
    text = (tmp_path / "rules.json").read_text()
    (tmp_path / "rules.json").write_text(text.replace("0.9", "0.8", 1))
    with pytest.raises(InvalidInput):
        MultiLabel.load(tmp_path / "rules.json")


def test_monitor_and_check_notice_a_broken_label(rules):
    probabilities, targets = draw(3000, 5)
    good = cases_by_label(probabilities, targets, NAMES)
    assert not any(watched.broken for watched in watch_labels(rules, good).values())
    assert all(all(result["held"].values()) for result in rules.check(good).values())
    targets[:, 1] = np.random.default_rng(6).random(3000) < 0.5
    bad = cases_by_label(probabilities, targets, NAMES)
    assert [name for name, watched in watch_labels(rules, bad).items() if watched.broken] == ["invoice"]
    assert [name for name, result in rules.check(bad).items() if not all(result["held"].values())] == ["invoice"]


def test_page(rules, tmp_path):
    page = write_label_report(rules, cases_by_label(*draw(400, 7), NAMES), tmp_path / "labels.html").read_text()
    assert "All promises hold together with 95 % confidence." in page
    assert "nothing is promised" in page


@pytest.mark.parametrize(
    ("probabilities", "targets", "labels", "message"),
    [
        ([[0.5, 0.5]], [[1, 0]], ["a"], "probabilities must have the shape"),
        ([[0.5, 0.5]], [[1, 2]], ["a", "b"], "targets must be 0 or 1 for each label, got 2"),
        ([[0.5, 1.5]], [[1, 0]], ["a", "b"], "label 'b'"),
        ([[0.5, 0.5]], [[1, 0]], ["a", "a"], "labels must be distinct"),
        ([[0.5, 0.5]], [[1]], ["a", "b"], "targets must have the shape"),
    ],
)
def test_bad_input(probabilities, targets, labels, message):
    with pytest.raises(InvalidInput, match=message):
        cases_by_label(probabilities, targets, labels)


def test_names_decide_the_order_of_the_columns_of_a_frame(rules):
    probabilities, targets = draw(200)
    tables = [pd.DataFrame(table, columns=NAMES).iloc[:, ::-1] for table in (probabilities, targets)]
    np.testing.assert_array_equal(rules.decide(tables[0]), rules.decide(probabilities))
    by_name, by_place = cases_by_label(*tables, NAMES), cases_by_label(probabilities, targets, NAMES)
    assert evaluate_labels(by_name).rows == evaluate_labels(by_place).rows


def test_cases_must_have_all_labels(rules):
    with pytest.raises(InvalidInput, match="'complaint'"):
        rules.check(cases_by_label(*(part[:, :2] for part in draw(100)), NAMES[:2]))


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    header = ",".join([*(f"p_{name}" for name in NAMES), *(f"y_{name}" for name in NAMES)])
    for name, seed in (("val", 0), ("test", 1)):
        np.savetxt(f"{name}.csv", np.hstack(draw(1500, seed)), "%.17g", ",", header=header, comments="")
    assert run(["route", "labels", "val.csv", "--names", ",".join(NAMES), "-o", "labels.json"]) == 0
    said = capsys.readouterr().out
    assert "All promises hold together" in said
    assert "not promised" in said
    rules = MultiLabel.load("labels.json")
    assert rules.labels == tuple(NAMES)
    assert run(["route", "check", "labels.json", "test.csv"]) == 0
    assert "nothing is promised" in capsys.readouterr().out
    assert run(["report", "test.csv", "--policy", "labels.json", "-o", "page.html"]) == 0
    assert "4 labels" in (tmp_path / "page.html").read_text()
    assert run(["monitor", "test.csv", "--policy", "labels.json"]) == 0
    # New cases have no truth; a column that only looks like one does not matter.
    table = {f"p_{name}": column for name, column in zip(NAMES, draw(50, 2)[0].T, strict=True)}
    ids = [f"=case {row}" for row in range(50)]
    with (tmp_path / "new.csv").open("wb") as handle, table_writer(handle, ".csv") as write:
        write({"id": ids, "label": ["mail"] * 50, **table})
    assert run(["route", "apply", "labels.json", "new.csv", "-o", "decisions.csv"]) == 0
    decided = read_table(tmp_path / "decisions.csv")
    assert decided["id"] == [f"'{name}" for name in ids]  # guarded, because a spreadsheet would run it
    expected = rules.decide(np.stack([np.asarray(table[f"p_{name}"]) for name in NAMES], axis=1))
    assert np.stack([decided[name] for name in NAMES], axis=1).tolist() == expected.tolist()


def test_a_broken_label_ends_check_and_monitor_with_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = ",".join([*(f"p_{name}" for name in NAMES), *(f"y_{name}" for name in NAMES)])
    probabilities, targets = draw(1500, 1)
    choose_label_rules(cases_by_label(*draw(1500), NAMES)).save("labels.json")
    targets[:, 0] = np.random.default_rng(0).random(1500) < 0.5
    np.savetxt("bad.csv", np.hstack([probabilities, targets]), "%.17g", ",", header=header, comments="")
    assert run(["route", "check", "labels.json", "bad.csv"]) == 1
    assert run(["monitor", "bad.csv", "--policy", "labels.json"]) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["route", "shortlist", "labels.json", "val.csv"], "labels.json has rules for several labels"),
        (["route", "check", "labels.json", "val.csv", "--kind", "logits"], "--kind must be left out"),
        (["route", "apply", "labels.json", "val.csv", "-o", "d.json"], "end in one of .csv, .parquet"),
        (["report", "a.csv", "b.csv", "--policy", "labels.json"], "be one table"),
    ],
)
def test_what_labels_cannot_have(rules, tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    rules.save("labels.json")
    header = ",".join([*(f"p_{name}" for name in NAMES), *(f"y_{name}" for name in NAMES)])
    np.savetxt("val.csv", np.hstack(draw(50)), "%.17g", ",", header=header, comments="")
    assert run(command) == 2
    assert message in capsys.readouterr().err
