"""Numbers, labels and tensors at the door; their messages are worded and tested here alone."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from calibrant.checks import as_array, fraction, labels, not_negative, number, positive, require_tensor, whole
from calibrant.errors import InvalidInput


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_numbers_of_every_kind_become_floats(value):
    for check in (number, not_negative, positive):
        assert check("x", value) == 2.0
        assert type(check("x", value)) is float


@pytest.mark.parametrize("value", ["2", None, True, 2j, [2.0], np.ones(1), torch.tensor(2.0)])
def test_what_is_no_number_is_refused(value):
    for check in (number, not_negative, positive, fraction):
        with pytest.raises(InvalidInput, match="x must be a number, got"):
            check("x", value)


@pytest.mark.parametrize("value", [2.5, 2.0, "2", None, True, np.float64(2), 0])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InvalidInput, match=r"x must be a whole number of at least 1, got .*\. Count again\."):
        whole("x", value, 1, "Count again.")


def test_borders():
    assert not_negative("x", 0) == 0.0
    assert whole("x", np.int32(1), 1) == 1
    with pytest.raises(InvalidInput, match="positive"):
        positive("x", 0)
    for endless in (np.inf, np.nan):
        with pytest.raises(InvalidInput, match="finite"):
            not_negative("x", endless)


def test_fractions():
    assert fraction("x", np.float32(0.5)) == 0.5
    assert fraction("x", 0, ends=True) == 0.0
    assert fraction("x", 1, ends=True) == 1.0
    for value in (0, 1, -0.1, 99, np.nan):
        with pytest.raises(InvalidInput, match=r"x must lie strictly between 0 and 1, got .*0\.95, not 95"):
            fraction("x", value)
    for value in (-0.1, 95, np.nan):
        with pytest.raises(InvalidInput, match=r"x must lie in 0\.\.1, got .*0\.95, not 95"):
            fraction("x", value, ends=True)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, lambda x: np.array(x, dtype=np.uint8)])
def test_good_labels_pass_and_tensors_stay_tensors(make):
    found = labels("targets", make([0, 2, 1]), rows=3, n_classes=3)
    assert found.tolist() == [0, 2, 1]
    assert isinstance(found, torch.Tensor) == (make is torch.tensor)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1], r"targets must hold one label per row, 3 in all, got shape \(2,\)\.$"),
        ([], r"targets must hold one label per row, 3 in all, got shape \(0,\)"),
        ([[1, 0], [0, 1], [1, 0]], r"got shape \(3, 2\)\. Of one-hot rows take the argmax"),
        ([[1], [0], [1]], r"got shape \(3, 1\)\. Flatten them"),
        ([0.0, 1.0, 1.0], "targets must be integers, got dtype .*float.* counted from 0"),
        ([True, False, True], "targets must be integers, got dtype .*bool"),
        ([0, 4, 9], r"targets must lie in 0\.\.3 for 4 classes, got 4 in row 1\.$"),
        ([0, 1, -100], r"targets must lie in 0\.\.3 .* got -100 in row 2\. Leave rows without a label out"),
    ],
)
def test_bad_labels_are_refused(values, message, make):
    with pytest.raises(InvalidInput, match=message):
        labels("targets", make(values), rows=3, n_classes=4)


def test_labels_that_are_no_numbers():
    with pytest.raises(InvalidInput, match=r"targets must be integers, got dtype <U3\. .*class_names\.index\(name\)"):
        labels("targets", ["cat", "dog"])
    with pytest.raises(InvalidInput, match=r"got dtype object\. .*class_names\.index\(name\)"):
        labels("targets", np.array(["cat", "dog"], dtype=object))  # as pandas gives them
    with pytest.raises(InvalidInput, match="targets must hold one label per row, at least one"):
        labels("targets", [])


def test_without_a_number_of_classes_values_are_not_read():
    # A tensor on the meta device has no values: reading them would raise.
    targets = torch.zeros(3, dtype=torch.int64, device="meta")
    assert labels("targets", targets, rows=3) is targets


def test_arrays_are_views_where_they_can_be():
    values = torch.arange(3)
    assert as_array("x", values).ctypes.data == values.data_ptr()
    assert as_array("x", torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    with pytest.raises(InvalidInput, match="x must be a rectangular array, got list"):
        as_array("x", [[1], [1, 2]])


@pytest.mark.parametrize(("value", "found"), [(None, "NoneType"), ([1.0], "list"), (np.ones(1), "ndarray")])
def test_what_is_no_tensor_is_refused(value, found):
    with pytest.raises(InvalidInput, match=rf"x must be a torch tensor, got {found}\. .*torch\.as_tensor\(x\)"):
        require_tensor("x", value)


def test_sparse_tensors_are_refused():
    with pytest.raises(InvalidInput, match=r"x must be a dense tensor, got torch\.sparse_coo\. Call x\.to_dense\(\)"):
        require_tensor("x", torch.eye(2).to_sparse())


def test_a_number_beyond_floating_point_is_one_line():
    with pytest.raises(InvalidInput, match="x must be a number that floating point can hold") as got:
        number("x", 10**5000)
    assert len(str(got.value)) < 400


def test_a_value_of_many_lines_is_shown_in_one():
    with pytest.raises(InvalidInput) as got:
        number("x", torch.zeros(40, 4))
    assert "\n" not in str(got.value)
    assert len(str(got.value)) < 400
