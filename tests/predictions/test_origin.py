import numpy as np

from calibrant.files import sha256_of
from calibrant.predictions import Origin, Predictions, RowsPart


def test_what_was_read_from_a_file_knows_it_and_its_parts_do_too(tmp_path):
    path = tmp_path / "val.npz"
    Predictions.from_logits(np.eye(4), np.arange(4)).save(path)
    read = Predictions.load(path)
    assert (read.origin.path, read.origin.sha256, read.origin.part) == (path, sha256_of(path), None)
    some, rest = read.split(0.25, seed=3)
    assert (some.origin.part, rest.origin.part) == (RowsPart(0.25, 3, 0), RowsPart(0.25, 3, 1))
    assert rest.origin.sha256 == sha256_of(path)


def test_rows_that_no_file_can_be_asked_for_have_no_origin(tmp_path):
    made = Predictions.from_logits(np.eye(4), np.arange(4))
    made.save(tmp_path / "val.npz")
    assert made.origin == Origin()
    assert made.split(0.5)[0].origin == Origin()
    read = Predictions.load(tmp_path / "val.npz")
    assert read.subset([0, 1]).origin == Origin()
    assert read.split(0.5)[0].split(0.5)[0].origin == Origin()
