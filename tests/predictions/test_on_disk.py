"""Scores in a file: read row by row as asked, and never a crash."""

import itertools

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.predictions.rows import OnDisk, spool


def test_rows_are_read_by_slice_and_by_number(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(8, 3)
    (tmp_path / "x").write_bytes(b"head" + array.tobytes())
    with (tmp_path / "x").open("rb") as handle:
        found = OnDisk(handle, (8, 3), array.dtype, offset=4)
    (tmp_path / "x").unlink()
    for rows in (slice(None), slice(2, 5), slice(7, 100), slice(5, 5), np.array([7, 0, 3, 0])):
        assert found[rows].tolist() == array[rows].tolist()


def test_blocks_are_spooled_to_a_file_that_nobody_sees():
    blocks = (np.full((2, 3), k) for k in itertools.islice(itertools.count(), 4))
    assert (
        spool(blocks, 3, np.dtype(np.float64))[:].tolist()
        == np.repeat(np.arange(4.0), 2)[:, None].repeat(3, 1).tolist()
    )


def test_a_file_that_is_cut_off_while_it_is_in_use_is_an_error_of_one_line(tmp_path):
    path = tmp_path / "p.npz"
    Predictions.from_logits(np.random.default_rng(0).normal(size=(1000, 3)), np.zeros(1000, int)).save(path)
    mapped = Predictions.load(path, mmap=True)
    with path.open("r+b") as handle:
        handle.truncate(5000)
    with pytest.raises(InvalidInput, match=r"p\.npz was cut off while it was read"):
        _ = mapped.confidence
