from fractions import Fraction
from math import comb

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, Shortlist, check_shortlist, choose_shortlist
from calibrant.decisions.bounds import tolerance_rank
from calibrant.errors import InvalidInput


def slow_rank(cases, coverage, confidence):
    """In fractions, term by term."""
    coverage, confidence = Fraction(str(coverage)), Fraction(str(confidence))
    total, rank = Fraction(0), 0
    for misses in range(cases + 1):
        total += comb(cases, misses) * (1 - coverage) ** misses * coverage ** (cases - misses)
        if total > 1 - confidence:
            break
        rank = misses + 1
    return rank


@pytest.mark.parametrize("cases", [0, 1, 58, 59, 60, 92, 93, 300])
@pytest.mark.parametrize(("coverage", "confidence"), [(0.95, 0.95), (0.9, 0.99), (0.5, 0.6)])
def test_the_rank_is_the_largest_that_the_binomial_allows(cases, coverage, confidence):
    assert tolerance_rank(cases, 1 - coverage, 1 - confidence) == slow_rank(cases, coverage, confidence)


def slow_lists(probabilities, least):
    made = []
    for row in probabilities:
        order = sorted(range(len(row)), key=lambda k: -row[k])
        made.append([str(k) for place, k in enumerate(order) if place == 0 or row[k] >= least])
    return made


def test_lists_are_those_of_the_definition(draw):
    predictions = draw(500, classes=5)
    shortlist = choose_shortlist(predictions, 0.98)
    p = predictions.probabilities
    of_true = sorted(p[np.arange(500), predictions.targets])
    assert shortlist.least == pytest.approx(of_true[slow_rank(500, 0.98, 0.95) - 1], rel=1e-8)
    assert shortlist.least < of_true[slow_rank(500, 0.98, 0.95) - 1]
    expected = slow_lists(p.tolist(), shortlist.least)
    assert shortlist.names(p) == expected
    assert shortlist.cases == 500
    assert shortlist.missed == sum(str(y) not in names for y, names in zip(predictions.targets, expected, strict=True))
    assert shortlist.mean_length == pytest.approx(sum(map(len, expected)) / 500)
    assert shortlist.listed(p).sum(axis=1).tolist() == [len(names) for names in expected]
    assert shortlist.listed(predictions.logits, "logits").tolist() == shortlist.listed(p).tolist()


def test_equal_probabilities_are_listed_in_the_order_of_classes():
    p = np.array([[0.2, 0.4, 0.0, 0.4], [0.25, 0.25, 0.25, 0.25], [0.1, 0.1, 0.1, 0.7]])
    shortlist = Shortlist(least=0.2, n_classes=4, coverage=0.9, confidence=0.9)
    assert shortlist.names(p) == slow_lists(p.tolist(), 0.2) == [["1", "3", "0"], ["0", "1", "2", "3"], ["3"]]
    top = Shortlist(least=1.0, n_classes=4, coverage=0.9, confidence=0.9)
    assert top.names(p) == [["1"], ["0"], ["3"]]
    assert top.names(p[:0]) == []


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_promise_is_kept_as_often_as_it_says(draw, temperature):
    """Of many teams with 120 cases each, at most 1 - confidence get a level that too many true classes stay below."""
    stream = draw(40_000, classes=4, seed=99, temperature=temperature)
    of_true = stream.probabilities[np.arange(len(stream)), stream.targets]
    teams = [draw(120, classes=4, seed=team, temperature=temperature) for team in range(300)]
    broken = np.mean([(of_true >= choose_shortlist(team, 0.9, confidence=0.8).least).mean() < 0.9 for team in teams])
    # Within three standard deviations of 20 %, and not far below: the lists are no longer than they must be.
    assert 0.08 < broken <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / len(teams))


def test_behind_a_rule_only_what_goes_to_a_person_counts(draw):
    predictions = draw(3000, classes=4)
    rule = RoutingRule(threshold=0.9, n_classes=4)
    shortlist = choose_shortlist(predictions, 0.95, rule=rule)
    p = predictions.probabilities
    review = p.max(axis=1) < 0.9
    of_true = np.sort(p[np.arange(3000), predictions.targets][review])
    assert shortlist.cases == review.sum() < 3000
    assert shortlist.least == pytest.approx(of_true[slow_rank(int(review.sum()), 0.95, 0.95) - 1], rel=1e-8)
    assert (shortlist.threshold, shortlist.n_classes) == (0.9, 4)
    assert shortlist.listed(predictions.probabilities).tolist() == shortlist.within(p).tolist()
    assert "go to a person" in shortlist.note
    result = check_shortlist(shortlist, draw(3000, classes=4, seed=1), rule=rule)
    assert result.held
    assert result.cases < 3000
    assert result.covered == pytest.approx(1 - result.missed / result.cases)
    assert result.low < result.covered < result.high
    # The promise is for these cases whether the rule is named again or not.
    assert check_shortlist(shortlist, draw(3000, classes=4, seed=1)) == result


def test_a_shortlist_stands_only_beside_the_rule_that_it_was_chosen_with(draw):
    """Another threshold sends other cases to a person, and the promise says nothing of those."""
    cases, new = draw(2000), draw(2000, seed=1)
    low, high = RoutingRule(threshold=0.6, n_classes=3), RoutingRule(threshold=0.99, n_classes=3)
    by_class = RoutingRule(threshold=None, n_classes=3, class_thresholds=(0.6, None, 0.6))
    nothing = RoutingRule(threshold=None, n_classes=3)
    lists = {rule: choose_shortlist(cases, rule=rule) for rule in (low, high, by_class, nothing)}
    for own, shortlist in lists.items():
        assert check_shortlist(shortlist, new, rule=own).cases > 0
        for other in set(lists) - {own}:
            with pytest.raises(InvalidInput, match="thresholds of the shortlist must be the rule's"):
                check_shortlist(shortlist, new, rule=other)
    assert choose_shortlist(cases).check_fits(nothing) is None
    with pytest.raises(InvalidInput, match=r"the rule's \(0.6, 0.6, 0.6\), got inf, inf, inf\. Choose"):
        choose_shortlist(cases).check_fits(low)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_probabilities_in_half_precision_are_taken_as_they_are(draw, precision):
    rounded = torch.from_numpy(draw(500, classes=8, temperature=0.2).probabilities).to(precision)
    predictions = Predictions.from_probabilities(rounded, draw(500, classes=8).targets)
    p = rounded.double().numpy()
    assert (rounded.double().sum(dim=1) - 1).abs().max() > 1e-4
    rule = RoutingRule(threshold=0.8, n_classes=8)
    shortlist = choose_shortlist(predictions, 0.8, rule=rule)
    review = p.max(axis=1) < 0.8
    of_true = np.sort(p[np.arange(500), predictions.targets][review])
    assert shortlist.least == pytest.approx(of_true[slow_rank(int(review.sum()), 0.8, 0.95) - 1], rel=1e-8)
    assert check_shortlist(shortlist, predictions, rule=rule).missed == shortlist.missed


def test_too_few_cases_list_every_class_and_say_how_many_it_takes(draw):
    shortlist = choose_shortlist(draw(58))
    assert shortlist.least == 0.0
    assert shortlist.listed([[0.9, 0.1, 0.0]]).all()
    assert "takes at least 59" in shortlist.note
    assert choose_shortlist(draw(59)).least > 0
    nothing = choose_shortlist(draw(100), rule=RoutingRule(threshold=0.0, n_classes=3))
    assert (nothing.cases, nothing.mean_length) == (0, 0.0)


def test_true_classes_of_probability_zero_are_covered_by_all_classes_only():
    p = np.tile([1.0, 0.0, 0.0], (200, 1))
    shortlist = choose_shortlist(Predictions.from_probabilities(p, np.arange(200) % 3))
    assert shortlist.least == 0.0
    assert "probability 0" in shortlist.note
    assert shortlist.missed == 0


def test_rounded_probabilities_above_one_are_no_error():
    p = np.tile(np.array([1.0000001, 0.0, 0.0], dtype=np.float32), (100, 1))
    shortlist = choose_shortlist(Predictions.from_probabilities(p, np.zeros(100, dtype=int)))
    assert (shortlist.least, shortlist.missed, shortlist.mean_length) == (1.0, 0, 1.0)


def test_a_broken_promise_is_seen(draw):
    shortlist = Shortlist(least=0.9, n_classes=3, coverage=0.99, confidence=0.95)
    result = check_shortlist(shortlist, draw(2000, temperature=0.1))
    assert not result.held
    assert result.high < 0.99


def test_named_classes_are_read_by_name(draw):
    named = draw(500, class_names=["cat", "dog", "owl"])
    rule = RoutingRule(threshold=0.999, n_classes=3, class_names=("cat", "dog", "owl"))
    shortlist = choose_shortlist(named, rule=rule)
    turned = Predictions.from_logits(
        named.logits[:, [2, 0, 1]], np.array([1, 2, 0])[named.targets], class_names=["owl", "cat", "dog"]
    )
    assert check_shortlist(shortlist, turned, rule=rule) == check_shortlist(shortlist, named, rule=rule)
    assert shortlist.names(np.array([[0.1, 0.6, 0.3]]))[0][0] == "dog"


def test_shortlists_of_every_kind_are_kept(draw):
    named = choose_shortlist(draw(300, class_names=["a", "b", "c"]))
    narrow = choose_shortlist(draw(300), np.float32(0.9), confidence=np.float32(0.9))
    by_class = choose_shortlist(draw(300), rule=RoutingRule(None, 3, class_thresholds=(0.9, None, 0.9)))
    for shortlist in (named, narrow, by_class):
        assert Shortlist.from_dict(shortlist.to_dict()) == shortlist


@pytest.mark.parametrize("change", [{"least": float("inf")}, {"least": None}, {"coverage": 1}])
def test_a_shortlist_that_cannot_be_applied(draw, change):
    with pytest.raises(InvalidInput, match=next(iter(change))):
        Shortlist.from_dict(choose_shortlist(draw(300)).to_dict() | change)


def test_bad_input(draw):
    with pytest.raises(InvalidInput, match="coverage must"):
        choose_shortlist(draw(100), 95)
    with pytest.raises(InvalidInput, match="made for 4 classes and cannot be applied to 3"):
        choose_shortlist(draw(100), rule=RoutingRule(threshold=0.9, n_classes=4))
    many = Shortlist(0.1, 1000, 0.9, 0.9, tuple(f"n{k}" for k in range(1000)))
    with pytest.raises(InvalidInput, match=r"the rule's \(None\), got n0, n1, n2, n3, n4, \.\.\.\. Choose"):
        many.check_fits(RoutingRule(threshold=None, n_classes=1000))


def patients(count, seed, pictures=10):
    """The pictures of a patient are the same."""
    rng = np.random.default_rng(seed)
    logits = np.repeat(2 * rng.normal(size=(count, 5)), pictures, axis=0)
    noise = np.repeat(rng.gumbel(size=(count, 5)), pictures, axis=0)
    extras = {"patient": np.repeat(np.arange(count), pictures)}
    return Predictions.from_logits(logits, (logits + noise).argmax(axis=1), extras=extras)


BY_PATIENT = RoutingRule(0.9, 5, 0.9, 0.9, clusters=60, cluster_column="patient", largest_cluster=10)


def test_a_shortlist_of_a_rule_by_clusters_goes_by_clusters():
    everyone = patients(20_000, 0, 1)
    stream = everyone.subset(~BY_PATIENT.route(everyone).automate)
    broken = 0
    for seed in range(1, 31):
        shortlist = choose_shortlist(patients(60, seed), 0.9, confidence=0.9, rule=BY_PATIENT)
        broken += shortlist.holds_true(stream).mean() < 0.9 - 0.003
    assert binomtest(broken, 30, 0.1, alternative="greater").pvalue > 1e-3
    assert "Cases of one of the 60 clusters may depend on each other." in shortlist.note
    few = choose_shortlist(patients(5, 0), 0.9, confidence=0.9, rule=BY_PATIENT)
    assert few.least == 0.0
    assert "cases of 5 clusters" in few.note
    with pytest.raises(InvalidInput, match="clusters"):
        choose_shortlist(Predictions.from_logits(np.eye(5), np.arange(5)), rule=BY_PATIENT)


def test_the_check_of_a_shortlist_goes_by_the_clusters_of_the_rule():
    stream = patients(20_000, 0, 1)
    shortlist = Shortlist(0.1, 5, 0.5, 0.9, threshold=0.9)
    covered = check_shortlist(shortlist, stream).covered
    exact = Shortlist(0.1, 5, covered, 0.9, threshold=0.9)
    verdicts = []
    for seed in range(1, 31):
        cases = patients(60, seed)
        by_case, by_patient = check_shortlist(exact, cases), check_shortlist(exact, cases, rule=BY_PATIENT)
        assert by_patient.low <= by_case.low <= by_case.high <= by_patient.high
        verdicts.append(by_patient.held)
    assert all(verdicts)
