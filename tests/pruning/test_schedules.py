"""When samples may leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.pruning import Every


def due(schedule, epochs):
    return [epoch for epoch in range(1, epochs + 1) if schedule.due(epoch)]


@given(st.integers(1, 9), st.integers(1, 20))
def test_every_counts_from_its_start(interval, start):
    assert due(Every(interval, start=start), 60) == list(range(start, 61, interval))


def test_every_starts_after_one_interval_and_never_ends_by_default():
    assert due(Every(25), 110) == [25, 50, 75, 100]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every(0),
        lambda: Every(2.5),
        lambda: Every(True),
        lambda: Every(5, start=0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        make()
