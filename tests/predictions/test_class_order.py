import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import Origin, Predictions, in_order_of

SCORES = np.array([[0.1, 1.0 / 3.0, 2.0], [3.0, -1.0, 0.7]])


def test_columns_and_targets_move_together_and_nothing_else_changes():
    given = Predictions.from_logits(SCORES, [2, 0], ids=["x", "y"], class_names=["c", "a", "b"])
    found = in_order_of(("a", "b", "c"), given, where="predictions")
    assert found.scores.tolist() == SCORES[:, [1, 2, 0]].tolist()  # to the last digit
    assert found.targets.tolist() == [1, 2]  # still b and c
    assert (found.ids.tolist(), found.class_names, found.kind) == (["x", "y"], ("a", "b", "c"), "logits")
    assert found.precision == given.precision


def test_probabilities_stay_probabilities():
    given = Predictions.from_probabilities([[0.7, 0.2, 0.1]], [0], class_names=["c", "a", "b"])
    found = in_order_of(("a", "b", "c"), given, where="predictions")
    assert (found.kind, found.probabilities.tolist(), found.targets.tolist()) == (
        "probabilities",
        [[0.2, 0.1, 0.7]],
        [2],
    )


def test_classes_called_by_their_number_are_put_in_order_by_number():
    given = Predictions.from_logits(SCORES, [2, 0], class_names=["2", "0", "1"])
    for wanted in (None, ("a", "b", "c")):
        found = in_order_of(wanted, given, where="predictions")
        assert (found.targets.tolist(), found.class_names) == ([1, 2], wanted or ("0", "1", "2"))


@pytest.mark.parametrize(
    ("wanted", "names"), [(None, None), (("a", "b"), ("a", "b")), (None, ("0", "1")), (("a", "b"), ("0", "1"))]
)
def test_where_nothing_moves_nothing_is_copied(wanted, names):
    given = Predictions.from_logits(SCORES[:, :2], [0, 1], class_names=names)
    assert in_order_of(wanted, given, where="") is given


def test_five_names_are_listed_and_of_more_the_first_five():
    given = Predictions.from_logits(np.eye(5), range(5), class_names=list("6789x"))
    with pytest.raises(InvalidInput, match=r"here must name the classes a, b, c, d, e, got 6, 7, 8, 9, x\."):
        in_order_of(tuple("abcde"), given, where="here")
    given = Predictions.from_logits(np.eye(6), range(6), class_names=list("56789x"))
    with pytest.raises(InvalidInput, match=r"name the classes a, b, c, d, e, \.\.\., got 5, 6, 7, 8, 9, \.\.\.\."):
        in_order_of(tuple("abcdef"), given, where="here")


def test_extras_and_the_file_stay_with_the_rows():
    given = Predictions.from_logits([[1.0, 2.0]], [0], class_names=["b", "a"], extras={"site": ["x"]})
    given.origin = Origin("val.npz")
    found = in_order_of(("a", "b"), given, where="predictions")
    assert (found.extras["site"].tolist(), found.origin) == (["x"], given.origin)
