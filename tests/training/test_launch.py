"""Which processes train one run together, by their environment, and work that the first does for all."""

import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.training import Reporter
from calibrant.training.launch import (
    group_layout,
    is_first_process,
    joins_a_group,
    on_first_rank,
    resumable,
    start_processes,
)

_RANK = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def test_a_process_that_torchrun_started_joins_its_group(monkeypatch):
    for name, value in _RANK.items():
        monkeypatch.setenv(name, value)
    assert joins_a_group()
    assert not is_first_process()
    cluster, devices, nodes = group_layout()
    assert (devices, nodes, cluster.global_rank(), cluster.local_rank()) == (4, 2, 5, 1)
    monkeypatch.setenv("RANK", "0")
    assert is_first_process()


def test_a_process_alone_reports(monkeypatch):
    for name in _RANK:
        monkeypatch.delenv(name, raising=False)
    assert not joins_a_group()
    assert is_first_process()


class FakeFabric:
    """Two ranks in one process: the second gets what the first sent before it."""

    world_size = 2

    def __init__(self, rank, channel):
        self.global_rank, self._channel = rank, channel

    def broadcast(self, value):
        if self.global_rank == 0:
            self._channel.append(value)
        return self._channel[-1]


def test_all_ranks_get_the_result_or_the_error_of_the_first():
    channel = []
    assert on_first_rank(FakeFabric(0, channel), lambda: 5) == 5
    assert on_first_rank(FakeFabric(1, channel), lambda: pytest.fail("not the first")) == 5

    def full():
        raise OutputError("the disk is full")

    for rank in (0, 1):
        with pytest.raises(OutputError, match="the disk is full"):
            on_first_rank(FakeFabric(rank, channel), full)


@pytest.mark.parametrize(("file", "message"), [(None, "stopped before anything"), ("recipe.toml", "train --resume")])
def test_an_interrupt_says_how_to_continue(tmp_path, file, message):
    if file is not None:
        (tmp_path / file).touch()
    with pytest.raises(KeyboardInterrupt, match=message), resumable(tmp_path):
        raise KeyboardInterrupt


def refuse(reporter):
    """Fails in every process."""
    raise InvalidInput("epochs must be positive, got 0.")


def test_an_error_in_a_process_is_raised_here(tmp_path):
    with pytest.raises(InvalidInput, match=r"^epochs must be positive, got 0\.$"):
        start_processes(2, refuse, tmp_path, Reporter())
