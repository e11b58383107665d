"""Checks and numbers of every row, for any memory layout and number of threads."""

import threading

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import rows as module
from calibrant.predictions.rows import ENTRIES_PER_THREAD, FEW_CLASSES, check_rows, map_in_threads

LAYOUTS = {
    "by rows": np.ascontiguousarray,
    "by columns": np.asfortranarray,
    "part of a buffer by columns": lambda scores: np.concatenate([scores, scores]).copy(order="F")[: len(scores)],
    "every other row": lambda scores: np.repeat(scores, 2, axis=0)[::2],
    "every other column": lambda scores: np.repeat(scores, 2, axis=1)[:, ::2],
    "backwards": lambda scores: scores[::-1, ::-1].copy()[::-1, ::-1],
}
WIDTHS = [1, 2, 10, FEW_CLASSES, FEW_CLASSES + 1]


def awkward(classes, dtype, rows=200):
    """Probabilities in sixty-fourths: many ties at the top, zeros, minus zeros, and one a little above 1."""
    rng = np.random.default_rng(classes)
    scores = (rng.multinomial(64, rng.dirichlet(np.full(classes, 0.5), rows)) / 64).astype(dtype)
    scores[3] = -0.0
    scores[3, -1] = np.nextafter(dtype(1), dtype(2))
    return scores, rng.integers(0, classes, rows)


@pytest.fixture(params=[2**19, 300], ids=["one chunk", "many chunks"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ENTRIES", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", WIDTHS)
def test_probabilities_are_read_the_same_in_every_layout(classes, dtype, layout):
    scores, targets = awkward(classes, dtype)
    rows = [row.tolist() for row in scores]
    tops = [min(1.0, max(row)) for row in rows]
    firsts = [row.index(max(row)) for row in rows]
    given = LAYOUTS[layout](scores)
    precision = np.dtype(dtype).name
    found = check_rows(given, targets, "probabilities", precision)
    assert found.confidence.tolist() == tops
    assert found.predicted.tolist() == firsts
    assert found.of_target.tolist() == [row[target] for row, target in zip(rows, targets, strict=True)]


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("classes", WIDTHS)
def test_logits_are_read_the_same_in_every_layout(classes, layout):
    scores, targets = awkward(classes, np.float32)
    scores *= 8
    powers = np.exp(scores.astype(np.float64))
    own = powers[np.arange(len(scores)), targets]
    given = LAYOUTS[layout](scores)
    found = check_rows(given, targets, "logits", "float32")
    np.testing.assert_allclose(found.confidence, powers.max(axis=1) / powers.sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(found.nll, np.log(powers.sum(axis=1) / own), rtol=1e-12, atol=1e-14)
    assert found.predicted.tolist() == [row.index(max(row)) for row in scores.tolist()]


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("classes", [10, FEW_CLASSES + 1])
@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (np.nan, "finite, got nan in row 150, column 7"),
        (np.inf, "finite, got inf in row 150, column 7"),
        (-0.25, "not be negative, got -0.25 in row 150, column 7"),
        (3.0, r"sum to 1 within 0.0001 in every row, got .* in row 150\."),
    ],
)
def test_the_first_bad_row_is_named_in_every_layout(bad, match, classes, layout):
    scores, targets = awkward(classes, np.float32)
    scores[150, 7] = scores[180, 2] = bad
    with pytest.raises(InvalidInput, match=match):
        check_rows(LAYOUTS[layout](scores), targets, "probabilities", "float32")


def parts_of(count):
    return [slice(10 * i, 10 * i + 10) for i in range(count)]


@pytest.fixture
def allow(monkeypatch):
    def set_to(number):
        monkeypatch.setenv("OMP_NUM_THREADS", str(number))

    return set_to


@pytest.mark.parametrize(
    ("allowed", "count", "threads"),
    [(1, 64, None), (2, 64, 2), (3, 64, 3), (8, 64, 4), (8, 16, 2), (8, 15, None), (8, 0, None)],
)
def test_every_part_is_done_once_by_no_more_threads_than_pay(allow, monkeypatch, allowed, count, threads):
    allow(allowed)
    asked, done = [], []
    pool = module.ThreadPoolExecutor
    monkeypatch.setattr(module, "ThreadPoolExecutor", lambda number: asked.append(number) or pool(number))
    map_in_threads(lambda part: done.append(part.start), parts_of(count), count * ENTRIES_PER_THREAD // 8)
    assert sorted(done) == [10 * i for i in range(count)]
    assert asked == ([] if threads is None else [threads])


def test_parts_are_done_at_the_same_time(allow):
    allow(2)
    together = threading.Barrier(2, timeout=20)

    def one(part):
        if part.start < 20:
            together.wait()  # passes only if two threads hold the first two parts at once

    map_in_threads(one, parts_of(16), 2 * ENTRIES_PER_THREAD)


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
        map_in_threads(one, parts_of(16), 2 * ENTRIES_PER_THREAD)


def test_an_error_that_is_no_refusal_is_not_lost(allow):
    allow(2)

    def one(part):
        if part.start == 50:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        map_in_threads(one, parts_of(16), 2 * ENTRIES_PER_THREAD)
