"""Attack the service and its log, and count what breaks: bad requests, damaged logs, kills under load.

    python scripts/hostile.py [--requests 20000] [--logs 1000] [--kills 200] [--seed 0]

The rules. Requests: every answer is JSON with `error` and `detail` and a status of the documented ones; nothing is
logged that was not answered with 200; no traceback; memory stays below 1 GB; meanwhile another client, which asks for
one decision after the other, neither is refused nor waits for more than a second. It has a process of its own, and so
has a probe that commits to another SQLite file on the same disk: its slowest commit tells how much of a wait is due to
the machine. Logs: a damaged log is read as if it were whole, or refused in one line. Kills: no answered decision or
label is lost.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_serve import export, kill_services, labelled_log

from calibrant import samples
from calibrant.deployment import DecisionLog, Stream, watch
from calibrant.errors import CalibrantError

STATUSES = {400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 503}
MOST_MEMORY_KB = 1_000_000
LONGEST_S = 1.0
ATTACKERS = 4
ROW = [0.0] * 10
# Values that once made some service fail.
STRANGE = [
    None, True, False, 0, -1, 1e308, 10**40, 0.1, "", "x", "=1+1", "\x00", "\ud800", "\u202e", "a" * 300, "x" * 20_000,
    [], {}, [[]], [[[]]], [None], [True] * 10, ["0"] * 10, [1e999], {"a": {"b": []}}, "\N{SNOWMAN}" * 50,
]  # fmt: skip


class Victim:
    """A service in a process of its own."""

    def __init__(self, folder: Path) -> None:
        export(folder / "model.onnx")
        self.log = folder / "log.db"
        self.err = folder / "err.txt"
        command = ["-m", "calibrant", "serve", str(folder / "model.onnx"), "--port", "0", "--log", str(self.log)]
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=err, text=True, bufsize=1
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def memory(self) -> int:
        """The most memory that it ever had, in kB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]


# -- bad requests -----------------------------------------------------------------------------------------------------


def strange_json(draw: random.Random) -> bytes:
    """A body in which something is wrong."""
    body: object = {"inputs": [ROW], "ids": [f"bad-{draw.random()}"], "extras": [{"site": "north"}]}
    assert isinstance(body, dict)
    name = draw.choice(["inputs", "ids", "extras", "labels", "more", ""])
    body[name] = draw.choice(STRANGE)
    if draw.random() < 0.3:
        body["inputs"] = [[draw.choice(STRANGE)] * draw.choice([1, 9, 10, 11])] * draw.choice([1, 2, 1001])
    if name not in ("more", "", "labels"):
        # Also without the fault it must be refused, so that every 200 is a finding.
        body["unknown"] = 1
    return json.dumps(body).encode("utf-8", "surrogatepass")


def broken_bytes(draw: random.Random) -> bytes:
    """A body that is no JSON."""
    good = json.dumps({"inputs": [ROW] * 3}).encode()
    kind = draw.randrange(6)
    if kind == 0:
        return good[: draw.randrange(len(good))]
    if kind == 1:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(1, 400)))
    if kind == 2:
        return b"[" * draw.choice([10, 100, 100_000])
    if kind == 3:
        return b'{"inputs": 1, "inputs": [[0]]}'
    if kind == 4:
        return b'{"inputs": [[NaN, Infinity, -Infinity]]}'
    place = draw.randrange(len(good))
    return good[:place] + b"\xff" + good[place:]


def bad_headers(draw: random.Random) -> dict[str, str]:
    """Headers of a request that must be refused."""
    return draw.choice(
        [
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/json", "Host": "evil.example"},
            {"Content-Type": "application/json", "Origin": "http://evil.example"},
            {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
            {"Content-Type": "application/json", "Origin": "null"},
        ]
    )


Request = tuple[str, str, bytes, dict[str, str]]
ODD_PATHS = [
    ("GET", "/nothing"),
    ("DELETE", "/decisions"),
    ("GET", "/decisions/none"),
    ("PUT", "/labels"),
    ("GET", "/decisions/%00%ff"),
    ("GET", "/" + "a" * 3000),
]


def bad_request(draw: random.Random) -> Request:
    """Method, path, body and headers."""
    kind = draw.randrange(10)
    headers = {"Content-Type": "application/json"}
    method, path, body = "POST", draw.choice(["/decisions", "/labels"]), b""
    if kind < 4:
        body = strange_json(draw)
    elif kind < 6:
        body = broken_bytes(draw)
    elif kind == 6:
        headers, body = bad_headers(draw), json.dumps({"inputs": [ROW]}).encode()
    elif kind == 7:
        method, path = draw.choice(ODD_PATHS)
    elif kind == 8:
        name, label = draw.choice(["nobody", "", "x" * 300]), draw.choice([0, 99, -1, "kat"])
        path, body = "/labels", json.dumps({"labels": {name: label}}).encode()
    elif draw.random() < 0.02:
        body = b'{"inputs": [' + draw.choice([b"[0.0],", b"0,", b'"x",']) * 2_500_000 + b"[0]]}"
    return method, path, body, headers


def over_http(draw: random.Random, connection: http.client.HTTPConnection) -> str:
    """Send a whole request that is bad; returns what is wrong with its answer."""
    method, path, body, headers = bad_request(draw)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    if answer.getheader("connection") == "close":
        connection.close()
    if answer.status not in STATUSES:
        return f"status {answer.status} for {method} {path} {body[:200]!r}: {content[:200]!r}"
    try:
        if set(json.loads(content)) != {"error", "detail"}:
            return f"not an error: {content[:200]!r}"
    except ValueError:
        return f"no JSON: {content[:200]!r}"
    return ""


def over_socket(draw: random.Random, port: int, held: list[socket.socket]) -> None:
    """Break the protocol, or leave in the middle."""
    head = b"POST /decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = json.dumps({"inputs": [ROW] * 50}).encode()
    pieces = [
        b"",
        b"\r\n" * 10,
        bytes(draw.randrange(256) for _ in range(draw.randrange(1, 200))),
        b"GET / HTTP/9.9\r\n\r\n",
        head[: draw.randrange(1, len(head))],
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body[: draw.randrange(len(body))],
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        head + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + body,
        head + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        head + b"Content-Length: 99999999999\r\n\r\n" + body,
        head + b"Content-Length: 2\r\n\r\n{}" * 5 + b"garbage",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    ]
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    with suppress(OSError):
        connection.sendall(draw.choice(pieces))
        if draw.random() < 0.2:
            connection.settimeout(0.1)
            connection.recv(100)
    held.append(connection)
    # Some stay open until there are many of them.
    if draw.random() < 0.5 or len(held) > 700:
        for _ in range(min(len(held), 3)):
            held.pop(draw.randrange(len(held))).close()


@dataclass
class Bystander:
    """Another client: asks for a decision every 20 ms, each with a new connection or a kept one."""

    port: int
    slowest: float = 0.0
    longest_refusal: float = 0.0
    decided: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def run(self, ends: Any) -> None:
        """Ask until the campaign ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        number = 0
        while not ends.wait(0.02):
            number += 1
            begun = time.monotonic()
            refused_at = self._ask(connection, f"good-{number}")
            now = time.monotonic()
            self.slowest = max(self.slowest, now - begun)
            self.longest_refusal = max(self.longest_refusal, now - (refused_at or now))
            if number % 10 == 0:
                connection.close()
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, name: str) -> float | None:
        """Ask until it is decided; returns when it was refused first."""
        refused_at = None
        body = json.dumps({"inputs": [ROW], "ids": [name]})
        while True:
            try:
                connection.request("POST", "/decisions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.decided.append(name)
                    return refused_at
                self.refused[str(answer.status)] += 1
                if answer.status == 409:  # it was decided, and the answer was lost
                    return refused_at
            except (OSError, http.client.HTTPException) as error:
                self.refused[type(error).__name__] += 1
                connection.close()
            refused_at = refused_at or time.monotonic()
            time.sleep(0.01)


def stand_by(port: int, ends: Any, results: Any) -> None:
    """The process of the other client."""
    bystander = Bystander(port)
    bystander.run(ends)
    results.put(bystander)


def probe(folder: Path, ends: Any, results: Any) -> None:
    """The process that commits a row every 20 ms to a file of its own, and finds the slowest commit."""
    slowest = 0.0
    with closing(sqlite3.connect(folder / "probe.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY)")
        while not ends.wait(0.02):
            begun = time.monotonic()
            connection.execute("INSERT INTO rows DEFAULT VALUES")
            slowest = max(slowest, time.monotonic() - begun)
    results.put(slowest)


class Attacker(threading.Thread):
    """Sends bad requests over one kept connection, and breaks the protocol over others."""

    def __init__(self, port: int, requests: int, seed: str) -> None:
        super().__init__()
        self.port = port
        self.requests = requests
        self.draw = random.Random(seed)
        self.sent = Counter[str]()
        self.wrong: list[str] = []

    def run(self) -> None:
        """Send everything."""
        held: list[socket.socket] = []
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            for _ in range(self.requests):
                if self.draw.random() < 0.25:
                    self.sent["sockets"] += 1
                    with suppress(OSError):
                        over_socket(self.draw, self.port, held)
                else:
                    self.sent["requests"] += 1
                    self._ask(connection)
        for each in held:
            each.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        try:
            fault = over_http(self.draw, connection)
        except (OSError, http.client.HTTPException) as error:
            # The service may close a connection whose body it does not read.
            self.sent[f"closed: {type(error).__name__}"] += 1
            connection.close()
            return
        if fault:
            self.wrong.append(fault)


def attack(folder: Path, requests: int, seed: int) -> list[str]:
    """Send bad requests; returns what went wrong."""
    victim = Victim(folder)
    processes = multiprocessing.get_context("spawn")
    ends, others = processes.Event(), []
    answers, commits = processes.Queue(), processes.Queue()
    for work, arguments in ((stand_by, (victim.port, ends, answers)), (probe, (folder, ends, commits))):
        others.append(processes.Process(target=work, args=arguments))
        others[-1].start()
    begun = time.monotonic()
    attackers = [Attacker(victim.port, requests // ATTACKERS, f"{seed}-{number}") for number in range(ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()
    seconds = time.monotonic() - begun
    ends.set()
    bystander, slowest_commit = answers.get(timeout=120), commits.get(timeout=120)
    for each in others:
        each.join()
    memory = victim.memory()
    stopping = time.monotonic()
    victim.process.terminate()
    code = victim.process.wait(timeout=120)
    said = victim.err.read_text()
    with DecisionLog(victim.log) as log:
        logged = {str(name) for block in log.decisions() for name in block.ids}
    sent = sum((attacker.sent for attacker in attackers), Counter[str]())
    print(f"bad requests: {dict(sent)} in {seconds:.0f} s; memory {memory / 1e3:.0f} MB")
    print(f"  the other client: {len(bystander.decided):,} decisions, slowest {bystander.slowest:.2f} s, "
          f"refusals {dict(bystander.refused)}, the longest {bystander.longest_refusal:.2f} s; "
          f"slowest commit of the probe {slowest_commit:.2f} s")  # fmt: skip
    print(f"  stop: exit code {code} after {time.monotonic() - stopping:.1f} s; {said.count(chr(10)):,} lines printed")
    rules = {
        f"it printed: {said[max(said.find('Traceback'), 0) :][:600]}": "Traceback" in said or "Error" in said,
        f"memory {memory} kB": memory > MOST_MEMORY_KB,
        f"the other client was refused for {bystander.longest_refusal:.2f} s": bystander.longest_refusal > LONGEST_S,
        f"the other client waited for {bystander.slowest:.2f} s": bystander.slowest > LONGEST_S + slowest_commit,
        f"exit code {code}": code != 0,
        "answered decisions are not in the log": bool(set(bystander.decided) - logged),
        # Whole requests of sockets that left are decided, under ids that the service made.
        "a refused request is in the log": any(name.startswith("bad") for name in logged),
    }
    wrong = [fault for attacker in attackers for fault in attacker.wrong]
    return wrong + [fault for fault, found in rules.items() if found]


# -- damaged logs -----------------------------------------------------------------------------------------------------


def damage(content: bytearray, draw: random.Random) -> None:
    """Change a database in one of several ways."""
    kind = draw.randrange(5)
    if kind == 0:
        del content[draw.randrange(len(content)) :]
    elif kind == 1:
        for _ in range(draw.choice([1, 10, 1000])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        start = draw.randrange(len(content) // 4096) * 4096
        content[start : start + 4096] = bytes(4096)
    elif kind == 3:
        start = draw.randrange(len(content))
        del content[start : start + draw.randrange(1, 5000)]
    else:
        start = draw.randrange(len(content))
        content[start : start + 100] = bytes(draw.randrange(256) for _ in range(100))


def change_rows(path: Path, draw: random.Random) -> None:
    """Change rows by SQL, as somebody who wants to hide something would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            draw.choice(
                [
                    "DELETE FROM calibrant_decisions WHERE sequence % 2",
                    "DELETE FROM calibrant_decisions WHERE sequence < 50",
                    "DELETE FROM calibrant_labels WHERE sequence > 3 AND sequence < 9",
                    "DELETE FROM calibrant_policies",
                    "UPDATE calibrant_decisions SET confidence = 'x'",
                    "UPDATE calibrant_decisions SET shortlist = '[1'",
                    "UPDATE calibrant_decisions SET extras = x'00ff'",
                    "UPDATE calibrant_decisions SET predicted = 1e300",
                    "UPDATE calibrant_policies SET content = '{}'",
                    "UPDATE calibrant_log SET n_classes = -1",
                    "UPDATE calibrant_log SET format = 99",
                    "UPDATE calibrant_labels SET target = 12345678901234567890",
                    "DROP TABLE calibrant_labels",
                    "DELETE FROM calibrant_log",
                ]
            )
        )


def damaged_logs(folder: Path, number: int, seed: int) -> list[str]:
    """Read damaged logs; returns what went wrong."""
    labelled_log(folder)
    good = (folder / "decisions.db").read_bytes()
    draw, outcomes, wrong = random.Random(seed), Counter[str](), []
    path = folder / "damaged.db"
    for at in range(number):
        content = bytearray(good)
        for each in folder.glob("damaged.db*"):
            each.unlink()
        if at % 5 == 4:
            path.write_bytes(good)
            with suppress(sqlite3.Error):
                change_rows(path, draw)
        else:
            damage(content, draw)
            path.write_bytes(content)
        outcome = read(lambda: watch(Stream.of_log(_opened(path))))
        outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("raised"):
            wrong.append(f"log {at}: {outcome}")
    print(f"damaged logs: {dict(outcomes)}")
    return wrong


def _opened(path: Path) -> DecisionLog:
    return DecisionLog(path)


def read(action: Callable[[], object]) -> str:
    """What became of an action: "fine", "refused: ..." in one line, or "raised: ..."."""
    try:
        action()
    except CalibrantError as error:
        text = str(error)
        if "\n" in text or len(text) > 600:
            return f"raised: a long message: {text[:100]}"
        return f"refused: {text}"
    except Exception as error:  # noqa: BLE001 (that is a finding)
        return f"raised: {type(error).__name__}: {error}"
    return "fine"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    samples.load("cifar10-resnet32-nll")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in ("requests", "logs", "kills")}
        for folder in folders.values():
            folder.mkdir()
        if arguments.logs:
            wrong += damaged_logs(folders["logs"], arguments.logs, arguments.seed)
        if arguments.requests:
            wrong += attack(folders["requests"], arguments.requests, arguments.seed)
        if arguments.kills:
            begun = time.monotonic()
            kills, found = kill_services(arguments.kills, folders["kills"], random.Random(arguments.seed))
            print(f"kills under load: {kills} in {time.monotonic() - begun:.0f} s")
            wrong += found
    for fault, times in Counter(wrong).most_common(20):
        print(f"WRONG ({times}): {fault}")
    print(f"{len(wrong)} findings")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
