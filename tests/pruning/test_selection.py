"""Exact selection against slow loops over lists."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.pruning.quotas import above_floor, exact_fraction, lowest, share_of


def slow_lowest(keys, groups, take):
    marked = [False] * len(keys)
    for group, number in enumerate(take):
        members = [(key, position) for position, (key, g) in enumerate(zip(keys, groups, strict=True)) if g == group]
        for _, position in sorted(members)[:number]:
            marked[position] = True
    return marked


@settings(max_examples=150)
@given(st.data())
def test_lowest_marks_what_a_sorted_list_would(data):
    classes = data.draw(st.integers(1, 5))
    groups = data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=40))
    # Few distinct keys, so that ties are common; the extremes of 32 bits are among them.
    keys = data.draw(st.lists(st.sampled_from([0, 1, 7, 2**32 - 1]), min_size=len(groups), max_size=len(groups)))
    take = [data.draw(st.integers(0, groups.count(group))) for group in range(classes)]
    found = lowest(np.array(keys, dtype=np.uint64), np.array(groups, dtype=np.int32), take)
    assert found.tolist() == slow_lowest(keys, groups, take)


@pytest.mark.parametrize(
    ("written", "exact"),
    [(0.29, Fraction(29, 100)), (1 / 3, Fraction(1, 3)), (0.1, Fraction(1, 10)), (np.float32(0.7), Fraction(7, 10))],
)
def test_a_fraction_is_what_was_written(written, exact):
    assert exact_fraction("fraction", written) == exact


# The last two round to nothing and to everything.
@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, 10, float("nan"), "0.1", True, None, 1e-7, 1 - 1e-7])
def test_a_fraction_outside_the_unit_interval_is_refused(value):
    with pytest.raises(InvalidInput, match="fraction must"):
        exact_fraction("fraction", value)


def test_rounding_errors_do_not_change_the_number_that_leaves():
    assert int(0.29 * 100) == 28  # the trap
    assert share_of([100], exact_fraction("fraction", 0.29)) == [29]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 20), st.integers(1, 9))
def test_no_class_falls_below_the_floor_and_none_keeps_more_than_it_must(sizes, minimum, tenths):
    wanted = share_of(sizes, Fraction(tenths, 10))
    leave = above_floor(wanted, sizes, minimum)
    for k, size in enumerate(sizes):
        assert wanted[k] == size * tenths // 10
        assert size - leave[k] >= min(size, minimum)
        assert leave[k] == wanted[k] or size - leave[k] <= minimum
