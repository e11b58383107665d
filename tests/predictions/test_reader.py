"""The one reader of prediction files: which columns mean what, in blocks, in every format."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.predictions import parse_columns, scan
from calibrant.predictions.columns import DistinctIds

FORMATS = ("npz", "csv", "parquet")
SCORES = np.array([[3.0, 1.0], [0.5, 2.0], [1.0, 0.0], [0.0, 4.0], [2.0, 1.0]])


@pytest.fixture(params=[1, 4, 2**19])
def block(request, monkeypatch):
    """Blocks of one row, of some, and all at once."""
    monkeypatch.setattr("calibrant.predictions.columns._BLOCK_CELLS", request.param)


def write(path, columns, names=("a", "b"), prefix="logit_"):
    """A file of any format with the scores and other columns."""
    columns = {name: np.asarray(column) for name, column in columns.items()}
    scores = {f"{prefix}{name}": SCORES[:, k] for k, name in enumerate(names)}
    if path.suffix == ".npz":
        plural = {"target": "targets", "id": "ids"}
        own = {plural.get(name, name): column for name, column in columns.items()}
        np.savez(path, logits=SCORES, class_names=np.array(names), **own)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table({**columns, **scores}), path)
    else:
        rows = zip(*(column.tolist() for column in (*columns.values(), *scores.values())), strict=True)
        path.write_text("\n".join(",".join(map(str, row)) for row in [(*columns, *scores), *rows]) + "\n")
    return path


def joined(blocks, name):
    return np.concatenate([getattr(block, name) for block in blocks]).tolist()


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_come_in_blocks_with_everything_that_a_file_has(tmp_path, block, suffix):
    columns = {"id": list("vwxyz"), "target": ["a", "b", "a", "b", "b"], "site": ["k", "l", "k", "l", "m"]}
    if suffix == "npz":
        columns["target"] = [0, 1, 0, 1, 1]
    found = scan(write(tmp_path / f"p.{suffix}", columns))
    assert (found.kind, found.n_classes, found.class_names, found.extras) == ("logits", 2, ("a", "b"), ("site",))
    assert (found.has_targets, found.n_rows) == (True, None if suffix == "csv" else 5)
    blocks = list(found)
    assert joined(blocks, "scores") == SCORES.tolist()
    assert joined(blocks, "targets") == [0, 1, 0, 1, 1]
    assert joined(blocks, "ids") == list("vwxyz")
    assert np.concatenate([part.extras["site"] for part in blocks]).tolist() == columns["site"]
    assert [part.start for part in blocks] == [0, *np.cumsum([len(part) for part in blocks])[:-1]]


@pytest.mark.parametrize("suffix", FORMATS)
def test_targets_may_be_missing(tmp_path, suffix):
    path = write(tmp_path / f"p.{suffix}", {})
    (block,) = scan(path)
    assert (block.targets, block.ids, dict(block.extras)) == (None, None, {})
    with pytest.raises(InvalidInput, match="must have targets"):
        Predictions.load(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_columns_are_mapped(tmp_path, suffix):
    path = write(tmp_path / f"p.{suffix}", {"case": [7, 8, 9, 10, 11], "label": [0, 1, 0, 1, 1]})
    found = Predictions.load(path, columns={"target": "label", "id": "case"})
    assert found.targets.tolist() == [0, 1, 0, 1, 1]
    assert [int(name) for name in found.ids] == [7, 8, 9, 10, 11]
    assert not found.extras
    with pytest.raises(InvalidInput, match=r"column 'lable' is not there.*There are: .*case, label"):
        scan(path, columns={"target": "lable"})
    with pytest.raises(InvalidInput, match=r"column 'label' is mapped twice\. There are: .*case, label"):
        scan(path, columns={"target": "label", "id": "label"})
    with pytest.raises(InvalidInput, match=r"columns must map target, .* got 'traget'\. Did you mean 'target'"):
        scan(path, columns={"traget": "label"})


def test_a_mapping_is_read_from_text():
    assert parse_columns("target=a=b,id=case") == {"target": "a=b", "id": "case"}
    for text in ("target", "target=a,target=b", "", "label=a"):
        with pytest.raises(InvalidInput, match="columns"):
            parse_columns(text)


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_a_nameless_index_is_passed_over(tmp_path, index):
    path = write(tmp_path / "p.csv", {index: range(5), "target": [0, 1, 0, 1, 1]})
    assert scan(path).extras == ()
    assert Predictions.load(path, columns={"id": index}).ids.tolist() == list("01234")


def test_the_index_that_pandas_puts_into_parquet_is_passed_over(tmp_path):
    assert scan(write(tmp_path / "p.parquet", {"__index_level_0__": range(5)})).extras == ()


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("suffix", FORMATS)
def test_extras_are_kept_with_their_types(tmp_path, suffix, mmap):
    columns = {"target": [0, 1, 0, 1, 1], "weight": [0.5, 1, 2, 3, 4], "age": [1, 2, 3, 4, 5]}
    columns["zip"] = ["007", "1", "2", "3", "4"]
    path = write(tmp_path / f"p.{suffix}", columns)
    found = Predictions.load(path, mmap=mmap)
    assert {name: column.tolist() for name, column in found.extras.items()} == {
        name: column for name, column in columns.items() if name != "target"
    }
    assert [found.extras[name].dtype.kind in "iu" for name in ("weight", "age", "zip")] == [False, True, False]
    found.save(tmp_path / f"again.{suffix}")
    again = Predictions.load(tmp_path / f"again.{suffix}")
    assert again.extras["zip"].tolist() == columns["zip"]
    with pytest.raises(KeyError):
        found.extras["no such"]


def test_columns_of_parquet_become_numbers_or_text_and_lists_are_passed_over(tmp_path):
    extras = {
        "when": pa.array([None, *range(4)], pa.timestamp("s")),
        "seen": pa.array([True, None, False, True, True]),
        "kind": pa.array(["x", "y", None, "x", "x"]).dictionary_encode(),
        "dose": pa.array([1, None, 3, 4, 5]),
        "embedding": pa.array([[1.0, 2.0]] * 5),
        "picture": pa.array([b"x"] * 5),
    }
    scores = {f"logit_{k}": SCORES[:, k] for k in range(2)}
    parquet.write_table(pa.table({"target": [0] * 5, **scores, **extras}), tmp_path / "p.parquet")
    found = Predictions.load(tmp_path / "p.parquet").extras
    assert set(found) == {"when", "seen", "kind", "dose"}
    assert found["when"].tolist()[:2] == ["", "1970-01-01 00:00:00.000"]
    assert found["kind"].tolist() == ["x", "y", "", "x", "x"]
    np.testing.assert_array_equal(found["dose"], [1, np.nan, 3, 4, 5])
    np.testing.assert_array_equal(found["seen"], [1, np.nan, 0, 1, 1])


@pytest.mark.parametrize(
    ("prefix", "kind"), [("prob_", "probabilities"), ("probability_", "probabilities"), ("logit_", "logits")]
)
def test_prefixes_say_what_the_scores_are(tmp_path, prefix, kind):
    path = write(tmp_path / "p.csv", {"score_total": range(5)}, prefix=prefix)
    assert (scan(path).kind, scan(path).extras) == (kind, ("score_total",))


@pytest.mark.parametrize("suffix", FORMATS)
def test_class_names_read_text_labels_and_set_the_order(tmp_path, block, suffix):
    labels = ["cat", "dog", "cat", "dog", "dog"]
    path = write(tmp_path / f"p.{suffix}", {"target": labels}, names=("0", "1"))
    found = Predictions.load(path, class_names=["cat", "dog"])
    assert (found.targets.tolist(), found.class_names) == ([0, 1, 0, 1, 1], ("cat", "dog"))
    path = write(tmp_path / f"q.{suffix}", {"target": labels}, names=("dog", "cat"))
    turned = Predictions.load(path, class_names=["cat", "dog"], mmap=True)
    assert turned.targets.tolist() == [0, 1, 0, 1, 1]
    assert turned.scores.tolist() == SCORES[:, ::-1].tolist()
    with pytest.raises(InvalidInput, match="name the classes cat, owl, got dog"):
        scan(path, class_names=["cat", "owl"])


def test_many_names_in_another_order_take_no_time(tmp_path):
    names = [f"class {k}" for k in range(60_000)]
    np.savez(tmp_path / "p.npz", logits=np.zeros((1, 60_000), np.float32), class_names=np.array(names[::-1]))
    (block,) = scan(tmp_path / "p.npz", class_names=names)
    assert block.scores.shape == (1, 60_000)


def test_classes_called_1_to_k_are_named_by_their_targets(tmp_path, block):
    """The first targets could be numbers of other classes; the whole column says that they are names."""
    path = write(tmp_path / "p.csv", {"target": [1, 1, 2, 1, 2]}, names=("1", "2"))
    assert joined(list(scan(path)), "targets") == [0, 0, 1, 0, 1]
    path = write(tmp_path / "q.csv", {"target": [1, 1, 0, 1, 0]}, names=("1", "2"))
    assert joined(list(scan(path)), "targets") == [1, 1, 0, 1, 0]
    with pytest.raises(InvalidInput, match="can be read as both"):
        list(scan(write(tmp_path / "r.csv", {"target": [1] * 5}, names=("1", "2"))))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("targets", [["a", "b", "a", "b", "1"], ["0", "1", "0", "1", "a"]])
def test_names_and_numbers_in_one_column_are_refused(tmp_path, block, suffix, targets):
    path = write(tmp_path / f"p.{suffix}", {"target": targets})
    with pytest.raises(
        InvalidInput, match=rf"names in all rows, or class numbers in all rows, got '{targets[4]}' in row 4"
    ):
        list(scan(path))


@pytest.fixture
def parts(tmp_path):
    """Three Parquet files, and what they say together."""
    folder = tmp_path / "parts"
    for k in range(3):
        (folder / f"day={k}").mkdir(parents=True)
        write(folder / f"day={k}" / "part.parquet", {"target": [0, 1, 0, 1, 1], "id": np.arange(5) + 5 * k})
    (folder / "_metadata.parquet").write_text("no part")
    return folder


@pytest.mark.parametrize("column", ["target", "id"])
def test_lists_in_place_of_targets_or_ids_are_refused_by_name(column, tmp_path):
    path = write(tmp_path / "p.parquet", {"target": [0, 1, 0, 1, 1], "id": np.arange(5)})
    table = parquet.read_table(path).drop_columns(column).append_column(column, pa.array([[0]] * 5))
    parquet.write_table(table, path)
    with pytest.raises(InvalidInput, match=f"column '{column}' must have one number, text or date per row, got list"):
        Predictions.load(path)
    if column == "target":  # one column of scores: labels are read to find the classes
        parquet.write_table(pa.table({"probability": [0.5], "target": [["a"]]}), path)
        with pytest.raises(InvalidInput, match="column 'target' must have one number"):
            Predictions.load(path)


def test_a_folder_or_a_pattern_of_parquet_files_is_read_as_one(parts, block):
    for source in (parts, f"{parts}/day=*/*.parquet"):
        found = scan(source)
        assert found.n_rows == 15
        assert joined(list(found), "ids") == list(range(15))
        assert len(Predictions.load(source, mmap=True)) == 15
    assert len(Predictions.load(parts).origin.sha256) == 64


def test_parts_must_have_the_same_columns(parts):
    path = parts / "day=1" / "part.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns("logit_b"), path)
    with pytest.raises(InvalidInput, match=r"day=1/part.parquet: column 'logit_b' is not there. There are: target, id"):
        scan(parts)
    wide = table.set_column(2, "logit_a", table.column("logit_a").cast(pa.float32()))
    parquet.write_table(wide.select(["logit_b", "id", "target", "logit_a"]), path)
    assert joined(list(scan(parts)), "scores") == SCORES.tolist() * 3
    with pytest.raises(InvalidInput, match="does not exist: no file has such a name"):
        scan(f"{parts}/*.nothing.parquet")


def test_a_damaged_page_of_ours_is_found(tmp_path):
    rng = np.random.default_rng(0)
    Predictions.from_logits(rng.normal(size=(5000, 3)), rng.integers(0, 3, 5000)).save(tmp_path / "p.parquet")
    content = bytearray((tmp_path / "p.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(InvalidInput, match="be a whole Parquet file"):
        Predictions.load(tmp_path / "p.parquet")


def test_parquet_that_declares_far_more_than_it_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.predictions.columns._HARMLESS", 2**25)
    zeros = pa.array(np.zeros(5_000_000, np.float32))
    parquet.write_table(pa.table({"logit_0": zeros, "logit_1": zeros}), tmp_path / "p.parquet")
    with pytest.raises(InvalidInput, match="unfold to at most 20 times its size"):
        scan(tmp_path / "p.parquet")


def test_a_repeated_id_is_found_by_its_row():
    ids = [np.array(["a", "b"], dtype=object), np.array(["c", "a"], dtype=object)]
    distinct = DistinctIds()
    for part in ids:
        distinct.add(part)
    with pytest.raises(InvalidInput, match="ids must be distinct, got 'a' again in row 3"):
        distinct.check(lambda: ids)


def test_ids_that_only_share_a_key_are_distinct(monkeypatch):
    ids = [np.array(["a", "b", "c"], dtype=object)]
    distinct = DistinctIds()
    distinct._keys.append(np.zeros(3, np.int64))
    monkeypatch.setattr("calibrant.predictions.columns.hash", lambda _: 0, raising=False)
    distinct.check(lambda: ids)


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_stays_on_disk_is_the_same_and_travels_between_processes(tmp_path, suffix):
    columns = {"target": [0, 1, 0, 1, 1], "id": list("vwxyz"), "site": list("klmno")}
    path = write(tmp_path / f"p.{suffix}", columns)
    mapped = Predictions.load(path, mmap=True)
    for found in (mapped, pickle.loads(pickle.dumps(mapped)), mapped.subset([4, 0, 2]).subset([1])):
        rows = range(5) if len(found) == 5 else [0]
        assert found.scores.tolist() == SCORES[list(rows)].tolist()
        assert found.ids.tolist() == [columns["id"][row] for row in rows]
        assert found.extras["site"].tolist() == [columns["site"][row] for row in rows]


def test_a_file_that_changed_since_it_was_opened_is_refused(tmp_path):
    path = write(tmp_path / "p.parquet", {"target": [0, 1, 0, 1, 1], "id": range(5)})
    mapped = Predictions.load(path, mmap=True)
    parquet.write_table(parquet.read_table(path).slice(0, 3), path)
    with pytest.raises(InvalidInput, match="was changed while it was in use: 3 rows, 5 before"):
        _ = mapped.ids


def test_long_ids_are_refused_before_each_takes_the_room_of_the_longest(tmp_path):
    path = write(tmp_path / "p.csv", {"target": [0] * 5, "id": [*"abcd", "e" * 1001]})
    with pytest.raises(InvalidInput, match="ids must have at most 1000 characters, got one of 1001"):
        Predictions.load(path)


def test_a_long_text_that_parquet_holds_once_is_not_made_for_every_row(tmp_path):
    rows = 20_000
    note = pa.DictionaryArray.from_arrays(pa.array([0, None] * (rows // 2)), pa.array(["x" * 100_000]))
    scores = pa.array(np.random.default_rng(0).normal(size=rows).astype(np.float32))
    table = pa.table({"target": [0] * rows, "logit_0": scores, "logit_1": scores, "note": note})
    parquet.write_table(table, tmp_path / "p.parquet")
    found = Predictions.load(tmp_path / "p.parquet").extras["note"]
    assert (len(found[0]), found[1]) == (100_000, "")
    assert len({id(text) for text in found}) <= 4  # two for each block


@pytest.mark.parametrize("suffix", FORMATS)
def test_long_ids_are_refused_in_blocks_too(tmp_path, suffix):
    path = write(tmp_path / f"p.{suffix}", {"id": ["e" * 1001, *"abcd"]})
    with pytest.raises(InvalidInput, match="ids must have at most 1000 characters"):
        list(scan(path))


@pytest.mark.parametrize("index", [pa.uint8(), pa.int8(), pa.uint32()])
def test_categories_of_any_width_are_read(tmp_path, index):
    target = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1, 1, 0], index), pa.array(["b", "a"]))
    scores = {f"logit_{name}": SCORES[:, k] for k, name in enumerate("ab")}
    parquet.write_table(pa.table({"target": target, **scores}), tmp_path / "p.parquet")
    assert Predictions.load(tmp_path / "p.parquet").targets.tolist() == [0, 1, 0, 0, 1]


def test_a_column_that_a_later_part_has_twice_is_refused_in_one_line(tmp_path):
    scores = {"logit_0": [0.5], "logit_1": [1.5]}
    parquet.write_table(pa.table({"target": [0], **scores}), tmp_path / "0.parquet")
    names = ["target", "target", *scores]
    parquet.write_table(pa.Table.from_arrays([[0], [1], [0.5], [1.5]], names), tmp_path / "1.parquet")
    with pytest.raises(InvalidInput, match=r"1\.parquet: column 'target' appears twice"):
        scan(tmp_path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_folder_of_any_format_is_read_in_the_order_of_its_names(tmp_path, suffix):
    for k in range(3):
        write(tmp_path / f"part{k}.{suffix}", {"target": [0, 1, 0, 1, 1], "id": np.arange(5) + 5 * k})
    found = scan(tmp_path)
    assert [int(name) for block in found for name in block.ids] == list(range(15))
    assert [(part.n_rows, part.where) for part in found.parts()] == [
        (5, str(tmp_path / f"part{k}.{suffix}")) for k in range(3)
    ]
    assert found.n_rows == 15
    for source in (tmp_path, f"{tmp_path}/part*.{suffix}"):
        for mmap in (False, True):
            loaded = Predictions.load(source, mmap=mmap)
            assert loaded.scores.tolist() == SCORES.tolist() * 3
            assert loaded.targets.tolist() == [0, 1, 0, 1, 1] * 3


def test_a_folder_of_several_formats_is_refused(tmp_path):
    for suffix in ("csv", "parquet"):
        write(tmp_path / f"p.{suffix}", {"target": [0, 1, 0, 1, 1]})
    with pytest.raises(InvalidInput, match=r"source must be .*with \.csv, \.parquet"):
        scan(tmp_path)


def test_arrays_of_a_folder_must_have_the_same_classes_and_columns(tmp_path):
    write(tmp_path / "0.npz", {"target": [0, 1, 0, 1, 1], "site": list("klmno")})
    write(tmp_path / "1.npz", {"target": [0, 1, 0, 1, 1]})
    with pytest.raises(InvalidInput, match=r"1\.npz: column 'site' is not there"):
        scan(tmp_path)
    write(tmp_path / "1.npz", {"target": [0, 1, 0, 1, 1], "site": list("klmno")}, names=("b", "a"))
    with pytest.raises(InvalidInput, match=r"1\.npz must hold logits of the classes a, b, in this order, got .* b, a"):
        scan(tmp_path)


def test_parts_have_the_widest_type_among_them(tmp_path):
    for k, dtype in enumerate((np.float32, np.float64)):
        np.savez(tmp_path / f"{k}.npz", logits=SCORES.astype(dtype), targets=[0] * 5)
    found = scan(tmp_path)
    assert found.precision == "float64"
    assert {block.scores.dtype for part in found.parts() for block in part} == {np.dtype(np.float64)}
