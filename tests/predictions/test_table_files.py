"""CSV and Parquet files: which cells are read how, and what is refused."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.predictions import read_table, scan, table_writer
from calibrant.predictions.table_files import table_columns

HEADER = "id,target,logit_a,logit_b"
GOOD = {
    "plain": (f"{HEADER}\n1,a,1.5,2\n2,b,-1e-3,.5\n", ["1", "2"], [[1.5, 2], [-1e-3, 0.5]]),
    "no end": (f"{HEADER}\n1,a,1.5,2\n2,b,0,1", ["1", "2"], [[1.5, 2], [0, 1]]),
    "windows": (f"{HEADER}\r\n1,a,1.5,2\r\n2,b,0,1\r\n", ["1", "2"], [[1.5, 2], [0, 1]]),
    "old mac": (f"{HEADER}\r1,a,1.5,2\r2,b,0,1\r", ["1", "2"], [[1.5, 2], [0, 1]]),
    "blank lines": (f"\n\n{HEADER}\n\n1,a,1.5,2\n\n\n2,b,0,1\n\n", ["1", "2"], [[1.5, 2], [0, 1]]),
    "mark": (f"\ufeff{HEADER}\n1,a,1.5,2\n", ["1"], [[1.5, 2]]),
    "spaces": (f"{HEADER}\n 1 , a ,1.5 , 2\n", [" 1 "], [[1.5, 2]]),
    "quotes": (
        '"id","target","logit_a","logit_b"\n"x, ""y""\nz","a","1.5",2\n"q",b,0,1\n',
        ['x, "y"\nz', "q"],
        [[1.5, 2], [0, 1]],
    ),
    "words": (f"{HEADER}\nnan,a,1,2\nNULL,b,0,1\n,a,3,4\n", ["nan", "NULL", ""], [[1, 2], [0, 1], [3, 4]]),
    "spaces in the header": ("id, target ,logit_a, logit_b\n1,a,1.5, 2\n", ["1"], [[1.5, 2]]),
    "signs": (f"{HEADER}\n1,a,+1,-0\n", ["1"], [[1, 0]]),
    "not finite": (f"{HEADER}\n1,a,inf,nan\n", ["1"], [[np.inf, np.nan]]),
    "unicode": ("id,target,logit_ä,logit_b\nß,ä,1,2\n", ["ß"], [[1, 2]]),
}


def read(path):
    blocks = list(scan(path))
    return [name for block in blocks for name in block.ids], np.concatenate([block.scores for block in blocks])


@pytest.mark.parametrize("name", GOOD)
def test_csv_is_read(tmp_path, name):
    text, ids, scores = GOOD[name]
    (tmp_path / "p.csv").write_text(text, encoding="utf-8", newline="")
    found = read(tmp_path / "p.csv")
    assert found[0] == ids
    np.testing.assert_array_equal(found[1], scores)


def random_table(seed):
    rng = np.random.default_rng(seed)
    words = ["a", "b,c", 'd"e', "f\ng", "", "007", " h ", "ü", "-1", "NA"]
    rows = [[rng.choice(words) + str(row), rng.choice(["x", "y"]), *rng.normal(size=2).tolist()] for row in range(200)]
    return [["id", "target", "logit_x", "logit_y"], *rows]


@pytest.mark.parametrize("seed", range(10))
def test_csv_is_read_as_the_standard_library_reads_it(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("calibrant.predictions.table_files._CSV_BYTES", 2**12)
    table = random_table(seed)
    with (tmp_path / "p.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows(table)
    with (tmp_path / "p.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))[1:]
    ids, scores = read(tmp_path / "p.csv")
    assert ids == [row[0] for row in rows]
    assert scores.tolist() == [[float(cell) for cell in row[2:]] for row in rows]
    assert read_table(tmp_path / "p.csv")["id"] == ids


BAD = {
    "cells": ("target,logit_a,logit_b\na,1,2\n\na,1\n", r"row 1 must have 3 cells, got 2\. Check its commas"),
    "more cells": ("target,logit_a,logit_b\na,1,2\na,1,2,3\n", "row 1 must have 3 cells, got 4"),
    "no number": (
        "logit_b,target,logit_a\n1,a,2\n\n1,a,x\n",
        "be numbers, got 'x' in row 1, column logit_a",
    ),
    "empty": ("target,logit_a,logit_b\na,1,\n", "got '' in row 0, column logit_b"),
    "grouped digits": ("target,logit_a,logit_b\na,1,1_000\n", "got '1_000' in row 0, column logit_b"),
    "null number": ("target,logit_a,logit_b\na,1,NA\n", "got 'NA' in row 0"),
    "target": ("target,logit_a,logit_b\na,1,2\nc,1,2\n", "got 'c' in row 1"),
    "open quote": ('target,logit_a,logit_b\na,1,2\n"a,1,2\n', "quotation marks.*, got one that is not closed"),
    "open quote in the last cell": (
        'logit_a,logit_b,target\n1,2,a\n1,2,"a\n1,2,b\n1,2,a',
        "quotation marks.*, got one that is not closed",
    ),
    "quote inside": ('target,logit_a,logit_b\na,1,2\nx"y,1,2\n', "line 3 must have quotation marks only around"),
    "after quote": ('target,logit_a,logit_b\n"a"a,1,2\n', "line 2 must have quotation marks only around"),
    "encoding": (b"target,logit_a,logit_b\n\xff,1,2\n", "be a CSV file in UTF-8.*Excel calls that CSV UTF-8"),
    "utf-16": ("target,logit_a,logit_b\na,1,2\n".encode("utf-16"), "be a CSV file in UTF-8"),
    "late encoding": (b"target,logit_a,logit_b\n" + b"a,1,2\n" * 10**6 + b"\xff,1,2\n", "be a CSV file in UTF-8"),
    "binary": (bytes(range(256)) * 10, "UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_csv_is_refused_with_its_place(tmp_path, name):
    text, match = BAD[name]
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "p.csv").write_bytes(content)
    with pytest.raises(InvalidInput, match=match) as error:
        Predictions.load(tmp_path / "p.csv")
    assert "\n" not in str(error.value)
    assert "p.csv" in str(error.value)


def test_tables_may_have_tabs(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text('id\ttarget\tlogit_a\tlogit_b\n"x\ty"\ta\t1.5\t2\nq, r\tb\t0\t1\n')
    ids, scores = read(path)
    assert ids == ["x\ty", "q, r"]
    assert scores.tolist() == [[1.5, 2], [0, 1]]
    assert Predictions.load(path).targets.tolist() == [0, 1]
    assert read_table(path, {"id"}) == {"id": ids}
    path.write_text('target\tlogit_a\tlogit_b\na\t1\t2\nx"y\t1\t2\n')
    with pytest.raises(InvalidInput, match="line 3 must have quotation marks only around"):
        Predictions.load(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(("separator", "mark"), [(";", ","), (";", "."), ("\t", ","), ("|", "."), (",", ".")])
def test_another_separator_and_decimal_commas_are_the_same_table(tmp_path, suffix, separator, mark):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 3)).round(4)
    names = ["target", "logit_a", "logit_b", "logit_c", "weight", "text"]
    rows = [names]
    for index, row in enumerate(scores):
        numbers = [str(number).replace(".", mark) for number in (*row, 0.5)]
        rows.append(["abc"[index % 3], *numbers, "one; two, three\t|"])
    quoted = "\r\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows)
    plain = "\n".join(separator.join(row[:5]) for row in rows)
    for text in (quoted, plain):
        path = tmp_path / f"table{suffix}"
        path.write_text(text, encoding="utf-8-sig")
        loaded = Predictions.load(path)
        np.testing.assert_array_equal(loaded.logits, scores)
        assert set(loaded.extras["weight"]) == {0.5}
        assert read_table(path, {"weight"})["weight"][0] == "0.5"
        assert loaded.class_names == ("a", "b", "c")


def test_whole_numbers_and_a_version_leave_decimal_commas(tmp_path):
    (tmp_path / "p.csv").write_text("label;p_a;p_b;version\na;1;0;1.5\nb;0,25;0,75;1.5\nb;,5;5e-1;1.5\n")
    assert Predictions.load(tmp_path / "p.csv").probabilities.tolist() == [[1, 0], [0.25, 0.75], [0.5, 0.5]]


def test_a_row_longer_than_a_block_is_refused(tmp_path):
    (tmp_path / "p.csv").write_text("target,logit_a,logit_b\na,1,2\n" + "a" * 10_000_000)
    with pytest.raises(InvalidInput, match="have rows of at most 4 MB"):
        Predictions.load(tmp_path / "p.csv")


def test_too_many_columns_are_refused_before_memory_is_taken(tmp_path):
    (tmp_path / "p.csv").write_text("," * 10**6)
    with pytest.raises(InvalidInput, match="have at most 65,536 columns, got 1,000,001"):
        read_table(tmp_path / "p.csv")


@pytest.fixture
def damaged(tmp_path):
    """A text column in which one row has the fourth of three values, as a flipped bit makes it."""
    path = tmp_path / "damaged.parquet"
    n = 48
    columns = {"id": [str(row) for row in range(n)], "target": ["cat", "dog", "cow"] * (n // 3)}
    columns |= {f"probability_{name}": [1 / 3] * n for name in ("cat", "dog", "cow")}
    pq.write_table(pa.table(columns), path, compression="none")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(path.read_bytes())
    # Two bits per row, the last four rows in the last byte of the column.
    content[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] = 0b11111111
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("load", [read_table, Predictions.load])
def test_a_value_outside_the_dictionary_of_parquet_is_refused(damaged, load):
    with pytest.raises(InvalidInput, match=r"must be a whole Parquet file.*out of bounds") as error:
        load(damaged)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_are_read_back_as_they_were_written(tmp_path, suffix):
    texts = np.array(["plain", "a,b", 'c"d', "e\nf", "", "ü"], dtype=object)
    numbers = np.array([1.0, 1e-5, 1 / 3, 1e300, -0.5, 7.0])
    path = tmp_path / f"t{suffix}"
    with path.open("wb") as handle, table_writer(handle, suffix) as write:
        write({"text, with comma": texts[:2], "number": numbers[:2]})
        write({"text, with comma": texts[2:], "number": numbers[2:]})
    assert table_columns(path) == ["text, with comma", "number"]
    found = read_table(path)
    assert found["text, with comma"] == texts.tolist()
    assert [float(cell) for cell in found["number"]] == numbers.tolist()


def test_csv_without_special_characters_has_no_quotation_marks(tmp_path):
    with (tmp_path / "t.csv").open("wb") as handle, table_writer(handle, ".csv") as write:
        write({"id": np.array(["a", "b"]), "x": np.array([0.5, 2.0])})
    assert (tmp_path / "t.csv").read_text() == "id,x\na,0.5\nb,2\n"


def test_columns_of_lists_are_left_out(tmp_path):
    pq.write_table(pa.table({"id": [1, None], "list": [[1], [2]]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet") == {"id": [1, None]}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_only_wanted_columns_are_read(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    with path.open("wb") as handle, table_writer(handle, suffix) as write:
        write({"a": np.array(["1"]), "b": np.array(["2"])})
    assert read_table(path, {"b", "c"}) == {"b": ["2"]}


@pytest.mark.parametrize("name", ["t.txt", "t"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match=r"end in \.csv, \.tsv or \.parquet"):
        read_table(tmp_path / name)


def test_a_column_that_comes_twice_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("id,id\n1,2\n")
    with pytest.raises(InvalidInput, match="name each column once, got 'id' twice"):
        read_table(tmp_path / "t.csv")
