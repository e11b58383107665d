"""Promises for groups and by cluster, against plain loops, and drawn many times."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions
from calibrant.decisions import (
    RoutingRule,
    certify,
    check_promise,
    choose_threshold,
)
from calibrant.decisions.bounds import cluster_p_value
from calibrant.decisions.certify import default_starts, default_thresholds
from calibrant.errors import InvalidInput


def draw(n, seed, *, sites=("a", "b"), shares=None, worse=None, sharpness=7.0):
    rng = np.random.default_rng(seed)
    z = sharpness * rng.normal(size=(n, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    site = rng.choice(sites, size=n, p=shares)
    y = np.where((site == worse) & (rng.random(n) < 0.3), rng.integers(3, size=n), y)
    return Predictions.from_logits(z, y, extras={"site": site, "patient": np.arange(n) // 4})


def slow_common(cases, groups, target, level):
    """A threshold passes where all cases and every group pass; strictest first, with the parts of the starts."""
    grid = sorted(default_thresholds(), reverse=True)
    waiting, budget, kept = sorted(default_starts(target).items(), reverse=True), 0.0, []
    for position, t in enumerate(grid):
        while waiting and (waiting[0][0] >= t or position == len(grid) - 1):
            budget += level * waiting.pop(0)[1]
        p_value = 0.0
        for member in (np.ones(len(cases), bool), *groups):
            chosen = member & (cases.confidence >= t)
            p_value = max(p_value, binom.cdf((chosen & ~cases.correct).sum(), chosen.sum(), 1 - target))
        if budget > 0 and p_value <= budget:
            kept.append(t)
        else:
            budget = 0.0
    return min(kept, default=None)


@pytest.mark.parametrize("seed", range(4))
def test_the_common_threshold_is_that_of_a_plain_loop(seed):
    cases = draw(2500, seed, sites=("a", "b", "c"))
    rule = choose_threshold(cases, 0.95, groups="site")
    site = cases.extras["site"]
    assert rule.threshold == slow_common(cases, [site == name for name in "abc"], 0.95, 0.05)


def test_groups_are_counted_promised_and_priced(tmp_path):
    cases = draw(4000, 5, sites=("a", "b", "tiny"), shares=(0.6, 0.39, 0.01))
    rule = choose_threshold(cases, 0.95, groups="site")
    plain = choose_threshold(cases, 0.95)
    assert rule.threshold >= plain.threshold
    assert rule.groups == "site"
    for each in rule.group_evidence:
        own = cases.extras["site"] == each.name
        automated = own & (cases.confidence >= rule.threshold)
        assert (each.cases, each.automated) == (own.sum(), automated.sum())
        assert each.errors == (automated & ~cases.correct).sum()
        assert each.promised == (each.name != "tiny")
    price = 100 * (plain.automation_rate - rule.automation_rate)
    assert f"costs {price:.1f} points of automation" in rule.note
    assert "Nothing is promised for tiny alone: fewer than 72 cases cannot show it" in rule.note
    assert "tiny" in rule.describe()
    assert RoutingRule.from_dict(rule.to_dict()) == rule


def test_a_group_in_the_way_is_named():
    rule = choose_threshold(draw(4000, 6, worse="b"), 0.95, groups="site")
    assert rule.threshold is None
    assert "It was asked for each of 2 groups: b do not show it at any threshold." in rule.note
    assert choose_threshold(draw(4000, 6), 0.95, groups="site").automates


def test_a_check_looks_at_every_promised_group():
    rule = choose_threshold(draw(4000, 7), 0.95, groups="site")
    good, bad = (check_promise(rule, draw(4000, 8, worse=worse)) for worse in (None, "b"))
    assert [line.name for line in good.groups] == ["all", "site a", "site b"]
    assert good.held
    assert [line.held for line in bad.groups] == [False, True, False]
    bare = draw(500, 9)
    bare = Predictions.from_logits(bare.scores, bare.targets)
    assert [line.name for line in check_promise(rule, bare).groups] == ["all"]


def test_rules_without_groups_have_no_such_keys():
    assert not {"groups", "group_evidence", "clusters"} & set(choose_threshold(draw(500, 1), 0.9).to_dict())


def test_bad_members_are_refused():
    cases = draw(300, 0)
    with pytest.raises(InvalidInput, match="groups must be left out with per_class"):
        choose_threshold(cases, 0.9, groups="site", per_class=True)
    with pytest.raises(InvalidInput, match="groups must be a column of the predictions, got 'ward'"):
        choose_threshold(cases, 0.9, groups="ward")
    with pytest.raises(InvalidInput, match="clusters must be a column of the predictions, got 'ward'"):
        choose_threshold(cases, 0.9, clusters="ward")


def slow_cluster_p(cases, errors, promised, largest):
    shares = [*np.geomspace(0.02, 0.6, 9), *(1 - np.geomspace(0.3, 0.001, 7))]
    capital = 0.0
    for share in shares:
        bet = share / (1 - promised)
        capital += math.prod(1 - bet * (e - promised * c) / largest for c, e in zip(cases, errors, strict=True))
    return min(1.0, len(shares) / capital)


def test_cluster_p_value_is_the_inverse_of_the_capital():
    rng = np.random.default_rng(0)
    cases = rng.integers(0, 6, size=40)
    errors = rng.binomial(cases, 0.05)
    assert cluster_p_value(cases, errors, 0.2, 5) == pytest.approx(slow_cluster_p(cases, errors, 0.2, 5))


def test_capital_against_a_broken_promise_is_not_expected_to_grow():
    """Over all outcomes of four clusters of two cases that are right or wrong together, at the promised rate: exact."""
    expected = 0.0
    for wrong in itertools.product([0, 1], repeat=4):
        probability = math.prod(0.2 if each else 0.8 for each in wrong)
        capital = np.mean([math.prod(1 - s / 0.8 * (2 * e - 0.4) / 2 for e in wrong) for s in (0.1, 0.5, 0.9)])
        expected += probability * capital
    assert expected == pytest.approx(1.0)


def test_clustered_thresholds_are_those_of_every_p_value():
    cases = draw(1200, 3)
    table = certify(
        cases.confidence,
        cases.correct,
        target_accuracy=0.9,
        level=0.05,
        thresholds=[0.99, 0.9, 0.8],
        starts=[0.99],
        clusters=cases.extras["patient"],
    )
    expected, alive = [], True
    for t in (0.99, 0.9, 0.8):
        sure = cases.confidence >= t
        size = np.bincount(cases.extras["patient"][sure], minlength=300)
        wrong = np.bincount(cases.extras["patient"][sure & ~cases.correct], minlength=300)
        alive = alive and cluster_p_value(size, wrong, 1 - 0.9, 4) <= 0.05
        expected.append(alive)
    assert table.kept.tolist() == expected


def test_clusters_of_equal_cases_are_not_counted_as_many():
    """Each patient's ten pictures are all right or all wrong; 12 of 100 patients are wrong where 10 % are promised."""
    broken = {"clusters": 0, "rows": 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        right = np.repeat(rng.random(100) < 0.88, 10)
        probabilities = np.tile([0.95, 0.05], (1000, 1))
        cases = Predictions.from_probabilities(
            probabilities, np.where(right, 0, 1), extras={"patient": np.arange(1000) // 10}
        )
        for name, settings in (("clusters", {"clusters": "patient"}), ("rows", {})):
            broken[name] += choose_threshold(cases, 0.9, starts=[0.9], **settings).automates
    assert broken["clusters"] <= 10
    assert broken["rows"] > 20
