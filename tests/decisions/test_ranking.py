"""Ranking scores against plain loops, their guarded choice, and rules for a class and a score."""

import csv
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import (
    Policy,
    RoutingRule,
    check_promise,
    choose_shortlist,
    choose_threshold,
    fit_policy,
    route_file,
)
from calibrant.decisions.ranking import choose_score, rank
from calibrant.errors import InvalidInput


def slow_rank(score, row):
    """The definition, one row at a time."""
    first, second = sorted(row, reverse=True)[:2]
    if score == "probability":
        return first
    if score == "margin":
        return first - second
    if score == "entropy":
        return 1 + sum(p * math.log(p) for p in row if p > 0) / math.log(len(row))
    p = int(score.removeprefix("pnorm"))
    logits = [math.log(max(each, 1e-300)) for each in row]
    centred = [z - sum(logits) / len(logits) for z in logits]
    norm = sum(abs(z) ** p for z in centred) ** (1 / p)
    return max(centred) / norm if norm else 0.0


def softmax(z):
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("score", ["probability", "margin", "entropy", "pnorm1", "pnorm2", "pnorm4", "pnorm11"])
def test_each_score_is_its_definition(score):
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [
            softmax(rng.normal(size=(50, 5)) * rng.uniform(0.1, 12, size=(50, 1))),
            [[0.2] * 5, [1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], softmax(np.array([[900.0, 0, 0, 0, 1]]))[0]],
        ]
    )
    values = rank(score, rows)
    np.testing.assert_allclose(values, [slow_rank(score, row) for row in rows.tolist()], atol=1e-12)
    assert ((values >= 0) & (values <= 1)).all()


@pytest.mark.parametrize("score", ["margin", "entropy", "pnorm4"])
def test_a_row_ranks_alike_alone_and_among_others(score):
    """Many classes, so that the rows are computed in several blocks."""
    rows = softmax(3 * np.random.default_rng(0).normal(size=(150, 1000)))
    values = rank(score, rows)
    np.testing.assert_array_equal(values, [rank(score, row[None])[0] for row in rows])
    np.testing.assert_allclose(values[::50], [slow_rank(score, row) for row in rows[::50].tolist()], atol=1e-12)


def test_the_p_norm_is_the_same_at_every_temperature():
    z = np.random.default_rng(0).normal(size=(200, 6))
    cold, warm = softmax(4 * z), softmax(0.5 * z)
    np.testing.assert_allclose(rank("pnorm4", cold), rank("pnorm4", warm))


def informative(seed, n):
    """A model with noise in the scale of its logits: the p-norm undoes it, the probability cannot."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5))
    targets = (8 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return Predictions.from_logits(z * np.exp(rng.uniform(-3, 3, size=(n, 1))), targets)


def calibrated(seed, n):
    rng = np.random.default_rng(seed)
    z = 4 * rng.normal(size=(n, 5))
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


def test_the_default_is_kept_unless_another_score_is_better_beyond_chance():
    assert [choose_score(calibrated(seed, 500)) for seed in range(10)].count("probability") >= 9
    assert all(choose_score(informative(seed, 1000)).startswith("pnorm") for seed in range(5))


def test_a_better_score_automates_more_and_is_part_of_the_policy(tmp_path):
    cases, new = informative(0, 5000), informative(1, 3000)
    plain, chosen = fit_policy(cases, 0.98), fit_policy(cases, 0.98, score="auto")
    assert chosen.rule.score.startswith("pnorm")
    assert chosen.rule.automation_rate > plain.rule.automation_rate + 0.05
    assert check_promise(chosen.rule, chosen.calibrate(new)).held
    chosen.save(tmp_path / "policy.json")
    read = Policy.load(tmp_path / "policy.json")
    assert (read.rule, read.digest) == (chosen.rule, chosen.digest)
    expected = chosen.decide(new).automate
    assert (read.decide(new.scores, "logits").automate == expected).all()
    new.save(tmp_path / "new.npz")
    route_file(read, tmp_path / "new.npz", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["decision"] == "auto" for row in rows] == expected.tolist()


@pytest.mark.parametrize("score", ["auto", "pnorm4", "margin"])
def test_a_chosen_score_keeps_the_promise(score):
    """The accuracy is just below the target whatever the score says."""
    broken = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        p = softmax(3 * rng.normal(size=(400, 4)))
        right = rng.random(400) < 0.9 - 1e-9
        targets = np.where(right, p.argmax(axis=1), (p.argmax(axis=1) + 1) % 4)
        broken += choose_threshold(
            Predictions.from_probabilities(p, targets), 0.9, confidence=0.9, score=score
        ).automates
    assert binomtest(broken, 100, 0.1, alternative="greater").pvalue > 1e-3


def first_less_third(probabilities):
    """A score of one's own, with any scale."""
    ordered = np.sort(probabilities, axis=1)
    return 1000 * (np.log(ordered[:, -1]) - np.log(ordered[:, -3]))


def test_a_score_of_ones_own_ranks_in_python_and_is_never_written(tmp_path):
    cases, new = calibrated(0, 4000), calibrated(1, 1000)
    policy = fit_policy(cases, 0.9, score=first_less_third)
    routed = policy.decide(new)
    ranks = first_less_third(policy.calibrate(new).probabilities)
    assert (routed.automate == (ranks >= policy.rule.threshold)).all()
    assert 0 < routed.automate.sum() < len(new)
    assert check_promise(policy.rule, policy.calibrate(new)).held
    assert "of the score first_less_third" in policy.rule.describe()
    with pytest.raises(InvalidInput, match="first_less_third cannot be written to a file, because no file may name"):
        policy.save(tmp_path / "policy.json")
    assert not any(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="must return a finite number for each of the"):
        fit_policy(cases, 0.9, score=lambda probabilities: probabilities)


def test_two_classes_have_nothing_to_choose():
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(800, 2))
    cases = Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))
    assert fit_policy(cases, 0.9, score="auto").rule.score == "probability"
    with pytest.raises(InvalidInput, match="With two classes every case has the same pnorm4"):
        fit_policy(cases, 0.9, score="pnorm4")


def test_a_shortlist_is_for_what_the_score_sends_to_a_person():
    policy = fit_policy(informative(0, 4000), 0.95, score="pnorm4")
    cases = policy.calibrate(informative(1, 1500))
    shortlist = choose_shortlist(cases, 0.9, rule=policy.rule)
    assert shortlist.cases == (~policy.rule.route(cases).automate).sum()
    read = Policy.from_dict(Policy(5, policy.calibrator, policy.rule, shortlist).to_dict())
    assert read.shortlist.score == "pnorm4"


def answers(seed, n=1500, kind="confidence", names=("cat", "dog", "owl")):
    rng = np.random.default_rng(seed)
    confidence = np.round(1 - 0.5 * rng.random(n) ** 2, 2)  # ties
    predicted = rng.integers(3, size=n)
    targets = np.where(rng.random(n) < confidence, predicted, (predicted + 1) % 3)
    said = confidence
    if kind == "score":
        said = 100 * confidence - 250
    labels = np.asarray(names)
    return Predictions.from_confidence(labels[predicted], said, labels[targets], kind=kind)


@pytest.mark.parametrize("kind", ["confidence", "score"])
def test_a_class_and_a_score_can_be_routed(kind):
    cases, new = answers(0, kind=kind), answers(1, kind=kind)
    policy = fit_policy(cases, 0.9)
    assert policy.automates
    routed = policy.decide(new)
    assert (routed.automate == (new.confidence >= policy.rule.threshold)).all()
    assert check_promise(policy.rule, new).held
    assert Policy.from_dict(policy.to_dict()) == policy


def test_a_class_and_a_confidence_have_the_rule_of_their_probabilities():
    cases = answers(0)
    top = cases.confidence
    p = np.full((len(top), 3), 0.0)
    p[np.arange(len(top)), cases.predicted] = top
    p[np.arange(len(top)), (cases.predicted + 1) % 3] = 1 - top
    whole = Predictions.from_probabilities(p, cases.targets)
    assert choose_threshold(cases, 0.9).threshold == choose_threshold(whole, 0.9).threshold


def test_classes_of_answers_are_found_by_name():
    rule = choose_threshold(answers(0), 0.9, per_class=True)
    new = answers(1)
    some = new.subset(new.predicted != 0)  # no cat among the predictions
    renamed = Predictions.from_confidence(
        np.asarray(new.class_names)[some.predicted], some.confidence, np.asarray(new.class_names)[some.targets]
    )
    assert (rule.route(renamed).predicted == some.predicted).all()


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="score must be 'probability', 'margin'"):
        choose_threshold(calibrated(0, 200), 0.9, score="loudness")
    with pytest.raises(InvalidInput, match="P from 1 to 20, such as 'pnorm4', got 'pnorm0'"):
        choose_threshold(calibrated(0, 200), 0.9, score="pnorm0")
    with pytest.raises(InvalidInput, match="needs the scores of all classes"):
        choose_threshold(answers(0), 0.9, score="pnorm4")
    rule = choose_threshold(answers(0, kind="score"), 0.9)
    with pytest.raises(InvalidInput, match="fitted on a score of the predicted class, and these have a confidence"):
        rule.route(answers(1))
    with pytest.raises(InvalidInput):
        rule.route([[0.9, 0.1]])  # scores of all classes
    with pytest.raises(InvalidInput, match="threshold must be finite"):
        RoutingRule(math.inf, 3, score="given")
