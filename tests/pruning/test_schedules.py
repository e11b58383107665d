"""When samples may leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.pruning import AtEpochs, Every, OnPlateau


def due(schedule, epochs):
    return [epoch for epoch in range(1, epochs + 1) if schedule.due(epoch, {})]


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 20))
def test_every_counts_from_its_start(interval, start, extra):
    schedule = Every(interval, start=start, until=start + extra)
    assert due(schedule, 60) == list(range(start, start + extra + 1, interval))
    assert [e for e in range(1, 61) if schedule.spans(e, {})] == list(range(start, start + extra + 1))


def test_every_starts_after_one_interval_and_never_ends_by_default():
    assert due(Every(25), 110) == [25, 50, 75, 100]


def test_at_epochs_sorts_and_drops_repeats():
    schedule = AtEpochs([7, 3, 7])
    assert schedule.epochs == (3, 7)
    assert due(schedule, 10) == [3, 7]
    assert [e for e in range(1, 6) if schedule.spans(e, {})] == [3, 4, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every(0),
        lambda: Every(2.5),
        lambda: Every(True),
        lambda: Every(5, start=0),
        lambda: Every(5, until=4),
        lambda: AtEpochs([]),
        lambda: AtEpochs([0]),
        lambda: AtEpochs(5),
        lambda: AtEpochs("5"),
        lambda: OnPlateau(3, improvement="x"),
        lambda: OnPlateau(0),
        lambda: OnPlateau(3, improvement=1.0),
        lambda: OnPlateau(3, start=0),
        lambda: OnPlateau(3, interval=0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must .*, got"):
        make()


def follow(schedule, losses):
    memory = {}
    return [epoch for epoch, loss in enumerate(losses, start=1) if schedule.due(epoch, memory, loss)]


def test_plateau_waits_its_patience_and_starts_counting_again():
    assert follow(OnPlateau(2, improvement=0), [5, 4, 4, 4, 4, 4, 3, 3, 3]) == [4, 6, 9]


def test_plateau_takes_small_gains_for_none():
    losses = [1.0, 0.9995, 0.9991, 0.5]
    assert follow(OnPlateau(2, improvement=1e-3), losses) == [3]
    assert follow(OnPlateau(2, improvement=0), losses) == []


def test_plateau_by_default_takes_more_than_a_thousandth_for_a_gain():
    assert follow(OnPlateau(1), [1.0, 0.9989]) == []
    assert follow(OnPlateau(1), [1.0, 0.9991]) == [2]


@pytest.mark.parametrize(("patience", "start"), [(1, 1), (4, 1), (4, 5), (4, 6)])
def test_plateau_acts_first_where_it_says_if_the_loss_never_moves(patience, start):
    schedule = OnPlateau(patience, start=start)
    assert schedule.first == follow(schedule, [1.0] * 10)[0]


def test_plateau_works_for_losses_below_zero():
    assert follow(OnPlateau(1, improvement=0.1), [-1.0, -2.0, -2.1]) == [3]


def test_plateau_before_its_start_is_ignored_until_then():
    assert follow(OnPlateau(1, start=4), [1.0] * 5) == [4, 5]


def test_plateau_skips_epochs_without_a_number():
    assert follow(OnPlateau(2), [1.0, float("nan"), 1.0, float("inf"), 1.0]) == [5]


def test_plateau_opens_the_span_for_good():
    schedule, memory = OnPlateau(1), {}
    schedule.due(1, memory, 1.0)
    assert not schedule.spans(1, memory)
    schedule.due(2, memory, 1.0)
    schedule.due(3, memory, 0.1)
    assert schedule.spans(3, memory)


def test_plateau_with_an_interval_waits_for_the_first_plateau_alone():
    losses = [5, 4, 4, 4, 3, 2, 1, 0.5, 0.25, 0.1]
    assert follow(OnPlateau(2, interval=3), losses) == [4, 7, 10]
    assert follow(OnPlateau(2), losses) == [4]


def test_plateau_needs_the_loss():
    with pytest.raises(InvalidInput, match="loss must be given"):
        OnPlateau(3).due(1, {})
