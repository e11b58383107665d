"""Uses a generated client of the service: decides, labels, and meets every error.

`test_openapi_client.py` runs it in the environment of the generator. It prints a line of JSON per call: what was
called, the status, the type of the parsed answer, and its `error`.
"""

import json
import socket
import sys
import time
from pathlib import Path

import httpx
from calibrant_client import AuthenticatedClient, Client
from calibrant_client.api.default import decide, find, health, label
from calibrant_client.models import DecideCasesBody, LabelLabelsBody

ADDRESS, TOKEN, LOG, ROWS = sys.argv[1:]
# --most-bytes of the service, which keeps eight bodies of that length at once.
MOST_BYTES = 300_000


def say(values):
    sys.stdout.write(f"{json.dumps(values)}\n")


def show(call, response):
    parsed = response.parsed
    say([call, int(response.status_code), type(parsed).__name__, getattr(parsed, "error", None)])


def client(*, token=TOKEN, headers=None, **more):
    return AuthenticatedClient(ADDRESS, token=token, headers=headers or {}, timeout=httpx.Timeout(90), httpx_args=more)


def cases(**body):
    return DecideCasesBody.from_dict(body)


def labels(**targets):
    return LabelLabelsBody.from_dict({"labels": targets})


class Slowly(httpx.HTTPTransport):
    """Sends the first bytes of a body and then waits."""

    def handle_request(self, request):
        content = request.read()

        def pieces():
            yield content[:10]
            time.sleep(25)
            yield content[10:]

        slow = httpx.Request(request.method, request.url, headers=request.headers, content=pieces())
        return super().handle_request(slow)


def as_text(request):
    request.headers["content-type"] = "text/plain"


def large_bodies(number):
    """Connections that each have sent nearly all of a large body."""
    address = httpx.URL(ADDRESS)
    head = "POST /decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {TOKEN}"
    opened = []
    for _ in range(number):
        connection = socket.create_connection((address.host, address.port))
        connection.sendall(f"{head}\r\nContent-Length: {MOST_BYTES}\r\n\r\n".encode() + b" " * (MOST_BYTES - 1))
        opened.append(connection)
    time.sleep(1)  # until the service has read them
    return opened


def main():
    rows = json.loads(Path(ROWS).read_text())
    ours = client()
    answer = decide.sync_detailed(client=ours, body=cases(inputs=rows, ids=["a", "b"]))
    show("decide", answer)
    say([type(each).__name__ for each in answer.parsed.decisions])
    show("label", label.sync_detailed(client=ours, body=labels(a=3)))
    show("find", find.sync_detailed("a", client=ours))
    show("health", health.sync_detailed(client=ours))
    foreign = client(headers={"Host": "evil.example"})
    show("another host", decide.sync_detailed(client=foreign, body=cases(inputs=rows)))
    show("no token", decide.sync_detailed(client=Client(ADDRESS), body=cases(inputs=rows)))
    page = client(headers={"Origin": "http://evil.example"})
    show("another site", decide.sync_detailed(client=page, body=cases(inputs=rows)))
    show("unknown id", label.sync_detailed(client=ours, body=labels(nobody=1)))
    show("an id again", decide.sync_detailed(client=ours, body=cases(inputs=rows, ids=["a", "c"])))
    show("another label", label.sync_detailed(client=ours, body=labels(a=4)))
    show("many cases", decide.sync_detailed(client=ours, body=cases(inputs=rows * 501)))
    text = client(event_hooks={"request": [as_text]})
    show("not JSON", decide.sync_detailed(client=text, body=cases(inputs=rows)))
    show("words", decide.sync_detailed(client=ours, body=cases(inputs="x")))
    opened = large_bodies(8)
    long_extras = [{"text": "x" * 280_000}, {}]
    show("too busy", decide.sync_detailed(client=client(), body=cases(inputs=rows, extras=long_extras)))
    for connection in opened:
        connection.close()
    show("too slow", decide.sync_detailed(client=client(transport=Slowly()), body=cases(inputs=rows)))
    Path(LOG).rename(f"{LOG}.moved")
    show("log moved", decide.sync_detailed(client=client(), body=cases(inputs=rows)))
    show("health without log", health.sync_detailed(client=client()))


if __name__ == "__main__":
    main()
