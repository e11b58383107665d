import socket
import sys
import threading

import pytest

from calibrant.errors import InvalidInput
from calibrant.executing import make_executor


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


def test_another_service_at_the_address_is_told_apart():
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(InvalidInput, match=f"got another service at {address}"),
            make_executor("ray", address=address),
        ):
            pass


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'calibrant\[ray\]'"), make_executor("ray"):
        pass
