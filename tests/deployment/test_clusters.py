"""Rules that were chosen on clusters: a patient is one bet, however many pictures it has."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, choose_threshold, route_file
from calibrant.deployment import Decision, DecisionLog, Stream, advice, describe, promise_capital, read_stream, watch
from calibrant.errors import InvalidInput
from tests.deployment.conftest import with_rule

RULE = RoutingRule(
    0.9,
    2,
    target_accuracy=0.95,
    confidence=0.95,
    clusters=400,
    cluster_column="patient",
    largest_cluster=10,
)


def cases(sizes, wrong, *, ids=None):
    """Pictures of patients, each patient with so many pictures of which so many are wrong."""
    patients = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(patients)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    targets = (place < np.repeat(wrong, sizes)).astype(int)
    probabilities = np.tile([0.99, 0.01], (len(patients), 1))
    return Predictions.from_probabilities(probabilities, targets, ids=ids, extras={"patient": patients})


def all_or_none(rng, n):
    """Ten pictures each, right or wrong together: 5 % are wrong."""
    return np.full(n, 10), np.where(rng.random(n) < 0.05, 10, 0)


def small_ones_are_worse(rng, n):
    """Half of the patients have one picture and half ten. The former are wrong in 32.5 %, the latter in 2.25 %."""
    sizes = np.where(rng.random(n) < 0.5, 1, 10)
    return sizes, np.where(rng.random(n) < np.where(sizes == 1, 0.325, 0.0225), sizes, 0)


def sizes_of_all_kinds(rng, n):
    """One to ten pictures; each patient has its own error rate, 5 % on average."""
    sizes = rng.integers(1, 11, size=n)
    return sizes, rng.binomial(sizes, rng.beta(0.05, 0.95, size=n))


@pytest.mark.parametrize("world", [all_or_none, small_ones_are_worse, sizes_of_all_kinds])
def test_false_alarms_are_no_more_frequent_than_the_level(world):
    """30 streams at the promised 95 %, at a level of 10 %: more than 8 alarms have a probability below 0.01."""
    alarms = ignored = 0
    for seed in range(30):
        stream = cases(*world(np.random.default_rng(seed), 300))
        alarms += watch(Stream.of_predictions(with_rule(RULE), stream), level=0.1).broken
        alone = replace(RULE, clusters=None, cluster_column=None, largest_cluster=None)
        ignored += watch(Stream.of_predictions(with_rule(alone), stream), level=0.1).broken
    assert alarms <= 8
    assert ignored > 15  # what happens to whoever takes pictures for independent


def test_capital_of_clusters_is_not_expected_to_grow_while_the_promise_holds():
    """Over all outcomes of four patients with one or three pictures at the promised error rate: exact."""
    outcomes = {(1, 0): 0.5 * 0.6, (1, 1): 0.5 * 0.4, (3, 0): 0.5 * (0.8 + 0.4 / 6), (3, 3): 0.5 * (0.2 - 0.4 / 6)}
    mean = sum(chance * (errors - 0.2 * size) for (size, errors), chance in outcomes.items())
    assert mean == pytest.approx(0.0)
    expected = np.zeros(4)
    for several in itertools.product(outcomes, repeat=4):
        sizes, errors = np.array(several).T
        chance = np.prod([outcomes[each] for each in several])
        expected += chance * np.exp(promise_capital(errors, 0.2, cases=sizes, largest=3))
    assert expected == pytest.approx(np.ones(4))


def test_a_broken_promise_is_noticed():
    rng = np.random.default_rng(0)
    sizes = np.full(400, 10)
    wrong = np.where(rng.random(400) < np.where(np.arange(400) < 200, 0.02, 0.3), 10, 0)
    watched = watch(Stream.of_predictions(with_rule(RULE), cases(sizes, wrong)))
    assert watched.broken
    (signal,) = watched.signals
    assert 2000 < signal.alarm < 3000
    assert 1700 < signal.since < 2300
    assert signal.cases == 3990  # the last patient may still get labels
    assert signal.low <= 1 - wrong[:-1].sum() / 3990 <= signal.high
    assert "Each patient is one bet" in describe(watched)


def test_a_later_look_sees_the_same_capital_up_to_an_earlier_one():
    rng = np.random.default_rng(0)
    whole = cases(*sizes_of_all_kinds(rng, 60))
    late = watch(Stream.of_predictions(with_rule(RULE), whole)).signals[0].curve
    for n in range(1, len(whole), 7):
        early = watch(Stream.of_predictions(with_rule(RULE), whole.subset(np.arange(n)))).signals[0].curve
        assert late.evidence[: len(early.evidence)] == pytest.approx(early.evidence)
        assert late.case[: len(early.case)] == early.case


def test_a_rule_keeps_the_column_and_the_largest_cluster(tmp_path):
    rng = np.random.default_rng(1)
    fitted = cases(*sizes_of_all_kinds(rng, 900))
    rule = choose_threshold(fitted, 0.9, clusters="patient")
    assert (rule.clusters, rule.cluster_column, rule.largest_cluster) == (900, "patient", 10)
    with_rule(rule).save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").rule == rule
    with pytest.raises(InvalidInput, match="clusters must name a column"):
        choose_threshold(fitted, 0.9, clusters=fitted.extras["patient"])
    with pytest.raises(InvalidInput, match="cluster_column"):
        replace(rule, cluster_column=None)


def test_files_and_logs_bring_the_column(tmp_path):
    rng = np.random.default_rng(2)
    new = cases(*sizes_of_all_kinds(rng, 40))
    new = Predictions.from_probabilities(
        new.probabilities, new.targets, ids=[f"x{row}" for row in range(len(new))], extras=new.extras
    )
    new.save(tmp_path / "new.npz")
    expected = watch(Stream.of_predictions(with_rule(RULE), new)).signals
    route_file(with_rule(RULE), tmp_path / "new.npz", tmp_path / "decisions.csv", keep=["patient"])
    lines = [f"{name},{target}" for name, target in zip(new.ids, new.targets, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,target", *lines]))
    stream = read_stream(tmp_path / "decisions.csv", with_rule(RULE), labels=tmp_path / "labels.csv")
    assert watch(stream).signals == expected
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        own = zip(new.ids, new.extras["patient"].tolist(), strict=True)
        log.append(
            [Decision(name, 0, 0.99, True, extras={"patient": who}) for name, who in own],
            policy=log.add_policy(with_rule(RULE)),
        )
        for name, target in zip(new.ids, new.targets.tolist(), strict=True):
            log.label(name, target)
        assert watch(Stream.of_log(log)).signals == expected


def test_what_clusters_cannot_be_watched_is_refused():
    few = cases(np.array([3, 2, 4]), np.array([0, 0, 0]))
    bare = Predictions.from_probabilities(few.probabilities, few.targets)
    with pytest.raises(InvalidInput, match="clusters of the column 'patient', which the stream does not have"):
        watch(Stream.of_predictions(with_rule(RULE), bare))
    mixed = few.subset(np.array([0, 3, 1, 2, 4, 5, 6, 7, 8]))
    with pytest.raises(InvalidInput, match="come patient by patient, but one of patient 0 came after labels of others"):
        watch(Stream.of_predictions(with_rule(RULE), mixed))
    with pytest.raises(InvalidInput, match="patient 1 has 11 labelled cases, but the rule was chosen on at most 10"):
        watch(Stream.of_predictions(with_rule(RULE), cases(np.array([3, 11, 4]), np.array([0, 0, 0]))))
    with pytest.raises(InvalidInput, match="which the reference does not have"):
        watch(Stream.of_predictions(with_rule(RULE), few), reference=bare)


def test_labels_of_a_patient_count_when_the_next_one_begins():
    first = watch(Stream.of_predictions(with_rule(RULE), cases(np.array([4]), np.array([4])))).signals[0]
    assert (first.cases, first.evidence) == (0, 0.0)
    both = watch(Stream.of_predictions(with_rule(RULE), cases(np.array([4, 1]), np.array([4, 0])))).signals[0]
    assert both.cases == 4
    assert both.evidence > 0


def test_advice_is_to_label_whole_patients():
    watched = watch(Stream.of_predictions(with_rule(RULE), cases(np.full(50, 4), np.zeros(50, dtype=int))))
    assert "one patient after the other" in advice(watched)[0]
    alone = replace(RULE, clusters=None, cluster_column=None, largest_cluster=None)
    other = watch(Stream.of_predictions(with_rule(alone), cases(np.full(50, 4), np.zeros(50, dtype=int))))
    assert watched.labels_to_notice == 10 * other.labels_to_notice


def test_patients_with_like_confidences_are_no_drift():
    """Ten pictures of a patient have the same confidence, and nothing changes: 20 streams at a level of 10 %."""

    def draw(patients, seed):
        top = np.repeat(np.random.default_rng(seed).uniform(0.6, 1.0, size=patients), 10)
        right = np.zeros(len(top), dtype=int)
        members = {"patient": np.arange(len(top)) // 10}
        return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), right, extras=members)

    alarms = sum(
        bool(
            watch(
                Stream.of_predictions(with_rule(RULE), draw(200, seed)), reference=draw(60, 1000 + seed), level=0.1
            ).alarms
        )
        for seed in range(20)
    )
    assert alarms <= 6
    changed = Stream.of_predictions(with_rule(RULE), draw(200, 5))
    other = draw(60, 6)
    moved = Predictions.from_probabilities(
        np.stack([np.full(600, 0.99), np.full(600, 0.01)], axis=1), other.targets, extras=other.extras
    )
    assert {"confidence"} <= {each.about for each in watch(changed, reference=moved).alarms}
