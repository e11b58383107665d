import socket
import sys
import threading
from contextlib import nullcontext

import pytest

from calibrant.errors import InvalidInput
from calibrant.scale import make_executor
from calibrant.scale.answers import check_answers


def test_local_is_this_machine():
    with make_executor() as executor:
        assert executor is None


@pytest.mark.parametrize(
    ("name", "address", "fault"),
    [
        ("slurm", None, "executor must be local or ray, got 'slurm'"),
        ("local", "auto", "address must be left out for the local executor"),
        ("ray", "nowhere", "address must be HOST:PORT or auto, got 'nowhere'"),
        ("ray", "127.0.0.1:1", "address must be that of a running Ray cluster, got no answer from 127.0.0.1:1"),
        ("ray", "ray://127.0.0.1:1", "address must be HOST:PORT or auto"),
        ("ray", "127.0.0.1:99999", "got no answer"),
    ],
)
def test_a_wrong_place_is_one_line(name, address, fault):
    if name == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(InvalidInput, match=fault.replace("(", r"\(")), make_executor(name, address=address):
        pass


SETTINGS, HEADERS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\x01\x04\x00\x00\x00\x01"
TOKEN = b"\x88\x40\x0ccontent-type\x10application/grpc\x00\x0bgrpc-status\x0216"


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (b"", "got another service at"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "got another service at"),
        (SETTINGS + b"\x00\x00\x01" + HEADERS + b"\x8d", "got another service at"),  # 404
        (SETTINGS + b"\x00\x00\x02" + HEADERS + b"\x3f\x8d", "got another service at"),
        (SETTINGS + b"\x00\x00\x05" + HEADERS + b"\x08\x03502", "got another service at"),
        (SETTINGS + bytes([0, 0, len(TOKEN)]) + HEADERS + TOKEN, r"asks for a token\. Set RAY_AUTH_MODE=token"),
        (SETTINGS + b"\x00\x00\x01" + HEADERS + b"\x88", None),
        (SETTINGS, None),  # nothing more before the connection ends: it may be Ray
    ],
)
def test_another_service_at_the_address_is_told_apart(said, fault, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=fault) if fault else nullcontext():
            check_answers(place)


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'calibrant\[ray\]'"), make_executor("ray"):
        pass
