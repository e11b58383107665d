"""A connection between the processes of a run which the operating system closes when one of them dies.

gloo does not always notice that a process is gone: where one is killed in the very moment of a broadcast, the others
wait for it for half an hour. So every process holds a connection to the first one, over which nothing is sent but a
word of farewell, or why the process ends. Where a connection ends without either, the process at its other end has
died.
"""

import itertools
import os
import secrets
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from torch.distributed.rendezvous import rendezvous

_FAREWELL = b"."
_REASON = b"!"
_LONGEST_REASON = 2000
# How long the rest of a reason may take, of which the first byte is here.
_READING = 1.0
# How long a process may take to arrive, which imports and nothing else takes before; torch's own limit is 30 minutes.
_MEETING = timedelta(minutes=10)
# The processes have just met, and connect at once.
_PATIENCE = 60.0
_TOKEN_BYTES = 16
# A program may train more than once; its processes count alike.
_numbers = itertools.count()


class Reason(NamedTuple):
    """Why a process ended, in its own words."""

    rank: int
    words: str


class Lifeline:
    """Waits for all processes of the run, and connects them to the first.

    Args:
        rank: The number of this process.
        world_size: How many processes there are.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun listens before it starts a process. Where it was killed since, before the watch could know it for
            # the parent, torch would knock for as long as a meeting may take.
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), _PATIENCE).close()
        # The same meeting that Fabric calls again: one process listens at MASTER_ADDR, and all share what is told it.
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=_MEETING))
        self._rank = rank
        key = self._key = f"calibrant/lifeline/{next(_numbers)}"
        self._lock = threading.Lock()
        self._broken = False
        self._reason: Reason | None = None
        # Held because the store ends with the last reference to it, and the other processes may not have read it yet.
        self._store = store
        if rank == 0:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            with socket.create_server(("", 0), family=family, backlog=world_size, dualstack_ipv6=both) as server:
                token = secrets.token_bytes(_TOKEN_BYTES)
                store.set(key, token + str(server.getsockname()[1]).encode())
                self._peers = _accepted(server, token, world_size - 1)
        else:
            told = store.get(key)
            address = os.environ["MASTER_ADDR"], int(told[_TOKEN_BYTES:])
            self._peers = [socket.create_connection(address, _PATIENCE)]
            self._peers[0].sendall(told[:_TOKEN_BYTES])
        for peer in self._peers:
            peer.setblocking(False)

    def shared(self, text: str) -> str:
        """What the first process calls this with, in every process."""
        key = f"{self._key}/shared"
        if self._rank == 0:
            self._store.set(key, text)
            return text
        return str(self._store.get(key).decode())

    def broken(self) -> bool:
        """Whether a process at the other end has died or said why it ends."""
        with self._lock:
            for peer in () if self._broken else tuple(self._peers):
                try:
                    said = peer.recv(1)
                except BlockingIOError:
                    continue
                except OSError:
                    said = b""
                if said == _REASON:
                    self._reason = _read_reason(peer)
                if said != _FAREWELL:
                    self._broken = True
                    break
                self._peers.remove(peer)
                peer.close()
            return self._broken

    def reason(self) -> Reason | None:
        """Why the process at the other end has ended; None where it has not, or did not say it."""
        self.broken()
        return self._reason

    def tell(self, reason: Reason) -> bool:
        """Say why this process ends; whether any process could be told."""
        told = False
        for peer in self._peers:
            with suppress(OSError):
                peer.sendall(_REASON + f"{reason.rank} {reason.words}".encode(errors="replace")[:_LONGEST_REASON])
                told = True
        return told

    def close(self, *, farewell: bool) -> None:
        """Let go, with a word of farewell where the run is complete for this process."""
        for peer in self._peers:
            with suppress(OSError):
                if farewell:
                    peer.send(_FAREWELL)
                peer.close()


def _read_reason(peer: socket.socket) -> Reason | None:
    peer.settimeout(_READING)
    said = b""
    with suppress(OSError):
        while len(said) < _LONGEST_REASON and (more := peer.recv(_LONGEST_REASON)):
            said += more
    rank, _, words = said.decode(errors="replace").partition(" ")
    return Reason(int(rank), words) if rank.isdecimal() else None


def _accepted(server: socket.socket, token: bytes, n: int) -> list[socket.socket]:
    """The connections of `n` processes of this run; a stranger does not know the token."""
    peers: list[socket.socket] = []
    server.settimeout(_PATIENCE)
    while len(peers) < n:
        peer, _ = server.accept()
        peer.settimeout(_PATIENCE)
        said = b""
        with suppress(OSError):
            said = peer.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
        if secrets.compare_digest(said, token):
            peers.append(peer)
        else:
            peer.close()
    return peers
