"""A log and the monitor for a system that names a class and a score."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.cli import run
from calibrant.decisions import fit_policy, route_file
from calibrant.deployment import Decision, DecisionLog, Stream, read_stream, watch
from calibrant.predictions import names_or_numbers

NAMES = ["cat", "dog", "cow"]


def answers(n, seed, accuracy=None):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(6, 1, n).round(2)
    target = rng.integers(3, size=n)
    right = rng.random(n) < (confidence if accuracy is None else accuracy)
    predicted = np.where(right, target, (target + 1) % 3)
    names = np.array(NAMES)
    return Predictions.from_confidence(names[predicted], confidence, names[target], classes=NAMES)


def log_of(path, policy, cases):
    routed = policy.decide(cases)
    log = DecisionLog(path, model="0" * 64, class_names=NAMES)
    digest = log.add_policy(policy)
    columns = zip(cases.predicted.tolist(), cases.confidence.tolist(), routed.automate.tolist(), strict=True)
    log.append([Decision(f"case {k}", *values) for k, values in enumerate(columns)], policy=digest)
    names = names_or_numbers(cases.class_names, cases.n_classes)
    log.label_all({f"case {k}": names[target] for k, target in enumerate(cases.targets)})
    return log


@pytest.mark.parametrize(("accuracy", "broken"), [(None, False), (0.6, True)])
def test_a_log_is_watched(tmp_path, accuracy, broken):
    policy = fit_policy(answers(3000, 0), 0.9)
    cases = answers(1500, 1, accuracy)
    with log_of(tmp_path / "log.db", policy, cases) as log:
        watched = watch(Stream.of_log(log))
    direct = watch(Stream.of_predictions(policy, cases))
    assert watched.broken == direct.broken == broken
    assert watched.signals[0].evidence == direct.signals[0].evidence
    assert run(["monitor", str(tmp_path / "log.db")]) == int(broken)


def test_decisions_may_have_classes_that_a_spreadsheet_would_run(tmp_path):
    """Classes were compared with their guarded names, and a kept promise was called broken."""

    def cases(n, seed):
        plain = answers(n, seed)
        signs = np.array(["+", "=1", "-"])
        ids = [f"case {k}" for k in range(n)]
        named = signs[plain.predicted], plain.confidence, signs[plain.targets]
        return Predictions.from_confidence(*named, classes=signs.tolist(), ids=ids)

    policy, new = fit_policy(cases(3000, 0), 0.9), cases(1500, 1)
    new.save(tmp_path / "new.csv")
    route_file(policy, tmp_path / "new.csv", tmp_path / "decisions.csv")
    names = names_or_numbers(new.class_names, new.n_classes)
    rows = [f"{name},{names[target]}" for name, target in zip(new.ids, new.targets, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,target", *rows]))
    stream = read_stream(tmp_path / "decisions.csv", policy, labels=tmp_path / "labels.csv")
    assert watch(stream).signals == watch(Stream.of_predictions(policy, new)).signals


def test_monitor_takes_one_column_of_two_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    for name in ("val", "later"):
        chance = rng.random(2000)
        labels = np.where(rng.random(2000) < chance, "yes", "no")
        rows = [f"{p:.6f},{label}" for p, label in zip(chance, labels, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["probability,label", *rows]) + "\n")
    assert run(["route", "fit", "val.csv", "--positive", "yes", "--target-accuracy", "0.85", "-o", "policy.json"]) == 0
    assert run(["monitor", "later.csv", "--policy", "policy.json", "--positive", "yes"]) == 0
    assert run(["monitor", "later.csv", "--policy", "policy.json"]) == 2
