"""Sensitivity and specificity: counts against loops, promises against many draws."""

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions
from calibrant.decisions import BinaryRule, Policy, binary_rates, choose_binary_rule
from calibrant.errors import InvalidInput


def draw(n, seed, *, share=0.3, names=None):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    return Predictions.from_binary(2.5 * (2 * y - 1) + 2 * rng.normal(size=n), y, kind="logits", class_names=names)


def test_rates_are_those_of_a_plain_loop():
    cases = draw(400, 0)
    chance = cases.probabilities[:, 1]
    for low, high in ((0.5, None), (0.2, 0.8)):
        rates, upper = binary_rates(cases, low, high), low if high is None else high
        missed = sum(p < low for p, y in zip(chance, cases.targets, strict=True) if y == 1)
        flagged = sum(p >= upper for p, y in zip(chance, cases.targets, strict=True) if y == 0)
        assert (rates.missed, rates.flagged) == (missed, flagged)
        assert rates.reviewed == sum(low <= p < upper for p in chance)
        assert rates.sensitivity == pytest.approx(1 - missed / rates.positives)
        assert rates.specificity_interval[0] < rates.specificity < rates.specificity_interval[1]


def test_the_low_threshold_is_the_order_statistic_of_the_ill():
    cases = draw(600, 1)
    rule = choose_binary_rule(cases, sensitivity=0.9, confidence=0.9)
    ill = np.sort(cases.probabilities[cases.targets == 1, 1])
    fine = [k for k in range(1, len(ill) + 1) if binom.cdf(k - 1, len(ill), 0.1) <= 0.1]
    assert rule.low == ill[fine[-1] - 1]
    assert rule.high == rule.low  # one promise alone: every case is decided
    assert rule.evidence.missed == fine[-1] - 1
    assert "review" not in rule.decide(cases)


def test_both_promises_leave_the_middle_to_a_person():
    cases = draw(2000, 2)
    rule = choose_binary_rule(cases, sensitivity=0.97, specificity=0.97)
    decisions = np.array(rule.decide(cases))
    assert set(decisions) == {"negative", "positive", "review"}
    assert rule.evidence.missed == ((decisions == "negative") & (cases.targets == 1)).sum()
    assert rule.evidence.flagged == ((decisions == "positive") & (cases.targets == 0)).sum()
    assert rule.evidence.sensitivity > 0.97
    easy = choose_binary_rule(cases, sensitivity=0.6, specificity=0.6)
    assert easy.low == easy.high


@pytest.mark.parametrize("which", ["sensitivity", "specificity", "both"])
def test_promises_hold_as_often_as_they_say(which):
    """400 teams; the truth is that of 200,000 cases. A tenth may break the promise, and two standard errors more."""
    stream = draw(200_000, 10**6)
    chance, ill = stream.probabilities[:, 1], stream.targets == 1
    asked = {"sensitivity": {"sensitivity": 0.9}, "specificity": {"sensitivity": None, "specificity": 0.9}}
    settings = asked.get(which, {"sensitivity": 0.9, "specificity": 0.9})
    broken = 0
    for seed in range(400):
        rule = choose_binary_rule(draw(300, seed), confidence=0.9, **settings)
        missed = (chance[ill] < rule.low).mean() if rule.sensitivity else 0.0
        flagged = (chance[~ill] >= (np.inf if rule.high is None else rule.high)).mean() if rule.specificity else 0.0
        broken += missed > 0.1 or flagged > 0.1
    assert broken <= 0.1 * 400 + 2 * np.sqrt(400 * 0.09)


def saturated(n, seed):
    """Nearly all chances are below 1e-16, where 1 - chance is 1."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.3
    return np.where(ill, rng.normal(-20, 25, n), rng.normal(-60, 10, n)), ill.astype(int)


def beyond_probabilities(n, seed):
    """Logits whose probabilities are exactly 0 or 1 for many cases of either class."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.4
    return np.where(ill, rng.normal(300, 600, n), rng.normal(-500, 600, n)), ill.astype(int)


def in_single_precision(n, seed):
    """Scores of a float32 model with few distinct values, so that many cases are equal."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.3
    scores = np.where(ill, rng.normal(-10, 20, n), rng.normal(-40, 15, n)).round(-1)
    return scores.astype(np.float32), ill.astype(int)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("world", [saturated, beyond_probabilities, in_single_precision])
def test_promises_hold_for_saturated_scores(world, turned):
    """100 teams with 5 % each: more than 12 broken promises have a probability below 0.001."""

    def cases(n, seed):
        scores, ill = world(n, seed)
        return Predictions.from_binary(-scores if turned else scores, 1 - ill if turned else ill, kind="logits")

    stream = cases(100_000, 10**6)
    ill = stream.targets == 1
    missed = flagged = 0
    for seed in range(100):
        low = choose_binary_rule(cases(1000, seed), sensitivity=0.95)
        high = choose_binary_rule(cases(1000, seed), sensitivity=None, specificity=0.95)
        missed += low.check(stream)["sensitivity"] < 0.95
        flagged += high.check(stream)["specificity"] < 0.95
    assert ill.any()
    assert missed <= 12
    assert flagged <= 12


@pytest.mark.parametrize("world", [saturated, beyond_probabilities, in_single_precision])
def test_a_saved_rule_decides_as_it_was_counted(world, tmp_path):
    scores, ill = world(2000, 5)
    cases = Predictions.from_binary(scores, ill, kind="logits")
    rule = choose_binary_rule(cases, sensitivity=0.95, specificity=0.9)
    rule.save(tmp_path / "rule.json")
    # Also for the same scores in double precision.
    wide = Predictions.from_binary(np.asarray(scores, dtype=np.float64), ill, kind="logits")
    decisions = np.array(BinaryRule.load(tmp_path / "rule.json").decide(wide))
    missed, flagged = ((decisions == "negative") & (ill == 1)).sum(), ((decisions == "positive") & (ill == 0)).sum()
    assert (rule.evidence.missed, rule.evidence.flagged) == (missed, flagged)
    negatives, level = (ill == 0).sum(), 0.05 / 2
    assert flagged <= max(k for k in range(negatives) if binom.cdf(k, negatives, 0.1) <= level)


def test_the_high_threshold_is_the_order_statistic_of_the_well():
    scores, ill = saturated(2000, 1)
    cases = Predictions.from_binary(scores, ill, kind="logits")
    rule = choose_binary_rule(cases, sensitivity=None, specificity=0.9)
    negatives = int((ill == 0).sum())
    allowed = max(k for k in range(negatives) if binom.cdf(k, negatives, 0.1) <= 0.05)
    assert rule.evidence.flagged == allowed
    decided = np.array(rule.decide(cases))
    # As good as a threshold on the logits themselves.
    limit = np.sort(scores[ill == 0])[::-1][allowed]
    assert (decided == np.where(scores > limit, "positive", "negative")).all()


def test_the_positive_class_may_be_the_first():
    cases = draw(500, 3)
    turned = Predictions.from_probabilities(cases.probabilities[:, ::-1], 1 - cases.targets)
    settings = {"sensitivity": 0.9, "specificity": 0.9}
    rules = choose_binary_rule(cases, **settings), choose_binary_rule(turned, positive=0, **settings)
    assert (rules[0].low, rules[0].high) == pytest.approx((rules[1].low, rules[1].high))


def test_too_few_ill_cases_are_promised_nothing():
    rule = choose_binary_rule(draw(60, 4), sensitivity=0.95)
    assert rule.sensitivity is None
    assert rule.low == 0.0
    assert "at least 59 are needed" in rule.note
    assert "negative" not in rule.decide(draw(60, 5))
    both = choose_binary_rule(draw(60, 4), sensitivity=0.95, specificity=0.99)
    assert set(both.decide(draw(60, 5))) == {"review"}


def test_a_rule_is_saved_and_checked(tmp_path):
    rule = choose_binary_rule(draw(2000, 6, names=["well", "ill"]), sensitivity=0.95, specificity=0.9)
    Policy(2, rule=rule).save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").rule == rule
    assert rule.check(draw(2000, 7))["held"] == {"sensitivity": True, "specificity": True}
    worse = Predictions.from_binary(np.full(200, -9.0), np.ones(200, dtype=int), kind="logits")
    assert rule.check(worse)["held"]["sensitivity"] is False


def test_bad_input_is_refused():
    three = Predictions.from_probabilities([[0.2, 0.3, 0.5]], [0])
    with pytest.raises(InvalidInput, match="predictions must have two classes, got 3"):
        binary_rates(three)
    with pytest.raises(InvalidInput, match="positive must be 0 or 1"):
        binary_rates(draw(10, 0), positive=2)
    with pytest.raises(InvalidInput, match="must be promised, got neither"):
        choose_binary_rule(draw(10, 0), sensitivity=None)
    with pytest.raises(InvalidInput, match="high must be at least low"):
        BinaryRule(0.6, 0.4, 1, 0.95, 0.9, 0.95)


def test_columns_in_another_order_do_not_turn_decisions_round():
    rng = np.random.default_rng(0)
    ill = (rng.random(2000) < 0.2).astype(int)
    chance = 1 / (1 + np.exp(-(2.5 * (2 * ill - 1) + 2 * rng.normal(size=2000))))
    both = np.stack([1 - chance, chance], axis=1)
    cases = Predictions.from_probabilities(both, ill, class_names=("healthy", "ill"))
    other = Predictions.from_probabilities(both[:, ::-1], 1 - ill, class_names=("ill", "healthy"))
    rule = choose_binary_rule(cases, sensitivity=0.95, specificity=0.9)
    assert rule.note.startswith("Positive is ill. ")
    assert rule.decide(other) == rule.decide(cases)
    assert rule.check(other) == rule.check(cases)
    strange = Predictions.from_probabilities(both, ill, class_names=("healthy", "dead"))
    with pytest.raises(InvalidInput, match="predictions must name the classes healthy, ill, got dead"):
        rule.decide(strange)
