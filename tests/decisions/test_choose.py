import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import certify, check_promise, choose_threshold, risk_coverage
from calibrant.decisions.bounds import cases_at_rate
from calibrant.errors import InvalidInput


def perfect(n, confidence=0.9999):
    return Predictions.from_probabilities(np.tile([confidence, 1 - confidence], (n, 1)), np.zeros(n, dtype=int))


def test_lowest_threshold_that_is_kept(draw):
    predictions = draw()
    rule = choose_threshold(predictions, 0.97)
    table = certify(predictions.confidence, predictions.correct, target_accuracy=0.97, level=0.05)
    assert rule.threshold == table.thresholds[table.kept].min()
    automate = predictions.confidence >= rule.threshold
    assert rule.evidence.automated == automate.sum()
    assert rule.evidence.errors == (automate & ~predictions.correct).sum()
    assert rule.automation_rate == automate.mean()
    assert (rule.target_accuracy, rule.confidence, rule.n_classes) == (0.97, 0.95, 3)
    assert rule.note.startswith("What is automated has an accuracy of at least 97 %")
    assert "every class" not in rule.note


def test_fewest_cases_for_a_promise():
    # All right, and one start: 0.99^298 > 0.05 >= 0.99^299.
    assert choose_threshold(perfect(298), starts=[0.99]).threshold is None
    assert choose_threshold(perfect(299), starts=[0.99]).automates


def test_too_few_cases_say_how_many_would_do(draw):
    rule = choose_threshold(perfect(100))
    assert rule.threshold is None
    assert not rule.automates
    assert rule.automation_rate == 0.0
    assert rule.note.startswith("No threshold can be promised: 100 cases")
    assert f"{rule.evidence.cases_needed:,} cases would be needed" in rule.note
    # Half of the error probability is spent at t = 0.99.
    assert rule.evidence.cases_needed == 368
    assert choose_threshold(perfect(367)).threshold is None
    assert choose_threshold(perfect(368)).automates


def test_needed_cases_count_those_that_are_not_confident():
    half = np.concatenate([np.full(50, 0.9999), np.full(50, 0.6)])
    targets = np.concatenate([np.zeros(50, dtype=int), np.tile([0, 1], 25)])
    predictions = Predictions.from_probabilities(np.stack([half, 1 - half], axis=1), targets)
    assert choose_threshold(predictions).evidence.cases_needed == 2 * cases_at_rate(0.0, 0.99, 0.025)


@pytest.mark.parametrize("n", [1, 5, 30, 60, 100])
def test_one_error_in_a_few_cases_does_not_exclude_the_target(n):
    confidence = np.full(n, 0.9999)
    predictions = Predictions.from_probabilities(
        np.stack([confidence, 1 - confidence], axis=1), (np.arange(n) == 0).astype(int)
    )
    rule = choose_threshold(predictions, 0.99)
    assert "will not help" not in rule.note
    assert f"About {rule.evidence.cases_needed:,} cases would be needed if errors are as rare as" in rule.note
    # The lowest error rate that one error in n allows (exact, one-sided): 1 - (1 - p)^n = 0.05. Below ten cases: any.
    lowest = 1 - 0.95 ** (1 / n) if n >= 10 else 0.0
    assert rule.evidence.cases_needed == cases_at_rate(lowest, 0.99, 0.025) >= 368


@pytest.mark.parametrize(("errors", "excluded"), [(3, False), (4, True)])
def test_the_target_is_excluded_where_the_exact_bound_excludes_it(errors, excluded):
    # 4 or more errors of 100 have probability 0.018 at a true accuracy of 0.99, 3 or more 0.079.
    predictions = Predictions.from_probabilities(np.tile([0.9999, 0.0001], (100, 1)), (np.arange(100) < errors) * 1)
    rule = choose_threshold(predictions, 0.99)
    assert (rule.evidence.cases_needed is None) == excluded
    assert ("more cases will not help" in rule.note) == excluded


def test_a_model_that_errs_too_often_is_not_helped_by_cases():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 1.0, size=500)
    predictions = Predictions.from_probabilities(
        np.stack([confidence, 1 - confidence], axis=1), (rng.random(500) < 0.3).astype(int)
    )
    rule = choose_threshold(predictions)
    assert rule.evidence.cases_needed is None
    assert "more cases will not help" in rule.note


def test_per_class_tests_each_class_at_its_part_of_the_level(draw):
    predictions = draw(4000)
    rule = choose_threshold(predictions, 0.95, per_class=True)
    assert rule.threshold is None
    for k, threshold in enumerate(rule.class_thresholds):
        mine = predictions.predicted == k
        table = certify(predictions.confidence[mine], predictions.correct[mine], target_accuracy=0.95, level=0.05 / 3)
        assert threshold == table.thresholds[table.kept].min()
    bars = np.array(rule.class_thresholds)[predictions.predicted]
    assert rule.evidence.automated == (predictions.confidence >= bars).sum()
    assert rule.note.endswith("with 95 % confidence in every class.")


def test_a_class_that_cannot_be_promised_is_never_automated(draw):
    predictions = draw(1500)
    targets = np.where(predictions.predicted == 1, 0, predictions.targets)
    spoiled = Predictions.from_probabilities(predictions.probabilities, targets)
    rule = choose_threshold(spoiled, 0.9, per_class=True)
    assert rule.class_thresholds[1] is None
    assert rule.class_thresholds[0] is not None
    assert not rule.route(spoiled.probabilities).automate[spoiled.predicted == 1].any()


def test_costs_choose_among_what_is_kept(draw):
    predictions = draw(4000)
    plain = choose_threshold(predictions, 0.95)
    dear = choose_threshold(predictions, 0.95, cost_error=500.0, cost_review=1.0)
    table = certify(predictions.confidence, predictions.correct, target_accuracy=0.95, level=0.05)
    cost = 500.0 * table.errors + (4000 - table.cases)
    assert dear.threshold > plain.threshold
    kept = np.flatnonzero(table.kept)
    assert cost[kept].min() == cost[table.thresholds == dear.threshold][0]
    assert dear.costs.per_1000 == pytest.approx(cost[kept].min() / 4)
    assert dear.costs.per_1000_all_review == 1000.0


def test_reviewing_everything_may_be_cheapest(draw):
    predictions = draw(4000)
    rule = choose_threshold(predictions, 0.9, thresholds=[0.0], starts=[0.0], cost_error=1000.0, cost_review=0.01)
    assert rule.threshold is None
    assert rule.note.startswith("Reviewing every case costs less")
    assert rule.evidence.cases_needed is None


@pytest.mark.parametrize(("cost_error", "threshold"), [(10.0, None), (9.999, 0.0)])
def test_a_person_looks_where_automating_saves_nothing(cost_error, threshold):
    predictions = Predictions.from_probabilities([[0.9, 0.1]] * 1000, [1] * 100 + [0] * 900)
    rule = choose_threshold(predictions, 0.8, thresholds=[0.0], starts=[0.0], cost_error=cost_error, cost_review=1.0)
    assert rule.threshold == threshold


def test_shares_of_any_float_type_are_taken(draw):
    rule = choose_threshold(draw(), np.float32(0.9), confidence=np.float32(0.9))
    assert (rule.target_accuracy, rule.confidence) == (float(np.float32(0.9)), float(np.float32(0.9)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_accuracy": 1.0}, "target_accuracy must"),
        ({"target_accuracy": 99}, "target_accuracy must"),
        ({"confidence": 0.0}, "confidence must"),
        ({"cost_error": 1.0}, "both costs"),
        ({"cost_error": -1.0, "cost_review": 1.0}, "cost_error must"),
        ({"cost_error": 1.0, "cost_review": float("nan")}, "cost_review must"),
        ({"cost_error": "x", "cost_review": 1.0}, "cost_error must"),
        ({"starts": 0.99}, r"starts must be numbers in 0\.\.1, at least one, got 0\.99\. One is written"),
        ({"thresholds": [2.0]}, "thresholds must"),
    ],
)
def test_bad_arguments(draw, arguments, message):
    with pytest.raises(InvalidInput, match=message):
        choose_threshold(draw(50), **arguments)


def test_a_bare_array_is_refused(draw):
    message = "predictions must be Predictions, got ndarray. Make them with Predictions.from_logits"
    for call in (choose_threshold, risk_coverage, lambda array: check_promise(choose_threshold(draw(50)), array)):
        with pytest.raises(InvalidInput, match=message):
            call(np.eye(3))


@pytest.mark.parametrize(("errors", "cases", "target"), [(1, 1001, 0.999), (20, 2001, 0.99)])
def test_an_error_rate_just_below_the_limit_is_no_crash(errors, cases, target):
    scores = np.tile([0.99999, 0.00001], (cases, 1))
    rule = choose_threshold(Predictions.from_probabilities(scores, (np.arange(cases) < errors) * 1), target)
    assert rule.threshold is None
    assert rule.evidence.cases_needed == 100_000_000
    assert "More than 100,000,000 cases would be needed" in rule.note


def test_good_cases_above_every_tested_threshold_need_a_calibrator():
    """Naive Bayes and the like: nearly every confidence is 1 to many digits, and only the last digits tell cases."""
    rng = np.random.default_rng(0)
    gap = 10.0 ** -rng.uniform(4.5, 14, size=4000)
    wrong = rng.random(4000) < np.where(gap > 1e-9, 0.3, 0.01)
    crowded = Predictions.from_probabilities(np.stack([1 - gap, gap], axis=1), wrong.astype(int))
    rule = choose_threshold(crowded, 0.9)
    assert rule.threshold is None
    assert "Calibrate the scores on other cases first" in rule.note
    calibrator = TemperatureScaling().fit(crowded.subset(np.arange(1000)))
    assert choose_threshold(calibrator(crowded.subset(np.arange(1000, 4000))), 0.9).automation_rate > 0.4
