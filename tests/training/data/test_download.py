import hashlib
import http.server
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.training.data import fetch_dataset
from calibrant.training.data.public_sets import CATALOGUE, OfficialFile

CONTENT = np.random.default_rng(0).bytes(700_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; its server says after how many bytes a connection breaks."""

    def do_GET(self):
        if not self.path.endswith("/file.bin"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: self.server.breaks_after])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.breaks_after = None
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def published(monkeypatch):
    """Lets a set consist of one file."""

    def publish(url, *, size=700_000, digest=DIGEST):
        entry = replace(CATALOGUE["svhn"], files=(OfficialFile("file.bin", size, digest, url),))
        monkeypatch.setitem(CATALOGUE, "svhn", entry)

    return publish


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_gets_a_file_from_its_publisher_or_a_mirror(server, published, tmp_path):
    published(f"{server.url}/file.bin")
    (path,) = fetch_dataset("svhn", data_dir=tmp_path / "a")
    assert path.read_bytes() == CONTENT
    published("http://nowhere.invalid/file.bin")
    fetch_dataset("svhn", data_dir=tmp_path / "b", mirror=f"{server.url}/copies/")
    assert left_in(tmp_path) == ["file.bin", "file.bin"]


def test_a_connection_that_breaks_leaves_nothing(server, published, tmp_path):
    server.breaks_after = 300_000
    published(f"{server.url}/file.bin")
    with pytest.raises(InvalidInput):
        fetch_dataset("svhn", data_dir=tmp_path)
    assert left_in(tmp_path) == []


def test_a_wrong_size_and_a_wrong_digest_leave_nothing(server, published, tmp_path):
    published(f"{server.url}/file.bin", size=5)
    with pytest.raises(InvalidInput, match="must have 5 bytes, got 700000"):
        fetch_dataset("svhn", data_dir=tmp_path)
    published(f"{server.url}/file.bin", digest=f"md5:{'0' * 32}")
    with pytest.raises(InvalidInput, match=f"file.bin: MD5 must be {'0' * 32}"):
        fetch_dataset("svhn", data_dir=tmp_path)
    assert left_in(tmp_path) == []


def test_a_file_or_a_server_that_is_not_there(server, published, tmp_path):
    published(f"{server.url}/other.bin")
    with pytest.raises(InvalidInput, match="404"):
        fetch_dataset("svhn", data_dir=tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    published(f"http://127.0.0.1:{port}/file.bin")
    with pytest.raises(InvalidInput, match=r"cannot be downloaded .* put it into the data folder"):
        fetch_dataset("svhn", data_dir=tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "x"])
def test_only_http(published, tmp_path, url):
    published(url)
    with pytest.raises(InvalidInput, match="url must start with http"):
        fetch_dataset("svhn", data_dir=tmp_path)


def test_a_folder_that_cannot_be_made(server, published, tmp_path):
    (tmp_path / "file").write_text("")
    published(f"{server.url}/file.bin")
    with pytest.raises(OutputError):
        fetch_dataset("svhn", data_dir=tmp_path / "file")
