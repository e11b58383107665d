"""Predictions: two doors, strict rules, exact row values."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import sha256_of
from calibrant.predictions import Origin, RowsPart, in_order_of
from calibrant.predictions import rows as row_pass

GOOD = [[0.7, 0.3], [0.2, 0.8]]


def reference(logits):
    """Softmax row values, slowly, in float64."""
    z = np.asarray(logits, dtype=np.float64)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 10, 64, 200])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_give_float64_softmax_values(dtype, classes):
    generator = torch.Generator().manual_seed(classes)
    logits = (torch.randn(300, classes, generator=generator) * 4).to(dtype)
    targets = torch.randint(0, classes, (300,), generator=generator)
    predictions = Predictions.from_logits(logits, targets)
    expected = reference(logits.double().numpy())
    assert predictions.confidence.dtype == np.float64
    np.testing.assert_allclose(predictions.confidence, expected.max(axis=1), rtol=1e-13)
    np.testing.assert_array_equal(predictions.predicted, logits.double().numpy().argmax(axis=1))
    np.testing.assert_allclose(predictions.nll, -np.log(expected[np.arange(300), targets]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(predictions.probabilities, expected, rtol=1e-12)
    assert predictions.precision == str(dtype).removeprefix("torch.")


def test_probabilities_are_used_as_they_are():
    predictions = Predictions.from_probabilities(np.asarray(GOOD, dtype=np.float32), [0, 0])
    assert predictions.confidence.tolist() == [float(np.float32(0.7)), float(np.float32(0.8))]
    np.testing.assert_allclose(predictions.nll, -np.log([0.7, 0.2]), rtol=1e-6)
    assert predictions.correct.tolist() == [True, False]
    assert (len(predictions), predictions.n_classes, predictions.kind) == (2, 2, "probabilities")


def test_one_value_just_above_one_changes_nothing_else():
    # One entry of 1.0000001 makes another library take the whole batch for logits.
    predictions = Predictions.from_probabilities(np.asarray([[1.0000001, 0.0], [0.6, 0.4]], dtype=np.float32), [0, 0])
    assert predictions.confidence.tolist() == [1.0, float(np.float32(0.6))]
    assert predictions.nll[0] == 0.0


def test_logits_inside_zero_and_one_are_not_taken_for_probabilities():
    predictions = Predictions.from_logits([[0.9, 0.1]], [0])
    assert predictions.confidence[0] == pytest.approx(1 / (1 + np.exp(-0.8)), abs=1e-15)


@pytest.mark.parametrize("classes", [3, 100])
def test_the_first_of_equal_scores_is_predicted(classes):
    logits = np.zeros((4, classes))
    assert Predictions.from_logits(logits, [0, 1, 0, 1]).correct.tolist() == [True, False, True, False]


def test_a_target_of_probability_zero_has_infinite_nll():
    predictions = Predictions.from_probabilities([[1.0, 0.0]], [1])
    assert predictions.nll[0] == np.inf


def test_extreme_logits_stay_finite():
    predictions = Predictions.from_logits([[1e308, -1e308], [3e4, 3e4]], [0, 1])
    assert predictions.confidence.tolist() == [1.0, 0.5]
    assert predictions.probabilities.tolist() == [[1.0, 0.0], [0.5, 0.5]]
    big = Predictions.from_logits(np.full((1, 4), 1e308), [0])  # the sum overflows, the row is fine
    assert big.confidence[0] == 0.25


def refused(match, scores=GOOD, targets=(0, 1), door=Predictions.from_probabilities, **more):
    with pytest.raises(InvalidInput, match=match) as caught:
        door(scores, targets, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("door", [Predictions.from_logits, Predictions.from_probabilities])
def test_scores_that_are_not_finite_are_refused_with_their_place(door, value):
    scores = np.full((3000, 400), 1 / 400)
    scores[2711, 5] = value
    name = door.__name__.removeprefix("from_")
    refused(f"{name} must be finite, got .* in row 2711, column 5", scores, np.zeros(3000, int), door)


def test_bad_probabilities_are_refused():
    refused("not be negative, got -0.1 in row 1, column 0.*from_logits", [[0.5, 0.5], [-0.1, 1.1]])
    refused("sum to 1 within 0.0001 in every row, got 0.5 in row 1.*by its sum", [[0.5, 0.5], [0.25, 0.25]])
    refused("sum to 1", [[0.5, 0.5], [0.50011, 0.5]])
    Predictions.from_probabilities([[0.5, 0.50009]], [0])


def test_the_tolerance_follows_the_precision():
    off = torch.tensor([[0.5, 0.5 + 2**-11]])
    refused("within 0.0001", off, [0])
    Predictions.from_probabilities(off.half(), [0])
    wide = torch.tensor([[0.5, 0.50390625]], dtype=torch.bfloat16)
    Predictions.from_probabilities(wide, [0])
    refused("within 0.001 ", wide.half(), [0])
    refused("within 0.005 ", torch.tensor([[0.5, 0.25, 0.255859375]], dtype=torch.bfloat16), [0])


def test_whole_numbers_lose_no_digit():
    # As float32 the two would be equal.
    predictions = Predictions.from_logits([[2**24 + 1, 2**24]], [0])
    assert predictions.nll[0] == pytest.approx(math.log1p(math.exp(-1)), rel=1e-12)


def test_all_probabilities_are_those_given():
    rows = np.asarray([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
    for scores in (rows, np.asfortranarray(rows), rows.astype(np.float32)):
        predictions = Predictions.from_probabilities(scores, [0, 1])
        found = predictions.probabilities
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, scores.astype(np.float64))
        found[0] = 0.0  # the caller may
        assert predictions.scores[0, 2] == scores[0, 2]


def test_bad_shapes_and_types_are_refused():
    refused(r"shape \(n, K\), got shape \(2,\).*from_binary\(.*kind='probabilities'", [0.3, 0.7])
    refused(r"shape \(n, K\), got shape \(2,\).*from_binary\(.*kind='logits'", [0.3, 0.7], door=Predictions.from_logits)
    refused("at least one row", np.empty((0, 3)), [])
    refused("at least one row and two classes", np.empty((3, 0)), [0, 0, 0])
    refused(r"at least one row and two classes, got shape \(2, 1\).*from_binary", [[1.0], [1.0]])
    refused(
        r"two classes, got shape \(2, 1\).*from_binary",
        [[0.3], [2.0]],
        door=Predictions.from_logits,
    )
    refused("rectangular", [[0.5, 0.5], [1.0]])
    refused("floating-point numbers, got dtype bool", [[True, False], [False, True]])
    refused("floating-point", [["a", "b"], ["c", "d"]])
    refused("floating-point", np.ones((2, 2), complex))
    with pytest.raises(InvalidInput, match="from_logits, from_probabilities or load"):
        Predictions(GOOD, [0, 1])


def test_probabilities_that_came_as_logits_are_noticed():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=20)
    for scores in (p, p.astype(np.float16), torch.tensor(p).bfloat16()):
        with pytest.warns(CalibrantWarning, match=r"sums to 1, .* use Predictions\.from_probabilities") as caught:
            assert Predictions.from_logits(scores, [0] * 20).kind == "logits"
        assert caught[0].filename == __file__
    Predictions.from_logits(np.log(p), [0] * 20)  # warnings of ours are errors here
    Predictions.from_logits(p - 0.01, [0] * 20)
    Predictions.from_logits(np.eye(4)[[0, 1] * 10], [0] * 20)


def test_bad_targets_are_refused():
    refused("targets must", targets=[0, 2])
    refused("targets must", targets=[-1, 0])
    refused("integers, got dtype float64", targets=[0.0, 1.0])
    refused("integers, got dtype bool", targets=[False, True])
    refused("one-hot", targets=[[1, 0], [0, 1]])
    refused("targets must", targets=[0, 1, 1])
    assert Predictions.from_probabilities(GOOD, np.asarray([0, 1], dtype=np.uint8)).targets.dtype == np.int64


def test_bad_ids_and_names_are_refused():
    refused("distinct, got 'x' again in row 1", ids=["x", "x"])
    refused(r"shape \(2,\), one per row", ids=["x"])
    refused("strings or integers", ids=[0.5, 1.5])
    refused("strings or integers", ids=np.asarray(["x", 1], dtype=object))
    refused("name all 2 classes, got 1", class_names=["a"])
    refused("distinct, got 'a' twice", class_names=["a", "a"])
    three = [[0.2, 0.3, 0.5]]
    refused("distinct, got 'b' twice", three, [0], class_names=["a", "b", "b"])
    refused("non-empty strings", class_names=["a", ""])
    refused("non-empty strings", class_names="ab")


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
@pytest.mark.parametrize("column", [list, lambda values: pd.Series(values, dtype="string")])
def test_a_missing_label_among_text_is_no_class(missing, column):
    labels = column(["cat", missing])
    with pytest.raises(InvalidInput, match=r"targets must have a label in every row, got .* in row 1"):
        Predictions.from_probabilities(GOOD, labels, class_names=["cat", "dog"])
    with pytest.raises(InvalidInput, match=r"targets must have a label in every row, got .* in row 1"):
        Predictions.from_confidence(["cat", "dog"], [0.9, 0.8], labels)
    with pytest.raises(InvalidInput, match=r"predicted must have a label in every row, got .* in row 1"):
        Predictions.from_confidence(labels, [0.9, 0.8])


@pytest.mark.parametrize("class_names", [["cat", "dog", "owl"], {0: "cat", 1: "dog", 2: "owl"}, None])
def test_names_decide_the_order_of_the_columns_of_a_frame(class_names):
    headings = ["owl", "cat", "dog"]
    if class_names is None:
        headings = [2, 0, 1]
    frame = pd.DataFrame([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], columns=headings)
    predictions = Predictions.from_probabilities(frame, [2, 1], class_names=class_names)
    assert predictions.scores.tolist() == [[0.2, 0.1, 0.7], [0.1, 0.8, 0.1]]
    assert Predictions.from_probabilities(frame.to_numpy(), [0, 2], class_names=class_names).correct.all()
    others = frame.set_axis(["p_1", "p_2", "p_3"], axis=1)  # these name no class
    assert Predictions.from_probabilities(others, [0, 2], class_names=class_names).correct.all()


def test_nothing_can_be_written_to():
    source = np.asarray(GOOD)
    predictions = Predictions.from_probabilities(source, [0, 1])
    for array in (predictions.scores, predictions.confidence, predictions.predicted, predictions.nll):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert np.shares_memory(predictions.scores, source)  # no copy
    source[0] = [0.6, 0.4]  # the caller's own array stays the caller's


@pytest.mark.filterwarnings("error")
def test_read_only_and_strided_input_is_fine():
    source = np.asarray(GOOD).T.copy().T
    source.flags.writeable = False
    assert Predictions.from_probabilities(source, [0, 1]).confidence.tolist() == [0.7, 0.8]
    assert Predictions.from_logits(torch.eye(2, requires_grad=True), [0, 1]).correct.all()


@pytest.mark.parametrize("rows", [2, 7, 100])
def test_parts_share_no_row_and_leave_none_out(rows):
    generator = np.random.default_rng(0)
    whole = Predictions.from_logits(generator.normal(size=(rows, 3)), np.zeros(rows, int), ids=np.arange(rows))
    first, second = whole.split(0.5, seed=5)
    assert (len(first), len(second)) == (rows // 2, rows - rows // 2)
    assert sorted([*first.ids, *second.ids]) == list(range(rows))
    for half in (first, second):
        assert list(half.ids) == sorted(half.ids)
        assert (half.logits == whole.logits[half.ids]).all()
    assert list(whole.split(0.5, seed=5)[0].ids) == list(first.ids)
    assert rows < 100 or list(whole.split(0.5, seed=6)[0].ids) != list(first.ids)


def test_clusters_stay_together_in_a_split(tmp_path):
    rng = np.random.default_rng(0)
    patient = rng.integers(40, size=500)
    whole = Predictions.from_logits(rng.normal(size=(500, 2)), rng.integers(2, size=500), extras={"patient": patient})
    whole.save(tmp_path / "cases.npz")
    read = Predictions.load(tmp_path / "cases.npz")
    some, rest = read.split(0.2, seed=3, clusters="patient")
    assert len(some) + len(rest) == 500
    assert abs(len(some) - 100) < 20
    assert not set(some.extras["patient"]) & set(rest.extras["patient"])
    assert rest.origin.part == RowsPart(0.2, 3, 1, "patient")
    with pytest.raises(InvalidInput, match="clusters must be a column of the predictions, got 'ward'"):
        read.split(0.2, clusters="ward")
    with pytest.raises(InvalidInput, match="clusters must have at least 2 different values to be split, got 1"):
        read.subset(read.extras["patient"] == 7).split(0.2, clusters="patient")


@pytest.mark.parametrize(("share", "rows", "first"), [(0.2, 10, 2), (0.29, 100, 29), (0.01, 3, 1), (0.99, 3, 2)])
def test_a_share_of_the_rows_is_split_off(share, rows, first):
    parts = Predictions.from_logits(np.eye(rows), np.arange(rows)).split(share)
    assert [len(part) for part in parts] == [first, rows - first]


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan"), True])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(InvalidInput, match="share"):
        Predictions.from_logits(np.eye(3), np.arange(3)).split(share)


@pytest.mark.parametrize(("dtype", "smallest"), [(np.float32, 1.4e-45), (np.float64, 5e-324), (np.float16, 6e-8)])
def test_the_logit_of_zero_is_that_of_the_smallest_number_of_its_precision(dtype, smallest):
    found = Predictions.from_probabilities(np.array([[1, 0]], dtype=dtype), [0]).as_logits()
    assert found[0, 1] == pytest.approx(np.log(smallest), abs=0.5)


def test_other_logits_keep_everything_else():
    old = Predictions.from_probabilities(GOOD, [0, 1], ids=[7, 9], class_names=["a", "b"], extras={"site": ["x", "y"]})
    new = old.with_logits([[1.0, 2.0], [4.0, 3.0]])
    assert (new.kind, new.logits.tolist(), new.targets.tolist()) == ("logits", [[1.0, 2.0], [4.0, 3.0]], [0, 1])
    assert (new.ids.tolist(), new.class_names, new.extras["site"].tolist()) == ([7, 9], ("a", "b"), ["x", "y"])


def test_extras_follow_their_rows():
    extras = {"site": ["x", "y"], "weight": np.array([0.5, 2.0])}
    predictions = Predictions.from_probabilities(GOOD, [0, 1], extras=extras)
    second = predictions.subset([1])
    assert {name: column.tolist() for name, column in second.extras.items()} == {"site": ["y"], "weight": [2.0]}
    with pytest.raises(ValueError, match="read-only"):
        predictions.extras["weight"][0] = 1.0
    assert extras["weight"].flags.writeable


@pytest.mark.parametrize("extras", [{"id": [1, 2]}, {"logit_a": [1, 2]}, {"w": [1]}, {"w": [None, 1]}, {3: [1, 2]}])
def test_extras_that_cannot_be_kept_are_refused(extras):
    with pytest.raises(InvalidInput, match="extras"):
        Predictions.from_probabilities(GOOD, [0, 1], extras=extras)


def test_one_case_has_no_parts():
    with pytest.raises(InvalidInput, match="predictions must have at least 2 cases to be split, got 1"):
        Predictions.from_logits([[1.0, 0.0]], [0]).split(0.5)


def test_subset_by_mask_and_by_number():
    predictions = Predictions.from_probabilities(GOOD, [0, 0], ids=[7, 9], class_names=["a", "b"])
    part = predictions.subset(predictions.confidence > 0.75)
    assert (part.ids.tolist(), part.targets.tolist(), part.nll.tolist()) == ([9], [0], [predictions.nll[1]])
    assert part.class_names == ("a", "b")
    assert predictions.subset([1, 0]).confidence.tolist() == [0.8, 0.7]
    mixed = (([0, 2], r"row numbers in 0..1, got 0\.\.2"), ([-1, 1], r"row numbers in 0..1, got -1\.\.1"))
    for bad, match in (([False, False], "at least one row"), ([2], "row numbers in 0..1"), ([True], "shape"), *mixed):
        with pytest.raises(InvalidInput, match=match):
            predictions.subset(bad)
    for bad in ([0.5], [[0], [1]]):
        with pytest.raises(InvalidInput, match="booleans, one per row, or row numbers"):
            predictions.subset(bad)


def test_logits_of_probabilities_are_not_invented():
    with pytest.raises(InvalidInput, match="as_logits"):
        _ = Predictions.from_probabilities(GOOD, [0, 1]).logits
    assert Predictions.from_logits(GOOD, [0, 1]).logits.tolist() == GOOD


@given(rows=st.integers(1, 40), classes=st.integers(2, 8), step=st.integers(1, 30), seed=st.integers(0, 99))
def test_chunks_do_not_change_values(rows, classes, step, seed):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(size=(rows, classes)), rng.integers(0, classes, rows)
    whole = Predictions.from_logits(logits, targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_pass, "CHUNK_BYTES", 100 * step)
        parts = Predictions.from_logits(logits, targets)
        walked = np.concatenate([probabilities for _, probabilities in parts.chunks()])
    np.testing.assert_array_equal(parts.confidence, whole.confidence)
    np.testing.assert_array_equal(parts.nll, whole.nll)
    np.testing.assert_array_equal(walked, whole.probabilities)


def test_predictions_travel_between_processes():
    again = pickle.loads(pickle.dumps(Predictions.from_probabilities(GOOD, [0, 1], ids=["a", "b"])))
    assert again.confidence.tolist() == [0.7, 0.8]
    assert repr(again) == "Predictions(2 rows, 2 classes, from probabilities in float64)"


@pytest.mark.parametrize("classes", [2, 10, 32, 33, 300])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_of_equal_classes_is_predicted_however_many_there_are(classes, dtype):
    rng = np.random.default_rng(classes)
    logits = rng.integers(0, 3, (500, classes)).astype(dtype)  # full of ties
    targets = rng.integers(0, classes, 500)
    p = Predictions.from_logits(np.asfortranarray(logits), targets)
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    assert p.predicted.tolist() == wide.argmax(axis=1).tolist()
    np.testing.assert_allclose(p.confidence, 1 / powers.sum(axis=1), rtol=1e-14)
    q = Predictions.from_probabilities(p.probabilities, targets)
    assert q.predicted.tolist() == p.predicted.tolist()
    np.testing.assert_allclose(q.nll, p.nll, rtol=1e-12, atol=1e-15)
    assert not q.nll.flags.writeable
    np.testing.assert_array_equal(q.subset([7, 3]).nll, q.nll[[7, 3]])


def test_the_first_bad_row_is_named_also_where_threads_share_the_rows(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    scores = np.full((2_400_000, 4), 0.25, dtype=np.float32)
    for row in (2_399_999, 1_500_000, 700_001):
        scores[row] = 0.5
        with pytest.raises(InvalidInput, match=f"got 2 in row {row}"):
            Predictions.from_probabilities(scores, np.zeros(len(scores), dtype=np.int64))


@pytest.mark.parametrize("classes", [3, 40], ids=["read by columns", "read by rows"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_minus_zero_is_zero(classes, dtype):
    probabilities = np.zeros((4, classes), dtype=dtype)
    probabilities[:, 2] = 1.0
    probabilities[1, 0] = -0.0
    predictions = Predictions.from_probabilities(probabilities, [2, 2, 2, 0])
    assert predictions.predicted.tolist() == [2, 2, 2, 2]
    assert predictions.confidence.tolist() == [1.0] * 4
    assert predictions.correct.tolist() == [True, True, True, False]


@pytest.mark.parametrize("classes", [3, 40], ids=["read by columns", "read by rows"])
@pytest.mark.parametrize("bad", [-1e-3, np.nan, np.inf, -np.inf])
def test_what_is_no_probability_is_named_by_its_row(classes, bad):
    probabilities = np.full((5, classes), 1.0 / classes)
    probabilities[3, 1] = bad
    probabilities[3, 0] += 1.0 / classes - bad if np.isfinite(bad) else 0.0  # the sum is right, the entry is not
    with pytest.raises(InvalidInput, match="row 3"):
        Predictions.from_probabilities(probabilities, [0] * 5)


def test_one_logit_or_probability_becomes_two_columns():
    by_logit = Predictions.from_binary([[-2.0], [3.0]], [0, 1], kind="logits", class_names=["well", "ill"])
    by_probability = Predictions.from_binary(1 / (1 + np.exp([2.0, -3.0])), [0, 1], kind="probabilities")
    assert np.allclose(by_logit.probabilities, by_probability.probabilities)
    assert by_logit.class_names == ("well", "ill")
    small = Predictions.from_binary(np.array([1e-9], dtype=np.float32), [0], kind="probabilities")
    assert small.probabilities[0, 1] == np.float32(1e-9)
    with pytest.raises(InvalidInput, match=r"scores must lie in 0..1, got 1.5 in row 1"):
        Predictions.from_binary([0.5, 1.5], [0, 1], kind="probabilities")
    with pytest.raises(InvalidInput, match="If these are percentages, divide them by 100"):
        Predictions.from_binary([90.0, 20.0], [0, 1], kind="probabilities")
    with pytest.raises(InvalidInput, match="one floating-point number per row"):
        Predictions.from_binary([[0.5, 0.5]], [0], kind="probabilities")
    with pytest.raises(InvalidInput, match="kind must be"):
        Predictions.from_binary([0.5], [0], kind="odds")


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


def test_what_was_read_from_a_file_knows_it_and_its_parts_do_too(tmp_path):
    path = tmp_path / "val.npz"
    Predictions.from_logits(np.eye(4), np.arange(4)).save(path)
    read = Predictions.load(path)
    assert (read.origin.path, read.origin.sha256, read.origin.part) == (path, sha256_of(path), None)
    some, rest = read.split(0.25, seed=3)
    assert (some.origin.part, rest.origin.part) == (RowsPart(0.25, 3, 0), RowsPart(0.25, 3, 1))
    assert rest.origin.sha256 == sha256_of(path)


def test_rows_that_no_file_can_be_asked_for_have_no_origin(tmp_path):
    made = Predictions.from_logits(np.eye(4), np.arange(4))
    made.save(tmp_path / "val.npz")
    assert made.origin == Origin()
    assert made.split(0.5)[0].origin == Origin()
    read = Predictions.load(tmp_path / "val.npz")
    assert read.subset([0, 1]).origin == Origin()
    assert read.split(0.5)[0].split(0.5)[0].origin == Origin()


def test_a_set_of_class_names_and_a_strange_seed_are_refused():
    with pytest.raises(InvalidInput, match="class_names must be in the order of the classes"):
        Predictions.from_probabilities(GOOD, [0, 1], class_names={"cat", "dog"})
    for seed in (-1, "one"):
        with pytest.raises(InvalidInput, match="seed must be a whole number"):
            Predictions.from_probabilities(GOOD, [0, 1]).split(0.5, seed=seed)
