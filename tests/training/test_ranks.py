import pytest

from calibrant.errors import CalibrantError, OutputError
from calibrant.training.ranks import on_first_rank


class FakeFabric:
    """One of several processes that agree through a shared list."""

    def __init__(self, rank, world_size, channel):
        self.global_rank, self.world_size, self.channel = rank, world_size, channel

    def broadcast(self, value):
        if self.global_rank == 0:
            self.channel.append(value)
        return self.channel[-1]


def test_one_process_just_works():
    assert on_first_rank(FakeFabric(0, 1, None), lambda: 5) == 5


def test_all_ranks_get_the_result_of_the_first():
    channel = []
    assert on_first_rank(FakeFabric(0, 2, channel), lambda: 5) == 5
    assert on_first_rank(FakeFabric(1, 2, channel), lambda: pytest.fail("not the first")) == 5


def test_the_error_of_the_first_rank_is_everybodys():
    def full():
        raise OutputError("cannot write. The disk is full.")

    channel = []
    with pytest.raises(OutputError, match="The disk is full"):
        on_first_rank(FakeFabric(0, 2, channel), full)
    with pytest.raises(CalibrantError, match="The disk is full"):
        on_first_rank(FakeFabric(1, 2, channel), full)
