"""Work shared by threads. The suite itself runs with one: here several are asked for."""

import threading

import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import rows, share


def parts_of(count):
    return [slice(10 * i, 10 * i + 10) for i in range(count)]


@pytest.fixture
def allow(monkeypatch):
    def set_to(number):
        monkeypatch.setenv("OMP_NUM_THREADS", str(number))

    return set_to


@pytest.mark.parametrize(
    ("allowed", "count", "helpers"),
    [(1, 64, None), (2, 64, 1), (3, 64, 2), (8, 64, 3), (8, 16, 1), (8, 15, None), (8, 0, None)],
)
def test_every_part_is_done_once_by_no_more_threads_than_pay(allow, monkeypatch, allowed, count, helpers):
    allow(allowed)
    asked, done = [], []
    pool = rows.ThreadPoolExecutor
    monkeypatch.setattr(rows, "ThreadPoolExecutor", lambda number: asked.append(number) or pool(number))
    share(lambda part: done.append(part.start), parts_of(count))
    assert sorted(done) == [10 * i for i in range(count)]
    assert asked == ([] if helpers is None else [helpers])


def test_the_caller_works_too(allow):
    allow(2)
    together = threading.Barrier(2, timeout=20)
    seen = {}

    def one(part):
        if part.start < 20:
            together.wait()  # passes only where two threads hold the first two parts at once
        seen[part.start] = threading.current_thread() is threading.main_thread()

    share(one, parts_of(16))
    assert {seen[0], seen[10]} == {True, False}


def test_the_first_refusal_in_order_wins_though_it_came_last(allow):
    allow(2)
    later = threading.Event()

    def one(part):
        if part.start == 0:
            assert later.wait(20)
            raise InvalidInput("row 0")
        if part.start == 50:
            later.set()
            raise InvalidInput("row 50")

    with pytest.raises(InvalidInput, match="row 0"):
        share(one, parts_of(16))


def test_an_error_of_a_helper_is_not_lost(allow):
    allow(2)
    failed = threading.Event()

    def one(part):
        if threading.current_thread() is threading.main_thread():
            assert failed.wait(20)
        else:
            failed.set()
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        share(one, parts_of(16))
