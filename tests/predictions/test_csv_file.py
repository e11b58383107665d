"""CSV through pyarrow and through the csv module: the same rows, the same refusals."""

import sys

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import scan
from calibrant.predictions.csv_file import CsvSource, csv_records

GOOD = {
    "plain": "id,target,logit_a,logit_b\n1,a,1.5,2\n2,b,-1e-3,.5\n",
    "no end": "id,target,logit_a,logit_b\n1,a,1.5,2\n2,b,0,1",
    "windows": "id,target,logit_a,logit_b\r\n1,a,1.5,2\r\n2,b,0,1\r\n",
    "old mac": "id,target,logit_a,logit_b\r1,a,1.5,2\r2,b,0,1\r",
    "blank lines": "\n\nid,target,logit_a,logit_b\n\n1,a,1.5,2\n\n\n2,b,0,1\n\n",
    "mark": "\ufeffid,target,logit_a,logit_b\n1,a,1.5,2\n",
    "spaces": "id,target,logit_a,logit_b\n 1 , a ,1.5 , 2\n",
    "quotes": '"id","target","logit_a","logit_b"\n"x, ""y""\nz","a","1.5",2\n"q",b,0,1\n',
    "quote inside": 'id,target,logit_a,logit_b\nx"y,a,1,2\nz,b,0,1\n',
    "extras": 'id,target,logit_a,logit_b,note\n1,a,1,2,\n2,b,0,1,"a\nb"\n3,b,0,1,NA\n',
    "words": "id,target,logit_a,logit_b\nnan,a,1,2\nNULL,b,0,1\n,a,3,4\n",
    "python numbers": "id,target,logit_a,logit_b\n1,a,1_0,+2\n",
    "not finite": "id,target,logit_a,logit_b\n1,a,inf,nan\n",
    "unicode": "id,target,logit_ä,logit_b\nß,ä,1,2\n",
}
BAD = {
    "cells": "target,logit_a,logit_b\na,1,2\na,1\n",
    "more cells": "target,logit_a,logit_b\na,1,2\na,1,2,3\n",
    "no number": "target,logit_a,logit_b\na,1,2\na,1,x\n",
    "empty": "target,logit_a,logit_b\na,1,\n",
    "target": "target,logit_a,logit_b\na,1,2\nc,1,2\n",
    "open quote": 'target,logit_a,logit_b\na,1,2\n"a,1,2\n',
    "after quote": 'target,logit_a,logit_b\n"a"a,1,2\n',
    "null number": "target,logit_a,logit_b\na,1,NA\n",
}


def rows(path):
    found = [
        (block.scores.tolist(), block.targets.tolist(), None if block.ids is None else block.ids.tolist())
        for block in scan(path)
    ]
    extras = [text for block in scan(path) for column in block.extras.values() for text in column.tolist()]
    return [np.concatenate([np.atleast_1d(part[k]) for part in found]).tolist() for k in range(3)], extras


@pytest.fixture
def only_csv(monkeypatch):
    """Take pyarrow away when called."""
    return lambda: monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.parametrize("size", [1, 40, 2**23])
@pytest.mark.parametrize("name", GOOD)
def test_both_ways_read_the_same(tmp_path, monkeypatch, only_csv, name, size):
    monkeypatch.setattr("calibrant.predictions.csv_file._CHUNK_BYTES", size)
    (tmp_path / "p.csv").write_text(GOOD[name], encoding="utf-8", newline="")
    fast = rows(tmp_path / "p.csv")
    only_csv()
    np.testing.assert_equal(rows(tmp_path / "p.csv"), fast)


@pytest.mark.parametrize("size", [1, 40, 2**23])
@pytest.mark.parametrize("name", BAD)
def test_both_ways_refuse_the_same(tmp_path, monkeypatch, only_csv, name, size):
    monkeypatch.setattr("calibrant.predictions.csv_file._CHUNK_BYTES", size)
    (tmp_path / "p.csv").write_text(BAD[name], newline="")
    with pytest.raises(InvalidInput) as fast:
        rows(tmp_path / "p.csv")
    only_csv()
    with pytest.raises(InvalidInput) as slow:
        rows(tmp_path / "p.csv")
    assert str(fast.value) == str(slow.value)


def test_plain_files_are_read_by_pyarrow_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(CsvSource, "_read_slowly", None)
    for name in ("plain", "no end", "windows", "blank lines", "mark", "quotes", "extras", "words", "unicode"):
        (tmp_path / "p.csv").write_text(GOOD[name], encoding="utf-8", newline="")
        assert rows(tmp_path / "p.csv")


def test_what_pyarrow_cannot_read_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.predictions.csv_file._CHUNK_BYTES", 100)
    lines = [f"{k},a,{k}.5,0" for k in range(50)]
    lines[30] = "30,a,3_0.5,0"
    (tmp_path / "p.csv").write_text("\n".join(["id,target,logit_a,logit_b", *lines]))
    ((scores, _, ids), _) = rows(tmp_path / "p.csv")
    assert ids == [str(k) for k in range(50)]
    assert [score[0] for score in scores] == [k + 0.5 for k in range(50)]


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.predictions.csv_file._LONGEST_LINE", 1000)
    monkeypatch.setattr("calibrant.predictions.csv_file._CHUNK_BYTES", 100)
    (tmp_path / "p.csv").write_text("target,logit_a,logit_b\na,1,2\n" + "a" * 5000)
    with pytest.raises(InvalidInput, match="a line of more than 1000 characters"):
        rows(tmp_path / "p.csv")


def test_a_long_line_is_one_record_and_one_beyond_the_limit_is_refused(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(f"{','.join(['abcdefg'] * 2**18)}\n" * 2)
    assert [len(record) for record in csv_records(path, "labels.csv")] == [2**18] * 2
    path.write_text(f"{','.join(['abcdefg'] * 2**20)}\n")
    with pytest.raises(InvalidInput, match=r"^labels.csv must be a CSV file"):
        list(csv_records(path, "labels.csv"))
