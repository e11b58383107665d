"""uvicorn with limits: how many connections there may be, and how long each may take to send a request."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from calibrant.deployment.service import BODY_S

MOST_CONNECTIONS = 500
# A connection that is idle, or whose headers are not complete, is closed after this time. The service answers a body
# that is slow after `BODY_S`, and its connection is closed only if that did not help.
PATIENCE_S = 30
# What is left to a request that is not complete when the service is stopped.
LAST_S = 3
# Connections that are accepted before any of them is looked at. Twice as many may be open beyond the most, because they
# are closed a moment later; all of them fit into the 1,024 files that a process may open by default.
BACKLOG = 128
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: 74\r\n\r\n{"error":"busy","detail":"All connections are in use. Try again shortly."}'
)


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # which class it is depends on what is installed
    """One connection of the service.

    If there are too many, the one that has waited longest without a complete request is closed for the new one:
    a client that opens connections and sends nothing keeps nobody else out. If all of them wait for an answer, the new
    one gets 503.
    """

    def connection_made(self, transport: Any) -> None:
        """Count the connection, and close another or this one if there are too many."""
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        self.patience = self.loop.call_later(PATIENCE_S, self._lose_patience)
        if len(self.connections) <= MOST_CONNECTIONS:
            return
        waiting = [each for each in self.connections if each is not self and each.waits_for_request()]
        if waiting:
            longest = min(waiting, key=lambda each: each.waits_since)
            longest.close("too many connections: one that sent no complete request was closed.")
        else:
            transport.write(_BUSY)
            self.close("too many connections: a new one was refused.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.patience.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def waits_for_request(self) -> bool:
        """Whether no request is complete: nothing or a part of it was sent."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def close(self, why: str) -> None:
        """Close the connection, and print one line."""
        self.connections.discard(self)
        self.transport.close()
        client = self.client or ("unknown",)
        sys.stderr.write(f"calibrant: {client[0]}: {why}\n")

    def shutdown(self) -> None:
        """Stop: a request that is complete is answered, one that is still arriving has a few seconds left."""
        super().shutdown()
        self.loop.call_later(LAST_S, self._close_if_waiting)

    def _close_if_waiting(self) -> None:
        if self.waits_for_request():
            self.transport.close()

    def _lose_patience(self) -> None:
        patience = PATIENCE_S
        idle = self.cycle is None or self.cycle.response_complete
        if not idle:
            patience += BODY_S
        left = self.waits_since + patience - self.loop.time()
        if left <= 0 and idle:
            self.transport.close()  # nobody has to know about it
        elif left <= 0 and self.waits_for_request():
            self.close(f"a request was not complete after {patience} s.")
        else:
            self.patience = self.loop.call_later(max(left, 1.0), self._lose_patience)


class Server(uvicorn.Server):
    """A server that ends normally after a graceful stop: uvicorn's raises the signal again, as after a crash."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
