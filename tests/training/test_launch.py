"""Processes that train one run together, and work that the first does for all."""

import pytest

from calibrant.errors import InvalidInput
from calibrant.training import Reporter
from calibrant.training.launch import on_first_rank, resumable, start_processes


class FakeFabric:
    """Two ranks in one process: the second gets what the first sent before it."""

    def __init__(self, rank, channel):
        self.global_rank, self._channel = rank, channel

    def broadcast(self, value):
        if self.global_rank == 0:
            self._channel.append(value)
        return self._channel[-1]


def test_all_ranks_get_the_result_of_the_first():
    channel = []
    assert on_first_rank(FakeFabric(0, channel), lambda: 5) == 5
    assert on_first_rank(FakeFabric(1, channel), lambda: pytest.fail("not the first")) == 5


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


def fail(reporter):
    """Fails in every process, in a way that nobody foresaw."""
    raise KeyError("left")


def test_an_unforeseen_error_in_a_process_is_raised_here_with_its_traceback(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)in fail\n.*KeyError: 'left'"):
        start_processes(2, fail, tmp_path, Reporter())
