"""Numbers that settings are made of."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from calibrant.checks import not_negative, number, positive, whole
from calibrant.errors import InvalidInput


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_numbers_of_every_kind_become_floats(value):
    for check in (number, not_negative, positive):
        assert check("x", value) == 2.0
        assert type(check("x", value)) is float


@pytest.mark.parametrize("value", ["2", None, True, 2j, [2.0], np.ones(1), torch.tensor(2.0)])
def test_what_is_no_number_is_refused(value):
    for check in (number, not_negative, positive):
        with pytest.raises(InvalidInput, match="x must be a number, got"):
            check("x", value)


@pytest.mark.parametrize("value", [2.5, 2.0, "2", None, True, np.float64(2)])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InvalidInput, match="x must be a whole number, got"):
        whole("x", value, 1)


def test_borders():
    assert not_negative("x", 0) == 0.0
    assert whole("x", np.int32(1), 1) == 1
    with pytest.raises(InvalidInput, match="positive"):
        positive("x", 0)
    with pytest.raises(InvalidInput, match="at least 1"):
        whole("x", 0, 1)
    for endless in (np.inf, np.nan):
        with pytest.raises(InvalidInput, match="finite"):
            not_negative("x", endless)
