import errno
import json
import os

import pytest

from calibrant import files
from calibrant.errors import InvalidInput, OutputError
from calibrant.files import (
    atomic_stream,
    atomic_write,
    check_format,
    parse_json,
    read_json,
    read_toml,
    write_json,
    write_text,
    write_with_digest,
)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_full_disk_is_one_clear_line(tmp_path):
    with pytest.raises(OutputError, match="disk is full"), atomic_write(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_nan_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_what_is_no_path_is_refused():
    for call in (lambda: read_json(None), lambda: write_json(3, {})):
        with pytest.raises(InvalidInput, match=r"path must be a path, as text or pathlib\.Path, got (NoneType|int)\."):
            call()


DAMAGED_JSON = {
    "half": b"{",
    "nothing": b"",
    "another encoding": b'"\xff"',
    "a code point beyond Unicode": b'"\xf4\x90\x80\x80"',
    "half a character": b'{"a": "\\ud800"}',
    "half a character in a name": b'{"\\udfff": 1}',
    "nested too deep for Python": b"[" * 100_000,
    "objects nested too deep for Python": b'{"a":' * 100_000,
    "nested too deep for us": b"[" * 65 + b"]" * 65,
    "a number of 5,000 digits": b"1" * 5000,
    "a number of 50 digits": b"1" * 50,
    "a number beyond floating point": b"1e400",
    "not a number": b"[NaN]",
    "infinity": b"-Infinity",
    "a name twice": b'{"a": 1, "b": {"c": 1, "c": 1}}',
    "too many objects": b"[" + b"{}," * 500_000 + b"{}]",
}


@pytest.mark.parametrize("content", DAMAGED_JSON.values(), ids=DAMAGED_JSON)
def test_json_that_is_none_of_ours_is_one_line(tmp_path, content):
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"damaged\.json must be a JSON file, got something else") as caught:
        read_json(path)
    assert len(str(caught.value)) < 300 + len(str(path))


DAMAGED_TOML = {
    "no value": b"a",
    "another encoding": b"a = '\xff'",
    "a code point beyond Unicode": b'a = "\\U00110000"',
    "half a character": b'a = "\\ud800"',
    "a name twice": b"a = 1\na = 2",
    "a number of 5,000 digits": b"a = " + b"1" * 5000,
    "a number of 50 digits": b"a = " + b"1" * 50,
    "infinity": b"a = inf",
    "arrays nested too deep": b"a = " + b"[" * 100_000,
    "tables nested too deep": b"a = " + b"{a = " * 100_000,
    # tomllib would take 40 GB for this key.
    "a key with too many parts": b".".join([b"a"] * 100_000) + b" = 1",
    "a quoted key with too many parts": b"['b'. " + b" . ".join([b'"a"'] * 100_000) + b"]",
}


@pytest.mark.parametrize("content", DAMAGED_TOML.values(), ids=DAMAGED_TOML)
def test_toml_that_is_none_of_ours_is_one_line(tmp_path, content):
    path = tmp_path / "damaged.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"recipe .*damaged\.toml must be TOML, got something else") as caught:
        read_toml(path, "recipe")
    assert len(str(caught.value)) < 300 + len(str(path))


def test_values_at_the_limits_are_read(tmp_path):
    deep = "[" * 63 + "1" + "]" * 63
    for text in (deep, str(2**128), '"\\ud83d\\ude00"', "[1e308, -0.0]", '{"a": 1, "b": {"a": 1}}'):
        assert parse_json(text, "here") == json.loads(text)
    path = tmp_path / "recipe.toml"
    path.write_text(f"{'.'.join(['a'] * 62)} = [{', '.join(['0.5'] * 200)}]\n")
    assert read_toml(path, "recipe")


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    path = tmp_path / "large.json"
    path.write_text(json.dumps("a" * 998))
    assert read_json(path) == "a" * 998
    for text in (json.dumps("a" * 999), json.dumps("é" * 200, ensure_ascii=False)):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput, match="a larger file"):
            read_json(path)


def test_what_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(InvalidInput, match="could not be read again"):
        write_with_digest(tmp_path / "large.json", {"a": "b" * 1000})
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match="must be a file"):
            read_json(path)
    with pytest.raises(InvalidInput, match="does not exist"):
        read_toml(tmp_path / "missing", "recipe")


def test_a_digest_vouches_for_the_members_in_any_order(tmp_path):
    path = tmp_path / "thing.json"
    about = {"what": "thing", "name": "a-thing", "version": 1, "where": "here"}
    write_with_digest(path, {"format": "a-thing", "version": 1, "a": [0.1], "b": "x"})
    content = read_json(path)
    assert check_format(content, **about) == ({"a": [0.1], "b": "x"}, True)
    assert check_format(dict(reversed(content.items())), **about)[1]
    with pytest.raises(InvalidInput, match="here must be an undamaged thing, got one that was changed"):
        check_format(content | {"a": [0.2]}, **about)
    with pytest.raises(InvalidInput, match="undamaged"):
        check_format(content | {"sha256": None}, **about)
    del content["sha256"]
    assert check_format(content, **about) == ({"a": [0.1], "b": "x"}, False)


def test_a_stream_appears_under_its_name_with_ordinary_permissions(tmp_path):
    write_text(tmp_path / "plain.txt", "x")
    with atomic_stream(tmp_path / "new" / "out.txt") as handle:
        handle.write(b"all")
        assert not list((tmp_path / "new").iterdir())
    assert (tmp_path / "new" / "out.txt").read_bytes() == b"all"
    assert (tmp_path / "new" / "out.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


@pytest.mark.parametrize("missing", ["O_TMPFILE", "link"])
def test_a_stream_is_written_where_files_without_names_are_not_known(tmp_path, monkeypatch, missing):
    def refuse(*_, **__):
        raise OSError(errno.ENOTSUP, "no")

    monkeypatch.delattr(os, missing) if missing.isupper() else monkeypatch.setattr(os, missing, refuse)
    with atomic_stream(tmp_path / "out.txt") as handle:
        handle.write(b"all")
    assert (tmp_path / "out.txt").read_bytes() == b"all"
    with pytest.raises(KeyError), atomic_stream(tmp_path / "out.txt") as handle:
        handle.write(b"half")
        raise KeyError
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.txt", b"all")]
