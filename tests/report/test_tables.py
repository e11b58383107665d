import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics.intervals import wilson
from calibrant.report.tables import class_names, confident_mistakes, worst_classes

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
    assert (ant.low, ant.high) == wilson(2, 3)
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


def test_no_mistakes_are_no_rows():
    assert confident_mistakes(Predictions.from_probabilities([[0.9, 0.1]], [0])) == ()
