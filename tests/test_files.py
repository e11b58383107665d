import errno
import os

import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.files import atomic_write, read_json, write_json


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


@pytest.mark.parametrize("content", ["{", ""])
def test_damaged_json_names_the_file(tmp_path, content):
    path = tmp_path / "damaged.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=r"damaged\.json must be a JSON file"):
        read_json(path)
