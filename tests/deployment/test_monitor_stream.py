from dataclasses import replace

import numpy as np
import pytest

from calibrant.deployment import Decision, DecisionLog, Stream, read_stream, watch
from calibrant.errors import InvalidInput
from tests.deployment.conftest import draw, with_rule


@pytest.fixture
def log(rule, tmp_path):
    """Three hundred decisions of one rule after twenty of another, with some labels in an order of their own."""
    with DecisionLog(tmp_path / "log.db", model="0" * 64, class_names=rule.class_names) as log:
        old = log.add_policy(with_rule(replace(rule, threshold=0.5)))
        log.append([Decision(f"old-{i}", 0, 0.7, True) for i in range(20)], policy=old)
        cases = draw(300, seed=30, flipped=0.1)
        routed = rule.route(cases)
        now = log.add_policy(with_rule(rule))
        columns = zip(routed.predicted, routed.confidence, routed.automate, strict=True)
        rows = [
            Decision(f"{i}", int(k), float(c), bool(a), extras={"site": i % 2}) for i, (k, c, a) in enumerate(columns)
        ]
        log.append(rows, policy=now)
        order = np.random.default_rng(0).permutation(300)[:200]
        for i in order:
            log.label(f"{i}", int(cases.targets[i]))
        log.test_cases, log.test_order = cases, order
        yield log


def test_a_log_gives_the_decisions_of_its_last_rule(log, rule):
    stream = Stream.of_log(log)
    assert stream.rule == rule
    assert stream.left_out == 20
    expected = rule.route(log.test_cases)
    assert np.array_equal(stream.automate, expected.automate)
    assert np.array_equal(stream.confidence, expected.confidence)
    assert stream.labelled.sum() == 200
    first = log.test_order[0]
    assert stream.label_order[first] == 1
    assert stream.targets[first] == log.test_cases.targets[first]
    assert stream.extras["site"].tolist()[:2] == ["0", "1"]
    assert stream.times[0].startswith("20")
    assert watch(stream, groups="site").signals[0].cases == int((expected.automate & stream.labelled).sum())


@pytest.mark.parametrize("unlabelled", [0, 1, 50])
def test_labelled_cases_alone_give_the_evidence_of_all(log, rule, unlabelled):
    def evidence(**which):
        signals = watch(Stream.of_log(log, **which), groups="site").signals
        return [(each.group, each.cases, each.seen, each.evidence, each.alarm is None) for each in signals]

    policy = list(log.policies())[-1]
    log.append([Decision(f"new-{i}", 0, 0.7, False, extras={"site": 0}) for i in range(unlabelled)], policy=policy)
    assert evidence(labelled=True) == evidence()
    assert len(Stream.of_log(log, labelled=True)) <= 201


def test_a_log_without_labels_has_its_last_case(rule, tmp_path):
    with DecisionLog(tmp_path / "log.db", model="0" * 64, class_names=rule.class_names) as log:
        log.append([Decision(f"{i}", 0, 0.7, False) for i in range(3)], policy=log.add_policy(with_rule(rule)))
        stream = Stream.of_log(log, labelled=True)
        assert stream.ids.tolist() == ["2"]
        assert [each.cases for each in watch(stream).signals] == [0]


def test_a_log_of_other_rules_is_refused(log, rule, tmp_path):
    with pytest.raises(InvalidInput, match="log must hold decisions of this policy"):
        Stream.of_log(log, with_rule(replace(rule, threshold=0.7)))
    with pytest.raises(InvalidInput, match="labels must be left out for a log"):
        read_stream(tmp_path / "log.db", labels="labels.csv")


def test_empty_and_nameless_logs_are_refused(tmp_path):
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        with pytest.raises(InvalidInput, match="at least one decision"):
            Stream.of_log(log)
        log.append([Decision("a", 0, 0.9, True)])
        with pytest.raises(InvalidInput, match="name the policy of its last decision"):
            Stream.of_log(log)
