import hashlib
import http.server
import socket
import threading

import numpy as np
import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.training.data.public_sets import DownloadError, download

CONTENT = np.random.default_rng(0).bytes(700_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; its server says whether ranges are known, and after how many bytes each connection breaks."""

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if self.path != "/file":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + server.shift}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if server.announce:
            self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        stop = server.breaks.pop(0) if server.breaks else None
        self.wfile.write(CONTENT[start:][:stop])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.requests, made.breaks, made.ranges, made.announce, made.shift = [], [], True, True, 0
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}/file"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "new" / "file.bin"


def names(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_gets_a_file_and_reports_progress(server, target):
    seen = []
    download(server.url, target, size=len(CONTENT), digest=DIGEST, progress=lambda *both: seen.append(both))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names(target) == ["file.bin"]


def test_a_connection_that_breaks_is_taken_up_at_once(server, target):
    server.breaks = [300_000, 100_000]
    download(server.url, target, digest=DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=400000-"]


def test_one_that_keeps_breaking_keeps_its_part_and_the_next_call_goes_on(server, target):
    server.breaks = [200_000]
    with pytest.raises(DownloadError, match=r"broke after 200000 of 700000 bytes. Run the same command again"):
        download(server.url, target, digest=DIGEST, attempts=1)
    assert names(target) == ["file.bin.part"]
    download(server.url, target, digest=DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=200000-"]


@pytest.mark.parametrize(("ranges", "shift"), [(False, 0), (True, 5)])
def test_a_server_without_ranges_or_with_wrong_ones_starts_over(server, target, ranges, shift):
    server.ranges, server.shift, server.breaks = ranges, shift, [200_000]
    download(server.url, target, digest=DIGEST)
    assert target.read_bytes() == CONTENT


def test_without_an_announced_length_the_size_decides(server, target):
    server.announce, server.breaks = False, [200_000]
    download(server.url, target, size=len(CONTENT), digest=DIGEST)
    assert target.read_bytes() == CONTENT


def test_a_whole_part_is_only_checked_and_renamed(server, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT)
    download(server.url, target, size=len(CONTENT), digest=DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.requests == []


def test_a_part_that_is_too_long_is_replaced(server, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT + b"more")
    download(server.url, target, size=len(CONTENT), digest=DIGEST)
    assert target.read_bytes() == CONTENT


def test_a_wrong_digest_leaves_nothing(server, target):
    with pytest.raises(InvalidInput, match=f"MD5 must be {'0' * 32}, got {hashlib.md5(CONTENT).hexdigest()}"):
        download(server.url, target, digest=f"md5:{'0' * 32}")
    assert names(target) == []


def test_a_wrong_size_leaves_nothing(server, target):
    with pytest.raises(InvalidInput, match="must have 5 bytes, got 700000"):
        download(server.url, target, size=5)
    assert names(target) == []


def test_a_missing_file_is_asked_for_once(server, target):
    with pytest.raises(DownloadError, match="the server answers 404 Not Found"):
        download(f"{server.url}-not", target)
    assert len(server.requests) == 1
    assert names(target) == []


def test_nobody_there(target, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadError, match=r"cannot be reached .*Without a network"):
        download(f"http://127.0.0.1:{port}/file", target)
    assert names(target) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "x"])
def test_only_http(target, url):
    with pytest.raises(InvalidInput, match="url must start with http"):
        download(url, target)
    assert not target.parent.exists()


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*/file/x"):
        download(server.url, tmp_path / "file" / "x", digest=DIGEST)
