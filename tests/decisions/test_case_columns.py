"""Promises for groups and by cluster, against plain loops, and drawn many times."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, certify, check_promise, choose_shortlist, choose_threshold
from calibrant.decisions.bounds import cluster_p_value
from calibrant.decisions.certify import default_starts, default_thresholds
from calibrant.deployment import Stream, watch
from calibrant.errors import CalibrantWarning, InvalidInput


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


def test_groups_with_numbers_for_names_are_the_same_as_integers_and_as_floats():
    def numbered(seed, kind):
        cases = draw(3000, seed)
        extras = {"site": (cases.extras["site"] == "b").astype(kind)}
        return Predictions.from_logits(cases.logits, cases.targets, extras=extras)

    common = choose_threshold(numbered(0, int), 0.9, groups="site")
    own = choose_threshold(numbered(0, int), 0.9, per_group="site")
    assert [name for name, _ in own.group_thresholds] == ["0", "1"]
    for rule in (common, own):
        lines = [check_promise(rule, numbered(1, kind)).groups for kind in (int, float)]
        assert [line.name for line in lines[1]] == ["all", "site 0", "site 1"]
        assert lines[0] == lines[1]
    stream = Stream.of_predictions(Policy(3, rule=common), numbered(1, float))
    found = watch(stream.select(where=("site", "1")))
    assert found.groups == "site"
    assert watch(stream.select(where=("site", "1.0"))).signals == found.signals


def test_a_check_without_a_case_of_the_promised_groups_says_so():
    rule = choose_threshold(draw(3000, 0), 0.9, groups="site")
    with pytest.warns(CalibrantWarning, match=r"in a group that the rule promises for \(site: a, b\)"):
        found = check_promise(rule, draw(3000, 1, sites=("A", "B")))
    assert [line.name for line in found.groups] == ["all"]


def test_as_many_cases_are_needed_as_one_start_takes_in_all_groups():
    cases = draw(2000, 7, sites=("a", "b", "c"), shares=(0.6, 0.3, 0.1), sharpness=4)
    rule = choose_threshold(cases, 0.95, groups="site")
    assert "No threshold passes in all of 3 groups" in rule.note  # each passes somewhere
    needed = rule.evidence.cases_needed
    for times, shown in ((1.05, True), (0.6, False)):
        again = cases.subset(np.arange(int(times * needed)) % 2000)
        assert (choose_threshold(again, 0.95, groups="site").threshold is not None) == shown


def test_groups_are_counted_and_promised():
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
    assert "Nothing is promised for tiny alone: fewer than 72 cases cannot show it" in rule.note
    assert "tiny" in rule.describe()
    assert RoutingRule.from_dict(rule.to_dict()) == rule


def test_a_group_in_the_way_is_named():
    rule = choose_threshold(draw(4000, 6, worse="b"), 0.95, groups="site")
    assert rule.threshold is None
    assert "Groups that do not show it by themselves at any threshold: b." in rule.note
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


def test_bad_members_are_refused():
    cases = draw(300, 0)
    with pytest.raises(InvalidInput, match="groups must be left out with per_class or per_group"):
        choose_threshold(cases, 0.9, groups="site", per_class=True)
    with pytest.raises(InvalidInput, match="groups must"):
        choose_threshold(cases, 0.9, groups="ward")
    with pytest.raises(InvalidInput, match="clusters must"):
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


def languages(seed, n=3000, *, right=(0.995, 0.985, 0.93), shares=(0.5, 0.49, 0.01)):
    """Each language has its own accuracy at every confidence."""
    rng = np.random.default_rng(seed)
    language = rng.choice(3, size=n, p=shares)
    top = 1.0 - 0.45 * rng.random(n) ** 3
    correct = rng.random(n) < np.asarray(right)[language]
    scores = np.stack([top, 1 - top], axis=1)
    names = np.array(["de", "en", "fi"])[language]
    return Predictions.from_probabilities(scores, np.where(correct, 0, 1), extras={"language": names})


def test_each_group_has_the_threshold_of_its_own_cases():
    cases = languages(0)
    together = choose_threshold(cases, 0.95, per_group="language")
    each = choose_threshold(cases, 0.95, per_group="language", group_confidence="each")
    for name in ("de", "en"):
        own = cases.subset(cases.extras["language"] == name)
        assert dict(together.group_thresholds)[name] == choose_threshold(own, 0.95, confidence=0.975).threshold
        assert dict(each.group_thresholds)[name] == choose_threshold(own, 0.95).threshold
    assert dict(together.group_thresholds)["fi"] is None  # too few cases
    assert [group.promised for group in together.group_evidence] == [True, True, False]
    assert (
        "in 2 of 3 groups of 'language' (de, en), in all of these groups together with 95 % confidence" in together.note
    )
    assert "in each group by itself" in each.note
    assert "Fewer than 59 cases (fi) cannot show it" in together.note  # 0.95**59 < 0.05
    assert RoutingRule.from_dict(together.to_dict()) == together
    routed = together.route(cases)
    assert routed.automate.sum() == together.evidence.automated
    assert not routed.automate[cases.extras["language"] == "fi"].any()
    assert [line.name for line in check_promise(together, languages(1)).groups] == ["all", "language de", "language en"]


def test_a_group_without_a_promise_learns_how_many_cases_it_needs():
    cases = languages(0).subset(np.arange(300))
    rule = choose_threshold(cases, 0.98, per_group="language", group_confidence="each")
    english = choose_threshold(cases.subset(cases.extras["language"] == "en"), 0.98)
    assert not rule.automates
    assert not english.automates
    assert f"en {english.evidence.cases_needed:,}" in rule.note


def test_a_case_of_an_unknown_group_goes_to_a_person():
    rule = choose_threshold(languages(0), 0.95, per_group="language")
    sure = [[1.0, 0.0], [1.0, 0.0]]
    assert Policy(2, rule=rule).decide(sure, "probabilities", groups=["de", "xx"]).decisions == ["auto", "review"]
    with pytest.raises(InvalidInput, match="This rule has a threshold for each value of 'language'"):
        rule.route(sure)
    with pytest.raises(InvalidInput, match="rule must have thresholds that do not depend on groups"):
        choose_shortlist(languages(1), rule=rule)
    with pytest.raises(InvalidInput, match="cost_review must be left out with per_group"):
        choose_threshold(languages(0), per_group="language", cost_error=2, cost_review=1)
    with pytest.raises(InvalidInput, match="group_confidence must be"):
        choose_threshold(languages(0), per_group="language", group_confidence="all")


def test_groups_that_are_all_too_small_promise_nothing_with_clusters_either():
    rng = np.random.default_rng(0)
    extras = {"site": np.arange(60) % 6, "patient": np.arange(60) // 2}
    chance = rng.uniform(0.5, 1.0, 60)
    cases = Predictions.from_probabilities(np.stack([chance, 1 - chance], axis=1), np.zeros(60, int), extras=extras)
    rule = choose_threshold(cases, 0.99, per_group="site", clusters="patient")
    assert not rule.automates
    assert (rule.cluster_column, rule.largest_cluster) == ("patient", 2)


def test_thresholds_per_group_keep_their_promise_together():
    """Both large groups are just below the target: a threshold for either breaks the promise."""
    broken = 0
    for seed in range(150):
        cases = languages(seed, 600, right=(0.9 - 1e-9, 0.9 - 1e-9, 1.0))
        broken += choose_threshold(cases, 0.9, confidence=0.9, per_group="language").automates
    assert binomtest(broken, 150, 0.1, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("promise", [{"per_class": True}, {"groups": "sure"}, {"per_group": "sure"}])
def test_a_cluster_may_be_all_of_one_class_or_group_although_none_of_these_is(promise):
    """Of each patient one picture of 20 is called positive; of one patient in 100 all are, and wrong: 17 % of them."""
    automated = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        burst = rng.random((100, 1)) < 0.01
        positive = burst | (np.arange(20) == 0)
        extras = {"patient": np.repeat(np.arange(100), 20), "sure": positive.ravel()}
        chance, targets = np.where(positive, 0.97, 0.03).ravel(), (positive & ~burst).ravel().astype(int)
        cases = Predictions.from_binary(chance, targets, kind="probabilities", extras=extras)
        rule = choose_threshold(cases, 0.9, confidence=0.9, clusters="patient", **promise)
        assert rule.largest_cluster == 20
        one = Predictions.from_binary([0.97], [1], kind="probabilities", extras={"sure": [True]})
        automated += bool(rule.route(one).automate[0])
    assert binomtest(automated, 25, 0.1, alternative="greater").pvalue > 1e-3


def test_thresholds_per_group_belong_to_one_score_that_is_chosen_once():
    """The p-norm ranks one group better, the probability the other; each threshold is on the scale of the rule."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        group = rng.integers(2, size=3000)
        logits = 3 * rng.normal(size=(3000, 5))
        targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        logits[group == 1] *= np.exp(1.2 * rng.normal(size=((group == 1).sum(), 1)))
        cases = Predictions.from_logits(logits, targets, extras={"group": group})
        rule = choose_threshold(cases, 0.9, confidence=0.9, per_group="group", score="auto")
        routed = rule.route(cases)
        for own, evidence in enumerate(rule.group_evidence):
            seen = (group == own) & routed.automate
            assert not seen.any() or cases.correct[seen].mean() >= 0.9
            assert evidence.promised == bool(seen.any())


def test_the_largest_cluster_need_not_be_among_the_cases():
    extras = {"patient": np.arange(4000) // 2}
    cases = Predictions.from_binary(np.full(4000, 0.97), np.ones(4000, int), kind="probabilities", extras=extras)
    assert choose_threshold(cases, 0.9, clusters="patient").largest_cluster == 2
    assert choose_threshold(cases, 0.9, clusters="patient", largest_cluster=20).automates
    none = choose_threshold(cases, 0.9, clusters="patient", largest_cluster=400)
    assert (none.automates, none.largest_cluster) == (False, 400)
    with pytest.raises(InvalidInput, match="largest_cluster must be at least the largest cluster of these cases, 2"):
        choose_threshold(cases, 0.9, clusters="patient", largest_cluster=1)
    with pytest.raises(InvalidInput, match="largest_cluster must be left out without clusters"):
        choose_threshold(cases, 0.9, largest_cluster=20)
