import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions, evaluate
from calibrant.metrics.intervals import exact_interval
from calibrant.report.summaries import (
    automated,
    class_names,
    confident_mistakes,
    largest_tie,
    reliability_bands,
    worst_classes,
)


def slow_automated(predictions, delta, n_bins=15):
    """The definition row by row."""
    rows = [(c, r) for c, r in zip(predictions.confidence.tolist(), predictions.correct.tolist(), strict=True)]
    chosen = [(c, r) for c, r in rows if c >= delta]
    ece = 0.0
    for b in range(n_bins):
        inside = [(c, r) for c, r in chosen if (b / n_bins < c <= (b + 1) / n_bins) or (b == 0 and c == 0)]
        ece += abs(sum(c - r for c, r in inside))
    right = sum(r for _, r in chosen)
    return len(chosen), right, ece / len(chosen) if chosen else None


@pytest.mark.parametrize("delta", [0.0, 0.3, 0.5, 0.75, 0.9, 0.95, 0.999, 1.0])
def test_automated_counts_by_the_definition(predictions, delta):
    result = automated(predictions, delta)
    count, right, ece = slow_automated(predictions, delta)
    assert (result.cases, result.automated, result.right, result.reviewed) == (600, count, right, 600 - count)
    assert result.share == count / 600
    assert result.ece == (None if ece is None else pytest.approx(ece, abs=1e-13))


def test_nothing_automated_has_no_accuracy():
    result = automated(Predictions.from_probabilities([[0.6, 0.4]], [0]), 0.95)
    assert (result.automated, result.share, result.accuracy, result.interval, result.ece) == (0, 0.0, None, None, None)


def test_cost_counts_errors_and_reviews_of_a_thousand_cases():
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.55, 0.45]], [0, 1, 0, 1])
    # One wrong among two automated, two reviewed, of four: 250 errors and 500 reviews in a thousand.
    assert automated(predictions, 0.8).cost(error=10, review=1) == 250 * 10 + 500 * 1


def test_bands_are_exact_and_binomial_quantiles(predictions):
    bands = reliability_bands(predictions, 10)
    numbers = np.minimum((np.ceil(predictions.confidence * 10) - 1).astype(int), 9)
    filled, counts = np.unique(numbers, return_counts=True)
    assert 0 < len(filled) < 10
    assert bands.low_edge == pytest.approx(filled / 10)
    assert bands.high_edge == pytest.approx((filled + 1) / 10)
    assert bands.cases.tolist() == counts.tolist()
    assert bands.ece == pytest.approx(evaluate(predictions, n_bins=10).ece)
    for place, number in enumerate(filled):
        n, right = int(counts[place]), int(predictions.correct[numbers == number].sum())
        mean = predictions.confidence[numbers == number].mean(dtype=np.float64)
        assert (bands.right[place], bands.accuracy[place]) == (right, right / n)
        assert bands.confidence[place] == pytest.approx(mean)
        assert (bands.low[place], bands.high[place]) == exact_interval(right, n)
        assert bands.floor_low[place] * n == pytest.approx(binom(n, mean).ppf(0.025))
        assert bands.floor_high[place] * n == pytest.approx(binom(n, mean).ppf(0.975))


def test_noise_floor_band_holds_most_bins_of_a_perfectly_calibrated_model():
    rng = np.random.default_rng(3)
    inside = total = 0
    for _ in range(40):
        top = rng.uniform(0.5, 1.0, 2000)
        predictions = Predictions.from_probabilities(np.stack([top, 1 - top], 1), (rng.random(2000) > top).astype(int))
        bands = reliability_bands(predictions, 10)
        inside += int(((bands.accuracy >= bands.floor_low) & (bands.accuracy <= bands.floor_high)).sum())
        total += len(bands.cases)
    # 95 % by construction, slightly more because quantiles of counts are rounded outwards; 4 s.d. below is 0.89.
    assert inside / total > 0.89


# Class 0: 2 of 3 right; class 1: never predicted, 0 of 2; class 2: 1 of 1; class 3: no rows.
PROBABILITIES = np.array(
    [
        [0.97, 0.01, 0.01, 0.01],
        [0.60, 0.20, 0.10, 0.10],
        [0.10, 0.10, 0.70, 0.10],
        [0.96, 0.02, 0.01, 0.01],
        [0.10, 0.30, 0.50, 0.10],
        [0.00, 0.00, 1.00, 0.00],
    ]
)
TARGETS = [0, 0, 0, 1, 1, 2]


@pytest.fixture
def small():
    return Predictions.from_probabilities(PROBABILITIES, TARGETS, class_names=["ant", "bee", "cow", "dog"])


def test_worst_classes_by_hand(small):
    report = worst_classes(small, threshold=0.95)
    assert [row.name for row in report.rows] == ["bee", "ant", "cow"]
    bee, ant, cow = report.rows
    assert (bee.cases, bee.accuracy, bee.automated, bee.automated_wrong) == (2, 0.0, 0.5, 1)
    assert bee.confidence == pytest.approx((0.96 + 0.5) / 2)
    assert (bee.confused_with, bee.confused) == ("ant", 1)
    assert (ant.cases, ant.accuracy, ant.confused_with, ant.confused) == (3, pytest.approx(2 / 3), "cow", 1)
    assert (ant.low, ant.high) == exact_interval(2, 3)
    assert (cow.confused_with, cow.confused) == (None, 0)
    assert (report.never_predicted, report.never_seen, report.classes) == (("bee",), ("dog",), 4)


def test_only_the_worst_are_kept(small):
    assert [row.name for row in worst_classes(small, most=1).rows] == ["bee"]


def test_most_confident_mistakes_by_hand(small):
    mistakes = confident_mistakes(small, most=2)
    assert [(m.row, m.identity, m.predicted, m.target) for m in mistakes] == [
        (3, "row 3", "ant", "bee"),
        (2, "row 2", "cow", "ant"),
    ]
    assert [m.confidence for m in mistakes] == [0.96, 0.70]
    assert [m.target_probability for m in mistakes] == [0.02, 0.10]


def test_ids_name_the_mistakes():
    predictions = Predictions.from_probabilities(PROBABILITIES, TARGETS, ids=list("abcdef"))
    assert [m.identity for m in confident_mistakes(predictions)] == ["d", "c", "e"]
    assert class_names(predictions) == ("0", "1", "2", "3")


def test_the_largest_tie_and_what_it_costs():
    confidence = [0.99] * 10 + [0.95] * 60 + [0.8] * 30
    predictions = Predictions.from_probabilities([[c, 1 - c] for c in confidence], [0] * 100)
    tie = largest_tie(predictions)
    assert (tie.confidence, tie.cases, tie.below, tie.upto) == (0.95, 60, 0.1, 0.7)
    assert largest_tie(predictions, least=0.61) is None
    assert largest_tie(Predictions.from_probabilities([[0.9, 0.1]], [0])) is None


def test_no_mistakes_are_no_rows():
    assert confident_mistakes(Predictions.from_probabilities([[0.9, 0.1]], [0])) == ()
