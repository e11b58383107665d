"""Whether Ray answers at an address, found out in seconds: `ray.init` takes minutes to give up."""

import os
import socket
from contextlib import suppress

from calibrant.errors import invalid

_SECONDS = 5.0
# HTTP/2, which Ray's gRPC speaks. A frame is its length in three bytes, its kind, flags, and the number of a stream.
_SETTINGS, _HEADERS = 4, 1
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_CALL = b"/ray.rpc.NodeInfoGcsService/GetClusterId"
_MOST_FRAMES = 20
# gRPC answers every call with the HTTP status 200, also one that it does not know. In the headers of an answer 0x89 to
# 0x8E stand for 204 to 500, and 0x08 or 0x48 are followed by any other status; changes of the table may come first.
_OTHER_STATUS = {bytes([byte]) for byte in (*range(0x89, 0x8F), 0x08, 0x48)}
_TABLE_CHANGES = bytes(range(0x20, 0x40))
_WANTS_TOKEN = b"grpc-status\x0216"


def check_answers(address: str) -> None:
    """Refuse an address where nobody answers, or where the answer is not that of Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise invalid("address", "be HOST:PORT or auto", repr(address))
    way_out = "Look whether the cluster runs: ray status"
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS) as line:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # the greeting would have to be encrypted; Ray itself finds out then
            answer = _ask(line)
    except (OSError, OverflowError) as error:
        found = f"no answer from {address} ({error})"
        raise invalid("address", "be that of a running Ray cluster", found, way_out) from error
    if answer is None or answer.lstrip(_TABLE_CHANGES)[:1] in _OTHER_STATUS:
        raise invalid("address", "be that of a running Ray cluster", f"another service at {address}", way_out)
    if _WANTS_TOKEN in answer and os.environ.get("RAY_AUTH_MODE") != "token":
        way_out = "Set RAY_AUTH_MODE=token, and have the cluster's token on this machine: ray get-auth-token"
        raise invalid(
            "address", "be that of a Ray cluster that lets this command in", "one that asks for a token", way_out
        )


def _ask(line: socket.socket) -> bytes | None:
    """The headers of the answer to a call, empty where none came in time; None where the service speaks no HTTP/2."""
    # Names and values from the static table of HPACK: POST, http, the path, the host, the type of the content.
    block = b"\x83\x86" + b"\x04" + _text(_CALL) + b"\x01" + _text(b"calibrant") + b"\x0f\x10"
    block += _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers")
    line.sendall(_GREETING)
    kind, _ = _frame(line)
    if kind != _SETTINGS:
        return None
    with suppress(OSError):
        line.sendall(_header(len(block), _HEADERS, 4) + block + _header(5, 0, 1) + bytes(5))
        for _ in range(_MOST_FRAMES):
            kind, content = _frame(line)
            if kind == _HEADERS:
                return content
    return b""


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _header(length: int, kind: int, flags: int) -> bytes:
    return length.to_bytes(3, "big") + bytes([kind, flags]) + b"\x00\x00\x00\x01"


def _frame(line: socket.socket) -> tuple[int, bytes]:
    """Kind and content of the next frame; kind -1 where the connection ends or the answer is no frame."""
    head = _read(line, 9)
    if len(head) < 9:
        return -1, b""
    length = int.from_bytes(head[:3], "big")
    return (head[3], _read(line, length)) if length <= 2**14 else (-1, b"")


def _read(line: socket.socket, wanted: int) -> bytes:
    found = b""
    while len(found) < wanted:
        more = line.recv(wanted - len(found))
        if not more:
            break
        found += more
    return found
