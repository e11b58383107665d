import json
from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, choose_threshold
from calibrant.decisions.rule import GroupEvidence
from calibrant.deployment import Stream, describe, headline, promise_capital, watch
from calibrant.deployment.betting import labels_to_notice
from calibrant.deployment.signals import compare_labelled, sameness_signal
from calibrant.errors import InvalidInput
from tests.deployment.conftest import draw, joined, with_rule


def test_a_stream_like_the_reference_raises_no_alarm(rule, reference):
    watched = watch(Stream.of_predictions(with_rule(rule), draw(2500, seed=2)), reference=reference)
    assert watched.alarms == ()
    assert watched.since is None
    assert [each.about for each in watched.signals] == ["promise", "share automated", "confidence", "predicted classes"]
    text = describe(watched)
    labels = watched.signals[0].cases
    assert labels < watched.labels_to_notice < watched.labels_to_notice_from_now
    assert text.startswith(f"No alarm, which says little yet: {labels:,} labels show that the accuracy")
    assert f"{watched.labels_to_notice:,} labels would show it in 9 of 10 streams" in text
    assert f"it takes {watched.labels_to_notice_from_now:,} more" in text
    assert "predicted classes: the commonest" in text
    assert f" of {2 / 0.05:g} " in text  # half of the level is the promise's


def test_a_planted_drop_of_accuracy_is_found_and_dated(rule, reference):
    stream = Stream.of_predictions(with_rule(rule), joined(draw(1500, seed=3), draw(1500, seed=4, flipped=0.1)))
    watched = watch(stream, reference=reference)
    assert watched.broken
    (alarm,) = watched.alarms
    assert 1500 < alarm.alarm < 2300
    assert 1300 < alarm.since < 1700
    assert alarm.since_seen < 0.95 < 0.98 == alarm.expected
    assert alarm.low <= alarm.seen <= alarm.high
    assert watched.labelled_since == 3000 - alarm.since + 1
    assert "no longer kept" in describe(watched)
    assert "over 40 " in describe(watched)
    assert "Send every case to a person" in describe(watched)


def test_drift_without_labels_is_found_and_named(rule, reference):
    rows = joined(draw(1000, seed=5), draw(1000, seed=6, sharpness=3.0))
    seen = Stream.of_predictions(with_rule(rule), rows)
    blind = Stream(with_rule(rule), seen.automate, seen.predicted, seen.confidence, np.full(2000, -1))
    watched = watch(blind, reference=reference)
    assert not watched.broken
    assert {each.about for each in watched.alarms} == {"share automated", "confidence"}
    assert 850 < watched.since < 1150
    assert "only labels can tell" in describe(watched)


def test_a_class_that_becomes_frequent_is_named(rule, reference):
    rows = joined(draw(800, seed=7), draw(800, seed=8, classes=[0, 0, 6, 0]))
    watched = watch(Stream.of_predictions(with_rule(rule), rows), reference=reference)
    (alarm,) = [each for each in watched.alarms if each.about == "predicted classes"]
    assert alarm.detail.startswith("c: 2")


@pytest.mark.parametrize("change", ["40 vanish and 20 triple", "neighbours trade places", "one class in five remains"])
def test_classes_that_change_places_within_a_twentieth_are_noticed(change):
    """100 classes. In each block of five, shares change while the share of the block stays."""
    shares = {
        "40 vanish and 20 triple": [0, 0, 3, 1, 1],
        "neighbours trade places": [0.2, 1.8, 1, 0.2, 1.8],
        "one class in five remains": [5, 0, 0, 0, 0],
    }
    rng = np.random.default_rng(0)
    before, after = np.full(100, 0.01), np.tile(shares[change], 20) / 100
    reference, same = rng.choice(100, size=2000, p=before), rng.choice(100, size=2000, p=before)
    changed = np.concatenate([same[:500], rng.choice(100, size=1500, p=after)])
    names = tuple(map(str, range(100)))
    settings = {"level": 0.01, "rows": np.arange(2000), "names": names}
    assert sameness_signal("predicted classes", reference, same, **settings).alarm is None
    signal = sameness_signal("predicted classes", reference, changed, **settings)
    assert 500 < signal.alarm < 1500
    assert 350 < signal.since < 650


def for_groups(rule, **promised):
    """The same rule with the promise for some sites; the others had too few cases."""
    evidence = tuple(GroupEvidence(name, 500, 400, 1, made) for name, made in promised.items())
    return replace(rule, groups="site", group_evidence=evidence)


def test_levels_of_all_tests_add_up_to_no_more_than_the_level(rule, reference):
    own = for_groups(rule, a=True, b=True, c=False)
    site = {"site": np.array(["a", "b", "c", "new"])[np.arange(900) % 4]}
    stream = Stream.of_predictions(with_rule(own), draw(900, seed=9, extras=site))
    for settings in ({}, {"groups": "site"}, {"reference": reference}, {"reference": reference, "groups": "site"}):
        watched = watch(stream, level=0.1, **settings)
        assert sum(each.level for each in watched.signals) == pytest.approx(0.1)
    groups = {each.group: each.level for each in watched.signals if each.group.startswith("site")}
    assert groups == pytest.approx({"site a": 0.0125, "site b": 0.0125})
    assert [each.group for each in watched.described] == ["site c", "site new"]


def test_a_promised_group_that_fails_is_named_though_all_cases_together_hold(rule):
    rng = np.random.default_rng(0)
    good, bad = draw(6000, seed=10), draw(600, seed=11, flipped=0.3)
    order = rng.permutation(6600)
    rows = joined(good, bad).subset(order)
    rows = type(rows).from_logits(
        rows.scores,
        rows.targets,
        class_names=rows.class_names,
        extras={"site": np.where(order < 6000, "north", "south")},
    )
    alarms = watch(Stream.of_predictions(with_rule(for_groups(rule, north=True, south=True)), rows)).alarms
    assert "site south" in {each.group for each in alarms}
    assert "site north" not in {each.group for each in alarms}


def two_sites(n, seed, *, share, accuracies):
    """Cases of site A and, for `share` of them, site B, with their own accuracies and the same confidence."""
    rng = np.random.default_rng(seed)
    site = np.where(rng.random(n) < share, "B", "A")
    right = rng.random(n) < np.where(site == "A", *accuracies)
    probabilities = np.tile([0.995, 0.005], (n, 1))
    return Predictions.from_probabilities(probabilities, np.where(right, 0, 1), extras={"site": site})


@pytest.mark.parametrize(("share", "accuracies"), [(0.1, (0.998, 0.95)), (0.5, (1.0, 0.982)), (0.02, (0.994, 0.9))])
def test_a_group_that_was_promised_nothing_is_described_and_not_tested(share, accuracies):
    """The promise of 99 % holds for all cases together, and nothing has changed."""
    rule = RoutingRule(0.9, 2, target_accuracy=0.99, confidence=0.95)
    for seed in range(5):
        stream = Stream.of_predictions(with_rule(rule), two_sites(3000, seed, share=share, accuracies=accuracies))
        watched = watch(stream, groups="site")
        assert not watched.alarms
        assert not watched.broken
        assert [(each.group, each.level) for each in watched.signals] == [("all", 0.05)]
        for each in watched.described:
            own = stream.extras["site"] == each.group.removeprefix("site ")
            assert (each.cases, each.seen) == (own.sum(), pytest.approx((stream.targets == 0)[own].mean()))
            assert each.low < each.seen <= each.high
            assert each.low < accuracies[each.group == "site B"] <= each.high
        text = describe(watched)
        assert "Groups that nothing was promised for: described, not tested" in text
        assert text.count("site B") == 1
        assert {each["group"] for each in watched.to_dict()["described"]} == {"site A", "site B"}


def test_a_group_with_too_few_calibration_cases_raises_no_alarm():
    """Few cases of site B: the rule promises nothing for it, where only 95 % are right, before and after."""
    settings = {"share": 0.05, "accuracies": (0.9995, 0.95)}
    rule = choose_threshold(two_sites(4000, 0, **settings), 0.99, groups="site")
    assert {each.name: each.promised for each in rule.group_evidence} == {"A": True, "B": False}
    for seed in range(5):
        watched = watch(Stream.of_predictions(with_rule(rule), two_sites(8000, 100 + seed, **settings)))
        assert not watched.alarms
        assert [each.group for each in watched.signals] == ["all", "site A"]
        assert [each.group for each in watched.described] == ["site B"]


def test_labels_count_in_the_order_in_which_they_came(rule):
    """A look now and a look after more labels see the same capital up to the earlier label."""
    seen = Stream.of_predictions(with_rule(rule), draw(400, seed=12, flipped=0.1))
    order = np.random.default_rng(0).permutation(400) + 1
    some = np.where(order <= 200, seen.targets, -1)
    early = watch(Stream(with_rule(rule), seen.automate, seen.predicted, seen.confidence, some, order)).signals[0]
    late = watch(Stream(with_rule(rule), seen.automate, seen.predicted, seen.confidence, seen.targets, order)).signals[
        0
    ]
    assert late.curve.evidence[: early.cases] == pytest.approx(early.curve.evidence)


def test_per_class_rules_are_watched_class_by_class(reference):
    rule = choose_threshold(draw(8000, seed=13), 0.95, per_class=True)
    signals = watch(Stream.of_predictions(with_rule(rule), draw(500, seed=14))).signals
    assert [each.group for each in signals] == ["a", "b", "c", "d"]
    assert sum(each.level for each in signals) == pytest.approx(0.05)


def test_json_has_places_and_no_curves(rule):
    rows = joined(draw(300, seed=15, ids=True), draw(600, seed=16, flipped=0.4, ids=True))
    content = watch(Stream.of_predictions(with_rule(rule), rows)).to_dict()
    text = json.loads(json.dumps(content, allow_nan=False))
    (signal,) = text["signals"]
    assert signal["alarm"]["id"].startswith("case-16-")
    assert text["alarm"] is True
    assert text["since"]["case"] == signal["since"]["case"]
    assert "curve" not in signal


def test_no_labels_is_said(rule):
    seen = Stream.of_predictions(with_rule(rule), draw(50, seed=17))
    watched = watch(Stream(with_rule(rule), seen.automate, seen.predicted, seen.confidence, np.full(50, -1)))
    assert "there are no labels of automated cases" in describe(watched)
    assert watched.signals[0].seen is None


def test_what_cannot_be_watched_is_refused(rule, reference):
    stream = Stream.of_predictions(with_rule(rule), draw(50, seed=18))
    with pytest.raises(InvalidInput, match="groups must be a column of the cases, got 'site'"):
        watch(stream, groups="site")
    nothing, costs = (RoutingRule(t, 4, class_names=("a", "b", "c", "d")) for t in (None, 0.9))
    with pytest.raises(InvalidInput, match="automates nothing"):
        watch(Stream.of_predictions(with_rule(nothing), draw(50, seed=18)))
    with pytest.raises(InvalidInput, match="promise something if no reference"):
        watch(Stream.of_predictions(with_rule(costs), draw(50, seed=18)))
    assert len(watch(Stream.of_predictions(with_rule(costs), draw(50, seed=18)), reference=reference).signals) == 3


def test_false_alarms_are_no_more_frequent_than_the_level():
    """100 teams choose a rule and watch 400 cases of the same stream; at every case, with all four tests."""
    false, level = 0, 0.2
    for seed in range(100):
        chosen = choose_threshold(draw(400, seed=1000 + seed), 0.9)
        stream = Stream.of_predictions(with_rule(chosen), draw(400, seed=5000 + seed))
        false += bool(watch(stream, reference=draw(400, seed=1000 + seed), level=level).alarms)
    assert false <= 100 * level


def decided(rule, confidence, right, order):
    """Automated cases of class 0, and labels in an order; 0 for none."""
    targets = np.where(order > 0, np.where(right, 0, 1), -1)
    predicted = np.zeros(len(order), dtype=int)
    return Stream.of_decisions(rule, confidence >= 0.9, predicted, confidence, targets=targets, label_order=order)


ALWAYS = RoutingRule(0.9, 2, target_accuracy=0.99, confidence=0.95)


def chosen(rng, confidence, how):
    """Which cases are labelled: all the same, or mostly the sure ones, or mostly the others, or by the sign of time."""
    chance = {
        "at random": np.full(len(confidence), 0.1),
        "sure ones": np.where(confidence > 0.97, 0.15, 0.03),
        "doubtful ones": np.where(confidence > 0.97, 0.03, 0.15),
        "later ones more often": np.linspace(0.02, 0.2, len(confidence)),
    }
    return rng.random(len(confidence)) < chance[how]


@pytest.mark.parametrize(
    ("how", "fair"),
    [("at random", True), ("later ones more often", True), ("sure ones", False), ("doubtful ones", False)],
)
def test_labels_of_other_cases_than_the_unlabelled_ones_are_said_to_be_unfair(how, fair):
    """The confidence drifts, and labels come in random order; the latter alone is no reason for a warning."""
    rng = np.random.default_rng(0)
    confidence = np.clip(rng.uniform(0.9, 1.0, size=4000) - np.linspace(0, 0.03, 4000) * rng.random(4000), 0.9, 1)
    labelled = chosen(rng, confidence, how)
    order = np.zeros(4000, dtype=int)
    order[labelled] = rng.permutation(int(labelled.sum())) + 1
    watched = watch(decided(ALWAYS, confidence, np.ones(4000, dtype=bool), order))
    assert watched.labelling.fair is fair
    assert not watched.alarms
    text = describe(watched)
    assert ("not a fair draw" in text) is not fair
    assert ("Draw the cases to label at random" in text) is not fair
    assert watched.to_dict()["labelling"]["fair"] is fair
    if how == "sure ones":
        assert watched.labelling.labelled_confidence > watched.labelling.unlabelled_confidence
        assert headline(watched).startswith("No alarm, but the labels are not a fair draw")


def test_labels_of_all_cases_are_fair_in_whatever_order_they_came():
    confidence = np.random.default_rng(0).uniform(0.9, 1.0, size=2000)
    order = np.argsort(np.argsort(confidence)) + 1  # the doubtful ones first
    assert watch(decided(ALWAYS, confidence, np.ones(2000, dtype=bool), order)).labelling is None


def test_fair_labels_are_rarely_said_to_be_unfair():
    """At every look, 200 streams, at a level of 1 %: more than 7 have a probability of 0.001."""
    unfair = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        confidence = rng.choice([0.91, 0.95, 0.99], size=400)
        order = np.zeros(400, dtype=int)
        some = rng.permutation(400)[:80]
        order[some] = np.arange(1, 81)
        looks = [compare_labelled(confidence[:n], np.where(order <= n // 5, order, 0)[:n]) for n in range(50, 401, 50)]
        unfair += any(look is not None and not look.fair for look in looks)
    assert unfair <= 7


def test_five_labels_say_little():
    order = np.zeros(100, dtype=int)
    order[:5] = np.arange(1, 6)
    watched = watch(decided(ALWAYS, np.full(100, 0.95), np.ones(100, dtype=bool), order))
    low = watched.signals[0].low
    assert low < 0.6
    said = f"5 labels show that the accuracy of all automated cases is at least {100 * low:.3g} %; 99 % is promised."
    assert headline(watched) == f"No alarm, which says little yet: {said}"


@pytest.mark.parametrize(("target", "late"), [(0.9, 0), (0.9, 5), (0.7, 0), (0.7, 5), (0.95, 1)])
def test_labels_to_notice_are_enough_in_nine_of_ten_streams(target, late):
    """Errors become twice as frequent at the first label, or after so many times as many good ones."""
    promised, level, rng = 1 - target, 0.05, np.random.default_rng(0)
    before = late * labels_to_notice(promised, level)
    enough = labels_to_notice(promised, level, after=before)
    rates = np.concatenate([np.full(before, 0.7 * promised), np.full(enough, 2 * promised)])
    alarm = promise_capital(rng.random((100, len(rates))) < rates, promised) >= -np.log(level)
    quiet = ~alarm[:, :before].any(axis=1)
    assert alarm[quiet].any(axis=1).mean() >= 0.88
