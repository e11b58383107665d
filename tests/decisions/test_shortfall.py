"""What is said if nothing can be promised, and ways to search that pay for what they try."""

import warnings

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, choose_threshold
from calibrant.errors import CalibrantWarning, InvalidInput

DRAWS = 120


def with_confidence(top, right, **extra):
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1), **extra)


def edge(seed, n=300, accuracy=0.9, **extra):
    """Right with the same probability at every confidence."""
    rng = np.random.default_rng(seed)
    return with_confidence(1 - 0.45 * rng.random(n) ** 3, rng.random(n) < accuracy, **extra)


def slow_supported(cases, level):
    """The highest of the exact lower bounds over the grid, each with an equal part of the level."""
    grid = [*(1 - np.geomspace(1e-4, 0.5, 16)), 0.4, 0.3, 0.2, 0.0]
    bounds = []
    for t in grid:
        sure = cases.confidence >= t
        right, count = int((sure & cases.correct).sum()), int(sure.sum())
        bounds.append(beta.ppf(level / len(grid), right, count - right + 1) if right else 0.0)
    best = max(bounds)
    return best, min(t for t, bound in zip(grid, bounds, strict=True) if bound == best)


def test_the_supported_accuracy_is_the_highest_bound_of_a_fixed_grid():
    cases = edge(0)
    rule = choose_threshold(cases, 0.97)
    accuracy, threshold = slow_supported(cases, 0.05)
    assert not rule.automates
    assert rule.supported.accuracy == pytest.approx(accuracy)
    assert rule.supported.threshold == threshold
    assert rule.supported.automated == (cases.confidence >= threshold).mean()
    assert not rule.supported.reserved
    assert "an exploratory figure" in rule.note
    wrong = beta.ppf(0.05, (~cases.correct).sum(), cases.correct.sum() + 1)
    assert rule.supported.least_review == pytest.approx((wrong - 0.03) / 0.97)
    assert f"at least {100 * rule.supported.least_review:.1f} % of the cases must be reviewed" in rule.note
    assert RoutingRule.from_dict(rule.to_dict()) == rule
    assert choose_threshold(cases, 0.8).supported is None


def test_a_reserved_part_of_the_level_promises_the_supported_accuracy():
    """Right in exactly 90 % at every threshold: a supported accuracy above that is wrong. 10 % of draws may be."""
    wrong = 0
    for seed in range(DRAWS):
        rule = choose_threshold(edge(seed, 150), 0.97, confidence=0.9, reserve=0.5)
        if rule.supported is None:
            wrong += rule.automates
        else:
            assert rule.supported.reserved
            wrong += rule.supported.accuracy > 0.9
    assert binomtest(wrong, DRAWS, 0.1, alternative="greater").pvalue > 1e-3
    cases = edge(0, 150)
    assert (
        choose_threshold(cases, 0.97, reserve=0.5).supported.accuracy < choose_threshold(cases, 0.97).supported.accuracy
    )
    with pytest.raises(InvalidInput, match="reserve must be a share of the level"):
        choose_threshold(cases, reserve=1.0)


def test_clusters_support_less():
    patient = np.arange(300) // 10
    cases = edge(0, extras={"patient": patient})
    by_row, by_patient = choose_threshold(cases, 0.97), choose_threshold(cases, 0.97, clusters="patient")
    assert by_patient.supported.accuracy < by_row.supported.accuracy


def overconfident(seed, n=500):
    rng = np.random.default_rng(seed)
    z = 4.0 * rng.normal(size=(n, 4))
    return Predictions.from_logits(3.0 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


def test_the_split_search_automates_more_for_an_overconfident_model():
    shares = {
        search: np.mean(
            [choose_threshold(overconfident(s), 0.95, search=search, seed=s).automation_rate for s in range(40)]
        )
        for search in ("fixed", "split")
    }
    assert shares["split"] > shares["fixed"] + 0.05


def test_a_split_search_keeps_the_promise():
    """Just below the target at every threshold: whatever is automated breaks it."""
    cases = [edge(seed, 250, 0.9 - 1e-9) for seed in range(DRAWS)]
    broken = sum(choose_threshold(each, 0.9, confidence=0.9, search="split").automates for each in cases)
    assert binomtest(broken, DRAWS, 0.1, alternative="greater").pvalue > 1e-3


def test_a_split_search_counts_the_cases_that_it_tested():
    rule = choose_threshold(overconfident(0, 2000), 0.9, search="split")
    assert rule.evidence.cases == 1500
    assert "500 other cases were spent to find where to start." in rule.note
    grouped = edge(0, 2000, 0.97, extras={"site": np.arange(2000) % 2, "patient": np.arange(2000) // 5})
    rule = choose_threshold(grouped, 0.9, search="split", groups="site", clusters="patient")
    assert rule.automates
    assert rule.clusters == 300
    with pytest.raises(InvalidInput, match="groups must name a column"):
        choose_threshold(grouped, 0.9, groups=np.arange(2000) % 2)
    with pytest.raises(InvalidInput, match="search must be"):
        choose_threshold(grouped, 0.9, search="best")


def candidates(seed, n=250, ways=8):
    """The same cases, ranked in eight ways that say nothing about being right."""
    rng = np.random.default_rng(seed)
    right = rng.random(n) < 0.9 - 1e-9
    return [with_confidence(1 - 0.45 * rng.random(n) ** 3, right) for _ in range(ways)]


def test_candidates_pay_for_the_choice():
    """The best of eight would break a promise far more often than allowed; with the level divided it does not."""
    paid = tried = 0
    for seed in range(DRAWS):
        first, *others = candidates(seed)
        paid += choose_threshold(first, 0.9, confidence=0.9, starts=[0.9], candidates=others).automates
        tried += any(choose_threshold(each, 0.9, confidence=0.9, starts=[0.9]).automates for each in (first, *others))
    assert binomtest(paid, DRAWS, 0.1, alternative="greater").pvalue > 1e-3
    assert tried > 0.2 * DRAWS


def test_the_best_candidate_is_named():
    rng = np.random.default_rng(0)
    right = rng.random(2000) < 0.8
    blind = with_confidence(1 - 0.45 * rng.random(2000), right)
    good = with_confidence(np.where(right, 0.9, 0.6) + 0.05 * rng.random(2000), right)
    rule = choose_threshold(blind, 0.95, candidates=[blind, good])
    assert rule.candidate == 2
    assert rule.confidence == 0.95
    assert "each tested with 1/3 of the error probability" in rule.note
    assert rule.threshold == choose_threshold(good, 0.95, confidence=1 - 0.05 / 3).threshold
    with pytest.raises(InvalidInput, match="candidates must be predictions for the same 2000 cases"):
        choose_threshold(blind, candidates=[good.subset(np.arange(5))])


def test_a_policy_warns_from_the_second_rule_on_the_same_file(tmp_path):
    edge(0, 2000, 0.97).save(tmp_path / "val.npz")
    cases = Predictions.load(tmp_path / "val.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = Policy(2).with_rule(choose_threshold(cases, 0.9))
        policy = policy.with_rule(choose_threshold(cases, 0.9))  # the same again
        policy.save(tmp_path / "policy.json")
        policy = Policy.load(tmp_path / "policy.json")
        policy.with_rule(choose_threshold(edge(1, 2000, 0.97), 0.95))  # not from a file: not known
    assert [fit.what for fit in policy.fits] == ["accuracy 0.9 with confidence 0.95, raw scores"]
    with pytest.warns(CalibrantWarning, match="2 different rules were fitted on the same cases"):
        second = policy.with_rule(choose_threshold(cases, 0.93))
    assert len(second.fits) == 2
    assert second.digest == Policy(2).with_rule(second.rule).digest


def test_the_number_of_cases_needed_counts_clusters():
    rng = np.random.default_rng(3)
    pages, words = 120, 20
    bad = np.repeat(rng.random(pages) < 0.04, words)
    right = rng.random(pages * words) < np.where(bad, 0.5, 0.995)

    def chosen(times):
        page = np.tile(np.repeat(np.arange(pages), words), times) + np.repeat(np.arange(times), pages * words) * pages
        cases = Predictions.from_confidence(
            np.ones(len(page), np.int64),
            np.full(len(page), 0.97),
            np.tile(right, times).astype(int),
            extras={"page": page},
        )
        return choose_threshold(cases, 0.95, clusters="page")

    nothing = chosen(1)
    assert not nothing.automates
    times = nothing.evidence.cases_needed / len(right)
    assert times > 1.2  # without clusters 2,400 cases are enough
    assert not chosen(int(times)).automates
    assert chosen(int(np.ceil(times))).automates
