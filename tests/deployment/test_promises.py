"""The promises of shortlists and of rules of two classes, watched case by case like that of the accuracy."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import BinaryRule, choose_binary_rule, choose_shortlist, choose_threshold, route_file
from calibrant.deployment import (
    Decision,
    DecisionLog,
    Stream,
    advice,
    describe,
    headline,
    read_stream,
    watch,
)
from calibrant.errors import InvalidInput
from calibrant.report import write_monitor_page
from tests.deployment.conftest import with_rule


def draw(n, seed, *, classes=4, spread=6.0, sharper=1.0):
    """A calibrated model, or one that is surer than it should be."""
    rng = np.random.default_rng(seed)
    z = spread * rng.normal(size=(n, classes))
    return Predictions.from_logits(sharper * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


@pytest.fixture(scope="module")
def listed():
    cases = draw(4000, 0, spread=2.0)
    rule = choose_threshold(cases, 0.95)
    return rule, choose_shortlist(draw(4000, 1, spread=2.0), 0.9, rule=rule)


def test_a_shortlist_that_keeps_its_promise_raises_no_alarm(listed):
    rule, shortlist = listed
    watched = watch(Stream.of_predictions(with_rule(rule, shortlist), draw(5000, 2, spread=2.0)))
    assert [each.about for each in watched.signals] == ["promise", "shortlist"]
    assert [each.level for each in watched.signals] == [0.025, 0.025]
    reviewed = int((~watched.stream.automate).sum())
    assert watched.signals[1].cases == reviewed
    assert watched.signals[1].expected == 0.9
    assert not watched.alarms
    assert "coverage of the shortlist" in describe(watched)


def test_a_shortlist_that_misses_the_true_class_is_noticed(listed, tmp_path):
    """The model becomes surer than it should be: lists get shorter, and the true class falls off them."""
    rule, shortlist = listed
    before, after = draw(1000, 3, spread=2.0), draw(3000, 4, spread=2.0, sharper=4.0)
    both = Predictions.from_logits(
        np.concatenate([before.as_logits(), after.as_logits()]), np.concatenate([before.targets, after.targets])
    )
    stream = Stream.of_predictions(with_rule(rule, shortlist), both)
    within = shortlist.listed(both)[np.arange(4000), both.targets]
    assert np.array_equal(stream.listed, within)
    watched = watch(stream)
    signal = next(each for each in watched.signals if each.about == "shortlist")
    assert signal.alarm > 1000
    assert watched.broken
    assert "the promised coverage of the shortlist of 90 %" in headline(watched)
    assert advice(watched)[-1].startswith("Then choose the shortlist again with the new rule")
    assert "True class on the shortlist" in write_monitor_page(watched, tmp_path / "monitor.html").read_text(
        encoding="utf-8"
    )


def test_where_only_the_shortlist_fails_only_the_shortlist_is_chosen_again(listed):
    rule, shortlist = listed
    stream = Stream.of_predictions(with_rule(rule, shortlist), draw(2000, 5, spread=2.0))
    nothing = np.zeros(2000, dtype=bool)
    watched = watch(Stream(**{**vars(stream), "listed": nothing}))
    assert [each.about for each in watched.alarms] == ["shortlist"]
    assert advice(watched)[0] == "Show every class to a person until a new shortlist is chosen."
    assert "calibrant route shortlist" in advice(watched)[1]


@pytest.fixture(scope="module", params=[0, 1])
def binary(request):
    cases = draw(4000, 10, classes=2, spread=2.0)
    return choose_binary_rule(cases, sensitivity=0.95, specificity=0.9, positive=request.param)


def test_sensitivity_and_specificity_are_watched_over_the_cases_of_their_class(binary):
    cases = draw(3000, 11, classes=2, spread=2.0)
    watched = watch(Stream.of_predictions(with_rule(binary), cases))
    assert [(each.about, each.expected, each.level) for each in watched.signals] == [
        ("sensitivity", 0.95, 0.025),
        ("specificity", 0.9, 0.025),
    ]
    ill, decisions = cases.targets == binary.positive, np.array(binary.decide(cases))
    sensitivity, specificity = watched.signals
    assert (sensitivity.cases, specificity.cases) == (ill.sum(), (~ill).sum())
    assert sensitivity.seen == pytest.approx((decisions[ill] != "negative").mean())
    assert specificity.seen == pytest.approx((decisions[~ill] != "positive").mean())
    assert not watched.alarms
    assert headline(watched) == "No alarm: nothing contradicts the promise so far."


def test_ill_cases_that_become_harder_to_see_break_the_sensitivity_alone(binary, tmp_path):
    cases = draw(4000, 12, classes=2, spread=2.0)
    logits = cases.as_logits().copy()
    logits[:, binary.positive] -= np.where((cases.targets == binary.positive) & (np.arange(4000) >= 2000), 3.0, 0.0)
    watched = watch(Stream.of_predictions(with_rule(binary), Predictions.from_logits(logits, cases.targets)))
    assert {each.about for each in watched.alarms} == {"sensitivity"}
    assert watched.alarms[0].alarm > 2000
    assert headline(watched) == "ALARM: the promised sensitivity of 95 % is no longer kept."
    assert "Sensitivity of all positive cases: 95 % promised" in describe(watched)
    assert "calibrant route binary" in advice(watched)[1]
    page = write_monitor_page(watched, tmp_path / "monitor.html")
    assert "Sensitivity" in page.read_text(encoding="utf-8")


def test_without_labels_the_sameness_of_binary_cases_is_tested(binary):
    reference, other = draw(2000, 13, classes=2, spread=2.0), draw(2000, 14, classes=2, spread=6.0)
    watched = watch(Stream.of_predictions(with_rule(binary), other), reference=reference)
    assert {"confidence", "share automated"} <= {each.about for each in watched.alarms}


def test_false_alarms_of_binary_rules_are_rarer_than_the_level():
    alarms = 0
    for seed in range(60):
        rule = BinaryRule(0.2, 0.8, 1, 0.9, 0.9, 0.95)
        rng = np.random.default_rng(seed)
        y = rng.integers(2, size=400)
        hit = rng.random(400) < 0.9  # exactly as promised
        chance = np.where(y == 1, np.where(hit, 0.5, 0.1), np.where(hit, 0.5, 0.9))
        cases = Predictions.from_binary(chance, y, kind="probabilities")
        alarms += bool(watch(Stream.of_predictions(with_rule(rule), cases), level=0.1).alarms)
    assert alarms <= 12


def test_command(calibrant, tmp_path, listed, binary):
    rule, shortlist = listed
    with_rule(rule, shortlist).save(tmp_path / "policy.json")
    with_rule(binary).save(tmp_path / "binary.json")
    draw(500, 20, spread=2.0).save(tmp_path / "new.npz")
    code, out, _ = calibrant("monitor", tmp_path / "new.npz", "--policy", tmp_path / "policy.json")
    assert code == 0
    assert "coverage of the shortlist" in out
    draw(500, 21, classes=2, spread=2.0).save(tmp_path / "two.npz")
    code, out, _ = calibrant("monitor", tmp_path / "two.npz", "--policy", tmp_path / "binary.json")
    assert code == 0
    assert "specificity" in out


def test_a_log_is_not_of_a_binary_rule(binary, tmp_path):
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        log.append([Decision("a", 0, 0.9, True)], policy=log.add_policy(with_rule(binary)))
        with pytest.raises(InvalidInput, match="calibrant route binary"):
            Stream.of_log(log)


def test_a_log_knows_what_was_listed(listed, tmp_path):
    rule, shortlist = listed
    cases = draw(200, 30, spread=2.0)
    routed, mask = rule.route(cases), shortlist.listed(cases)
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=4) as log:
        rows = [
            Decision(str(i), int(k), float(c), bool(a), () if a else tuple(np.flatnonzero(mask[i]).tolist()))
            for i, (k, c, a) in enumerate(zip(routed.predicted, routed.confidence, routed.automate, strict=True))
        ]
        log.append(rows, policy=log.add_policy(with_rule(rule, shortlist)))
        for i in range(0, 200, 2):
            log.label(str(i), int(cases.targets[i]))
        stream = Stream.of_log(log)
    signal = watch(stream).signals[1]
    own = np.flatnonzero(~routed.automate & (np.arange(200) % 2 == 0))
    assert signal.cases == len(own)
    assert signal.seen == pytest.approx(mask[own, cases.targets[own]].mean())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_of_decisions_know_what_was_listed(listed, tmp_path, calibrant, ending):
    """The same result as from the predictions, from the column `shortlist` that route apply writes."""
    rule, shortlist = listed
    policy = with_rule(rule, shortlist)
    policy.save(tmp_path / "policy.json")
    logits, targets = draw(600, 31, spread=2.0).as_logits(), draw(600, 31, spread=2.0).targets
    Predictions.from_logits(logits, targets, ids=[f"c{i}" for i in range(600)]).save(tmp_path / "new.npz")
    route_file(policy, tmp_path / "new.npz", tmp_path / f"d.{ending}")
    labels = "".join(f"c{i},{target}\n" for i, target in enumerate(targets))
    (tmp_path / "labels.csv").write_text(f"id,target\n{labels}")
    stream = read_stream(tmp_path / f"d.{ending}", policy, labels=tmp_path / "labels.csv")
    expected = watch(read_stream(tmp_path / "new.npz", policy)).signals
    assert [signal.about for signal in expected] == ["promise", "shortlist"]
    assert watch(stream).signals == expected
    command = ("monitor", tmp_path / f"d.{ending}", "--policy", tmp_path / "policy.json")
    code, out, _ = calibrant(*command, "--labels", tmp_path / "labels.csv")
    assert code == 0
    assert "coverage of the shortlist" in out


def test_files_without_lists_say_that_the_shortlist_is_not_tested(listed, tmp_path):
    rule, shortlist = listed
    path = tmp_path / "d.csv"
    path.write_text("id,decision,predicted,confidence\nx,review,1,0.4\n")
    watched = watch(read_stream(path, with_rule(rule, shortlist)))
    assert [signal.about for signal in watched.signals] == ["promise"]
    assert "The promise of the shortlist was not tested" in describe(watched)
    path.write_text('id,decision,predicted,confidence,shortlist\nx,review,1,0.4,"[""9""]"\n')
    with pytest.raises(InvalidInput, match="shortlist must be lists of class names"):
        read_stream(path, with_rule(rule, shortlist))


def test_lists_of_another_policy_do_not_count(listed, tmp_path):
    """A policy whose lists were not logged, after one whose lists were: nothing is known about the second's lists."""
    rule, shortlist = listed
    other = choose_shortlist(draw(4000, 6, spread=2.0), 0.8, rule=rule)
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=4) as log:
        log.append([Decision("old", 0, 0.3, False, (0, 1))], policy=log.add_policy(with_rule(rule, other)))
        rows = [Decision(str(i), 0, 0.3, False) for i in range(200)]
        log.append(rows, policy=log.add_policy(with_rule(rule, shortlist)))
        log.label_all({str(i): 0 for i in range(200)})
        watched = watch(Stream.of_log(log))
    assert not watched.alarms
    assert watched.signals[1].cases == 0


def test_a_binary_rule_is_watched_by_the_names_of_classes():
    rng = np.random.default_rng(0)
    ill = (rng.random(900) < 0.3).astype(int)
    chance = 1 / (1 + np.exp(-(2.5 * (2 * ill - 1) + 2 * rng.normal(size=900))))
    both = np.stack([1 - chance, chance], axis=1)
    cases = Predictions.from_probabilities(both, ill, class_names=("healthy", "ill"))
    other = Predictions.from_probabilities(both[:, ::-1], 1 - ill, class_names=("ill", "healthy"))
    rule = choose_binary_rule(cases, sensitivity=0.9)
    first, second = (watch(Stream.of_predictions(with_rule(rule), each), reference=cases) for each in (cases, other))
    assert describe(first) == describe(second)
