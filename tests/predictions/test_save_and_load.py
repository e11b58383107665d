"""Predictions on disk: what is written comes back, what is damaged is refused in one line."""

import datetime as dt
import itertools
import pickle
import zipfile
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput, OutputError
from calibrant.predictions import reader
from calibrant.predictions import rows as row_pass
from calibrant.predictions.rows import OnDisk, spool

NAMES = ["cat", 'a "quoted", one', "<b>ü</b>"]


def some(rows=50, kind="logits", dtype=np.float32, **more):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(rows, 3)) * 3
    if kind == "probabilities":
        scores = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    door = getattr(Predictions, f"from_{kind}")
    return door(scores.astype(dtype), rng.integers(0, 3, rows), **more)


def same(a, b, exact=True):
    np.testing.assert_allclose(b.scores, a.scores, rtol=0 if exact else 1e-6)
    np.testing.assert_array_equal(a.targets, b.targets)
    assert (a.kind, a.class_names) == (b.kind, b.class_names)
    assert (a.ids is None and b.ids is None) or [*map(str, a.ids)] == [*map(str, b.ids)]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_round_trip(tmp_path, suffix, kind, mmap):
    path = tmp_path / f"new/folder/p.{suffix}"
    for more in ({}, {"ids": [f"row {i}" for i in range(50)], "class_names": NAMES}, {"ids": np.arange(50) * 3}):
        predictions = some(kind=kind, **more)
        predictions.save(path)
        again = Predictions.load(path, mmap=mmap)
        same(predictions, again, exact=suffix != "csv")
        np.testing.assert_allclose(again.confidence, predictions.confidence, rtol=0 if suffix != "csv" else 1e-6)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npz_keeps_the_precision(tmp_path, dtype):
    some(kind="probabilities", dtype=dtype).save(tmp_path / "p.npz")
    assert Predictions.load(tmp_path / "p.npz").precision == np.dtype(dtype).name


def test_npz_keeps_bfloat16(tmp_path):
    predictions = Predictions.from_probabilities(torch.tensor([[0.3, 0.7]], dtype=torch.bfloat16), [1])
    predictions.save(tmp_path / "p.npz")
    again = Predictions.load(tmp_path / "p.npz")
    assert (again.precision, again.confidence[0]) == ("bfloat16", predictions.confidence[0])
    with pytest.raises(InvalidInput, match=r"end in .npz for half-precision"):
        predictions.save(tmp_path / "p.csv")
    logits = some(dtype=np.float16)  # these have no sum to keep
    logits.save(tmp_path / "p.csv")
    np.testing.assert_array_equal(Predictions.load(tmp_path / "p.csv").scores.astype(np.float16), logits.scores)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parquet_keeps_the_precision_and_names_the_classes(tmp_path, dtype):
    predictions = some(dtype=dtype, class_names=NAMES)
    predictions.save(tmp_path / "p.parquet")
    again = Predictions.load(tmp_path / "p.parquet")
    assert again.precision == dtype
    np.testing.assert_array_equal(again.scores, predictions.scores)
    table = parquet.read_table(tmp_path / "p.parquet")
    assert table.column("target").to_pylist() == [NAMES[target] for target in predictions.targets]
    mixed = table.set_column(1, table.field(1).name, table.column(1).cast(pa.float32()))
    parquet.write_table(mixed, tmp_path / "p.parquet")
    assert Predictions.load(tmp_path / "p.parquet").precision == dtype


def test_csv_keeps_every_float64(tmp_path):
    predictions = some(dtype=np.float64)
    predictions.save(tmp_path / "p.csv")
    np.testing.assert_array_equal(Predictions.load(tmp_path / "p.csv").scores, predictions.scores)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_mapped_file_is_read_once_and_gives_the_same_evaluation(tmp_path, monkeypatch, compressed):
    predictions = some(1000)
    write = np.savez_compressed if compressed else np.savez
    write(tmp_path / "p.npz", logits=predictions.scores, targets=predictions.targets)
    monkeypatch.setattr(row_pass, "CHUNK_BYTES", 100 * 8 * (3 + 10))  # 100 rows of 3 classes
    reads, unpacked = [], []
    monkeypatch.setattr(reader, "spool", lambda *a: unpacked.append(True) or spool(*a))
    load_chunk = row_pass.load_chunk
    monkeypatch.setattr("calibrant.predictions.core.load_chunk", lambda *a: reads.append(a[1]) or load_chunk(*a))
    monkeypatch.setattr(row_pass, "load_chunk", lambda *a: reads.append(a[1]) or load_chunk(*a))
    mapped = Predictions.load(tmp_path / "p.npz", mmap=True)
    assert reads == []
    result = evaluate(mapped)
    assert [(part.start, part.stop) for part in reads] == [(i, i + 100) for i in range(0, 1000, 100)]
    assert result == evaluate(predictions)
    assert isinstance(mapped._scores, OnDisk)
    assert unpacked == [True] * compressed  # else it is read in place


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_larger_than_a_block_are_read_whole(tmp_path, monkeypatch, write, mmap):
    monkeypatch.setattr("calibrant.predictions.columns._BLOCK_CELLS", 20)
    predictions = some()
    write(tmp_path / "p.npz", logits=predictions.scores, targets=predictions.targets)
    same(predictions, Predictions.load(tmp_path / "p.npz", mmap=mmap))


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_larger_than_a_block_are_read_whole(tmp_path, monkeypatch, suffix, mmap):
    monkeypatch.setattr("calibrant.predictions.columns._BLOCK_CELLS", 20)
    predictions = some(ids=[f"row {i}" for i in range(50)])
    predictions.save(tmp_path / f"p.{suffix}")
    same(predictions, Predictions.load(tmp_path / f"p.{suffix}", mmap=mmap), exact=False)


def test_a_bad_cell_in_a_later_block_is_named_by_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.predictions.columns._BLOCK_CELLS", 20)
    lines = ["target,logit_0,logit_1", *["0,1.0,2.0"] * 50]
    lines[1 + 37] = "0,1.0,x"
    (tmp_path / "p.csv").write_text("\n".join(lines))
    refused(tmp_path / "p.csv", "'x' in row 37, column logit_1")


def test_scores_are_checked_on_loading_unless_they_are_mapped(tmp_path):
    np.savez(tmp_path / "p.npz", probabilities=[[0.5, 0.4]], targets=[0])
    with pytest.raises(InvalidInput, match="sum to 1"):
        Predictions.load(tmp_path / "p.npz")
    Predictions.load(tmp_path / "p.npz", mmap=True)


@pytest.mark.parametrize(("version", "known"), [((1, 0), True), ((2, 0), True), ((3, 0), False)])
def test_versions_of_the_array_format(tmp_path, version, known):
    predictions = some()
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        for name, array in (("logits", predictions.scores), ("targets", predictions.targets)):
            with archive.open(f"{name}.npy", "w") as handle:
                np.lib.format.write_array(handle, array, version=version)
    if known:
        same(predictions, Predictions.load(tmp_path / "p.npz"))
    else:
        refused(tmp_path / "p.npz", r"logits must be \.npy of version 1 or 2, got version \(3, 0\)")


def test_an_array_may_lie_anywhere_in_its_file(tmp_path):
    predictions, path = some(), tmp_path / "p.npz"
    np.savez(path, ids=np.arange(50), targets=predictions.targets, logits=predictions.scores)
    np.testing.assert_array_equal(Predictions.load(path, mmap=True).scores, predictions.scores)


def test_a_mapped_file_is_still_checked(tmp_path):
    np.savez(tmp_path / "p.npz", probabilities=[[0.5, 0.5], [0.5, 0.4]], targets=[0, 1])
    mapped = Predictions.load(tmp_path / "p.npz", mmap=True)
    for use in (lambda: mapped.confidence, lambda: evaluate(mapped), lambda: mapped.subset([0])):
        with pytest.raises(InvalidInput, match="sum to 1"):
            use()


def test_fortran_order_and_big_endian_are_read(tmp_path):
    scores = np.asfortranarray(some().scores.astype(">f8"))
    for write, mmap in itertools.product((np.savez, np.savez_compressed), (False, True)):
        write(tmp_path / "p.npz", logits=scores, targets=np.zeros(50, ">i2"))
        again = Predictions.load(tmp_path / "p.npz", mmap=mmap)
        np.testing.assert_array_equal(again.scores, scores)
        assert again.confidence[0] > 0


def refused(path, match, **more):
    for mmap in (False, True):
        with pytest.raises(InvalidInput, match=match) as caught:
            Predictions.load(path, mmap=mmap, **more).confidence  # noqa: B018 (reading is the point)
        assert "\n" not in str(caught.value)


def test_a_file_that_does_not_say_needs_a_word(tmp_path):
    for name, write in (("p.npz", _neutral_npz), ("p.csv", _neutral_csv)):
        path = tmp_path / name
        write(path)
        refused(path, "does not say whether its scores are logits or probabilities.*--kind")
        assert Predictions.load(path, kind="logits").kind == "logits"
        refused(path, "sum to 1", kind="probabilities")
    some().save(tmp_path / "q.npz")
    refused(tmp_path / "q.npz", "be probabilities as you said, got logits by their name", kind="probabilities")
    refused(tmp_path / "q.npz", "kind must be", kind="odds")


def _neutral_npz(path):
    np.savez(path, scores=[[1.0, 2.0]], targets=[0])


def _neutral_csv(path):
    path.write_text("target,score_0,score_1\n0,1.0,2.0\n")


def test_damaged_npz_is_refused(tmp_path):
    path = tmp_path / "p.npz"
    some(2000).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "whole .npz file")
    path.write_bytes(b"not a zip")
    refused(path, "whole .npz file")
    path.write_bytes(b"")
    refused(path, "whole .npz file")
    flipped = bytearray(whole)
    flipped[1000] ^= 255
    path.write_bytes(flipped)
    with pytest.raises(InvalidInput, match="CRC"):
        Predictions.load(path)
    refused(tmp_path / "missing.npz", "does not exist")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", "be a file, or a folder of .* got the folder")


@pytest.mark.parametrize("mmap", [False, True])
def test_every_kind_of_damage_is_refused_in_one_line(tmp_path, damage, mmap):
    some(2000).save(tmp_path / "p.npz")
    damage(tmp_path / "p.npz")
    with pytest.raises(InvalidInput, match=r"p\.npz must be a whole \.npz file of plain arrays"):
        Predictions.load(tmp_path / "p.npz", mmap=mmap)


def test_a_member_shorter_than_its_header_says_is_refused(tmp_path):
    buffer = BytesIO()
    np.save(buffer, some().scores)
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("logits.npy", buffer.getvalue()[:-12])
        archive.writestr("targets.npy", buffer.getvalue())
    refused(tmp_path / "p.npz", r"p\.npz must hold 600 bytes of logits for its shape, got 588.*cut off")


class Trap:
    """Fails the test if anybody unpickles it."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def test_pickles_are_never_loaded(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.asarray([[Trap()]], dtype=object), targets=[0])
    refused(tmp_path / "p.npz", "Pickled objects are never loaded")
    (tmp_path / "q.npz").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path / "q.npz", "whole .npz file")


def test_missing_arrays_and_unknown_endings_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", logits=[[1.0, 2.0]], target=[0])
    refused(tmp_path / "p.npz", "must have targets, got scores and target.*--columns target=target")
    np.savez(tmp_path / "p.npz", logits=[[1.0, 2.0]], probabilities=[[1.0, 0.0]], targets=[0])
    refused(tmp_path / "p.npz", "exactly one of the arrays logits, probabilities")
    refused(tmp_path / "p.pt", r"end in .npz, .csv, .tsv, .jsonl or .parquet")
    with pytest.raises(InvalidInput, match="end in"):
        some().save(tmp_path / "p.pkl")


CSV = {
    "": "no columns",
    "target,logit_0,logit_1\n": "at least one row",
    "target,score\n": "at least two classes, got target, score. If 'score' .* --positive CLASS",
    "target,score\n1,0.9\n": "'score' is the score of '0': --positive 0; 'score' is the score of '1': --positive 1",
    "label,score\nyes,0.9\n": "got 'yes' in every row. .* --positive yes. If not, name the other",
    "target,probability_0,probability_1\n1,0.333,0.66\n": "got 0.993 in row 0. If they were rounded",
    "targets,logit_0,logit_1\n0,1,1\n": "must have targets, got scores and targets",
    "logit_0,logit_1\n0,1\n": "must have targets, got scores and no other columns",
    "target,logit_0,probability_1\n0,1,1\n": "can be read in 2 ways.*logits in logit_0: --columns 'scores=logit_[*]'",
    "target,logit_cat,logit_dog\ncat,1,1\n0,1,1\n": "be class names in all rows, or .* in all rows, got '0' in row 1",
    "target,logit_0,logit_0\n0,1,1\n": "'logit_0' appears twice",
    "target,logit_0,logit_1\n0,1\n": "row 0 must have 3 cells, got 2",
    "target,logit_0,logit_1\n0,1,two\n": "scores must be numbers, got 'two' in row 0, column logit_1",
    "target,logit_0,logit_1\n0,1,\n": "scores must be numbers, got '' in row 0",
    "target,logit_0,logit_1\n0,1,nan\n": "finite, got nan in row 0, column 1",
    "target,logit_0,logit_1\n2,1,1\n": "number in 0..1, got '2' in row 0",
    "target,logit_0,logit_1\n0,1,1\n0.5,1,1\n": "got '0.5' in row 1",
    "target,logit_0,logit_1\n-1.0,1,1\n": "got '-1.0' in row 0",
    "target,logit_0,logit_1\n2.0,1,1\n": "number in 0..1, got '2.0' in row 0",
    "target,logit_1,logit_2\n1,1,1\n": r"can be read as both \('1'\)\. Call the classes 0\.\.K-1",
    "target;logit_0;logit_1\n0;1,5;1.5\n1;0.5;2.5\n": "scores must be numbers, got '1,5' in row 0, column logit_0",
    "target,id,logit_0,logit_1\n0,a,1,1\n0,a,1,1\n": "distinct, got 'a' again in row 1",
    "target,probability_0,probability_1\n0,0.5,0.4\n": "sum to 1",
}


@pytest.mark.parametrize("text", CSV)
def test_bad_csv_is_refused(tmp_path, text):
    path = tmp_path / "p.csv"
    path.write_text(text)
    refused(path, CSV[text])


def test_csv_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"target,logit_0\n\xff\xfe,1\n")
    refused(tmp_path / "p.csv", "UTF-8")


def test_csv_reads_names_numbers_and_any_column_order(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("\ufefflogit_cat,target,logit_dog\n1,dog,2\n\n3,cat,4\n")  # with the mark that spreadsheets write
    predictions = Predictions.load(path)
    assert (predictions.targets.tolist(), predictions.class_names) == ([1, 0], ("cat", "dog"))
    header = ["target", *(f"logit_{k}" for k in sorted(map(str, range(12))))]  # 0, 1, 10, 11, 2, ...
    path.write_text(",".join(header) + "\n" + ",".join(["10", *(name.split("_")[1] for name in header[1:])]) + "\n")
    predictions = Predictions.load(path)
    assert predictions.scores[0].tolist() == list(range(12))
    assert (predictions.targets.tolist(), predictions.class_names) == ([10], None)


def test_whole_floats_are_class_numbers(tmp_path):
    from pyarrow import parquet, table

    (tmp_path / "p.csv").write_text("target,logit_0,logit_1\n1.0,1,2\n0,3,4\n0.,3,4\n")
    parquet.write_table(
        table({"target": [1.0, 0.0, 0.0], "logit_0": [1.0] * 3, "logit_1": [2.0] * 3}), tmp_path / "p.parquet"
    )
    for name in ("p.csv", "p.parquet"):
        assert Predictions.load(tmp_path / name).targets.tolist() == [1, 0, 0]


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path, rf"a folder of \.npz, .* files .* got the folder .*{tmp_path.name}")
    some().save(tmp_path / "predictions/test.npz")
    refused(tmp_path, r"The predictions of a run lie in files of their own, for example .*/predictions/test\.npz")
    refused(None, "source must be a path")
    with pytest.raises(InvalidInput, match="path must be a path"):
        some().save(None)


NOTHING = pa.array([], pa.float32())


def test_bad_parquet_is_refused(tmp_path):
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")
    refused(path, "Parquet file")
    for columns, match in (
        ({"target": [0], "logit_0": [None], "logit_1": [1.0]}, "be numbers"),
        ({"target": [0, None], "logit_0": [1.0] * 2, "logit_1": [1.0] * 2}, "a value in every row, got none in row 1"),
        ({"target": [0.5], "logit_0": [1.0], "logit_1": [1.0]}, "integers or class names"),
        (
            {"target": [dt.date(2024, 1, 1)], "logit_0": [1.0], "logit_1": [1.0]},
            "integers or class names, got datetime.date",
        ),
        ({"target": ["a", "c"], "logit_a": [1.0, 1.0], "logit_b": [1.0, 1.0]}, "'c' in row 1"),
        ({"target": ["1", "2"], "logit_a": [1.0, 1.0], "logit_b": [1.0, 1.0]}, "'2' in row 1"),
        (
            {"target": [True], "logit_0": [1.0], "logit_1": [2.0]},
            "be a class name of the columns, or its number in 0..1, got True",
        ),
        ({"target": [float("nan")], "logit_0": [1.0], "logit_1": [1.0]}, "integers or class names"),
        ({"target": [float("inf")], "logit_0": [1.0], "logit_1": [1.0]}, "integers or class names"),
        ({"target": [0], "logit_0": ["x"], "logit_1": ["y"]}, "numbers"),
        ({"target": pa.array([], pa.int64())} | dict.fromkeys(("logit_0", "logit_1"), NOTHING), "at least one row"),
    ):
        parquet.write_table(pa.table(columns), path)
        refused(path, match)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    some().save(path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OutputError, match="disk is full"):
        some(10).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]
