import hashlib
import http.server
import json
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE, OfficialFile


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A data folder of our own, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def put(folder, monkeypatch):
    """A small Mendeley set as .npz; the catalogue is told its numbers."""

    def write(train=4):
        monkeypatch.setitem(CATALOGUE, "mendeley-v2", replace(CATALOGUE["mendeley-v2"], train=4, test=2))
        images = {"x_train": np.zeros((train, 8, 8), np.uint8), "x_test": np.zeros((2, 8, 8), np.uint8)}
        np.savez(folder / "mendeley-v2.npz", y_train=np.arange(train) % 2, y_test=[0, 1], **images)

    return write


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A real HTTP server on a folder: (address, folder)."""
    monkeypatch.setenv("no_proxy", "*")
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=served))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", served
    server.shutdown()
    thread.join()
    server.server_close()


def test_list_names_every_set_and_where_it_lies(calibrant, put, folder):
    put()
    code, out, _ = calibrant("data", "list")
    assert code == 0
    for name, entry in CATALOGUE.items():
        assert name in out
        assert entry.licence in " ".join(out.split())
    assert str(folder / "mendeley-v2.npz") in out
    assert "170 MB to fetch" in out


def test_list_for_machines(calibrant, put, folder):
    put()
    code, out, _ = calibrant("data", "list", "--json")
    assert code == 0
    content = json.loads(out)
    rows = {row["name"]: row for row in content["sets"]}
    assert set(rows) == set(CATALOGUE)
    assert content["folders"][0] == str(folder)
    assert rows["mendeley-v2"]["found"] == str(folder / "mendeley-v2.npz")
    assert rows["cifar10"]["found"] is None
    assert rows["cifar10"]["download_bytes"] == 170_052_171
    digits = load_dataset("digits")
    found = rows["digits"]["train"], rows["digits"]["test"], rows["digits"]["classes"]
    assert found == (len(digits.train), len(digits.test), digits.n_classes)


def test_check_says_what_was_compared(calibrant, put, folder):
    put()
    code, out, _ = calibrant("data", "check", "mendeley-v2", "--json")
    assert code == 0
    assert json.loads(out) == {
        "name": "mendeley-v2", "origin": str(folder / "mendeley-v2.npz"), "train": 4, "test": 2, "classes": 2,
        "image_shape": [1, 8, 8], "verified": "number of images",
        "images_per_class": {"NORMAL": [2, 1], "PNEUMONIA": [2, 1]}, "unreadable": [], "problem": None,
    }  # fmt: skip
    code, out, _ = calibrant("data", "check", "digits")
    assert code == 0
    assert "train: 1198\n" in out
    assert out.count("\nclass ") == 10


def test_check_names_every_picture_that_cannot_be_read(calibrant, tmp_path):
    for path in ("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png"):
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "mine" / path)
    (tmp_path / "mine/a/2.png").write_bytes(b"no picture")
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(tmp_path / "mine/b/2.png")
    code, out, err = calibrant("data", "check", f"folder:{tmp_path / 'mine'}")
    assert code == 1
    assert "class a: 2 to train on, 1 to test on\nclass b: 1 to train on, 1 to test on\n" in out
    first, second = out.splitlines()[-2:]
    assert first.startswith(f"{tmp_path}/mine/a/2.png cannot be read as an image")
    assert second.startswith(f"{tmp_path}/mine/b/2.png must have 8 bits per channel")
    assert err == f"calibrant: 2 of 5 pictures of {tmp_path / 'mine'} cannot be read\n"
    code, out, _ = calibrant("data", "check", f"folder:{tmp_path / 'mine'}", "--json")
    content = json.loads(out)
    assert (code, content["image_shape"], len(content["unreadable"])) == (1, None, 2)


def test_check_reads_all_pictures_of_a_folder_that_memory_does_not_hold(calibrant, tmp_path, monkeypatch):
    place = tmp_path / "mine"
    for name in ("a", "b"):
        (place / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.zeros((4, 5), np.uint8)).save(place / name / f"{number}.png")
    for room in ("pictures", "load"):
        monkeypatch.setattr(f"calibrant.training.data.{room}.pixel_memory", lambda: 100)
    monkeypatch.setattr("calibrant.training.data.folder._SAMPLED", 1)
    code, out, err = calibrant("data", "check", f"folder:{place}")
    assert (code, err) == (0, "")
    assert "image shape: [1, 4, 5]\n" in out
    last = load_dataset(f"folder:{place}", data_path="stream").train.ids[-1]  # not in the sample
    (place / last).write_bytes(b"no picture")
    code, out, err = calibrant("data", "check", f"folder:{place}")
    assert (code, out.splitlines()[-1].split()[0]) == (1, f"{place / last}")
    assert err == f"calibrant: 1 of 6 pictures of {place} cannot be read\n"


def test_check_of_different_sizes_lists_nothing(calibrant, tmp_path):
    for path, side in (("a/1.png", 4), ("a/2.png", 5), ("b/1.png", 6), ("b/2.png", 7)):
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((side, side), np.uint8)).save(tmp_path / "mine" / path)
    code, out, err = calibrant("data", "check", f"folder:{tmp_path / 'mine'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Add ?size=64" in err


def test_check_of_a_set_that_does_not_fit_is_exit_code_1(calibrant, put):
    put(train=6)
    code, out, err = calibrant("data", "check", "mendeley-v2")
    assert (code, out) == (1, "")
    assert "got 6 and 2" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["svhn", "nonsense", "arrays:none.npz", "folder:none"])
def test_check_of_what_is_not_there_is_exit_code_2(calibrant, name):
    code, out, err = calibrant("data", "check", name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_fetch_from_a_mirror_checks_and_finds_it_again(calibrant, mirror, folder, monkeypatch):
    address, served = mirror
    content = b"some bytes" * 1000
    (served / "ChestXRay2017.zip").write_bytes(content)
    digest = f"md5:{hashlib.md5(content).hexdigest()}"
    file = OfficialFile("ChestXRay2017.zip", len(content), digest, "http://nowhere.invalid/x")
    monkeypatch.setitem(CATALOGUE, "mendeley-v2", replace(CATALOGUE["mendeley-v2"], files=(file,)))
    code, out, err = calibrant("data", "fetch", "mendeley-v2", "--source", address)
    path = folder / "mendeley-v2" / "ChestXRay2017.zip"
    assert (code, out) == (0, f"{path}\n")
    assert "CC BY 4.0" in err
    assert path.read_bytes() == content
    _, out, _ = calibrant("data", "list", "--json")
    assert {row["name"]: row["found"] for row in json.loads(out)["sets"]}["mendeley-v2"] == str(path)
    # Nothing is asked of the network for what is there and whole; damage is found.
    (served / "ChestXRay2017.zip").unlink()
    assert calibrant("data", "fetch", "mendeley-v2", "--source", address)[0] == 0
    path.write_bytes(content[:-1])
    code, _, err = calibrant("data", "fetch", "mendeley-v2", "--source", address)
    assert code == 2
    assert "MD5 must be" in err


def test_fetch_of_wrong_content_keeps_nothing(calibrant, mirror, tmp_path):
    address, served = mirror
    (served / "cifar-10-binary.tar.gz").write_bytes(b"x")
    code, out, err = calibrant("data", "fetch", "cifar10", "--source", address, "--data-dir", tmp_path / "new")
    assert (code, out) == (2, "")
    assert "must have 170052171 bytes, got 1." in err
    assert not list((tmp_path / "new" / "cifar10").iterdir())


def test_fetch_of_what_a_mirror_does_not_have(calibrant, mirror):
    code, _, err = calibrant("data", "fetch", "svhn", "--source", mirror[0])
    assert code == 2
    assert "404" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [("digits", "there already"), ("cifar", "Did you mean 'cifar10'?"), ("folder:x", "be a set to download")],
)
def test_fetch_of_other_names(calibrant, name, message):
    code, _, err = calibrant("data", "fetch", name)
    assert code == 2
    assert message in err
