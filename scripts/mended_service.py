"""What a hostile or unlucky client could once do to the service: each thing again, and what happens.

    python scripts/mended_service.py

It only uses the commands and HTTP, so it also runs against an older version: put that version's src and scripts first
on PYTHONPATH. One line per thing, numbered as in results/benchmarks/mended-service.txt.
"""

import http.client
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from chaos_serve import export

ROW = [0.0] * 10
JSON = {"Content-Type": "application/json"}
CALIBRANT = [sys.executable, "-m", "calibrant"]


class Server:
    """A service in a process and a folder of its own."""

    def __init__(self, folder: Path, model: Path, log: str, limit: Callable[[], None] | None) -> None:
        self.folder = folder
        self.log = folder / log
        self.err = folder / "err.txt"
        command = [*CALIBRANT, "serve", str(model), "--port", "0", "--log", str(self.log)]
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                bufsize=1,
                preexec_fn=limit,  # noqa: PLW1509 (no thread runs yet)
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
        """The status of an answer; 0 if none comes."""
        content = body
        if body is not None and not isinstance(body, bytes):
            content = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request(method, path, content, headers or JSON)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        return 0

    def decide(self, *names: str) -> int:
        """The status of decisions about cases with these ids."""
        return self.ask("POST", "/decisions", {"inputs": [ROW] * len(names), "ids": list(names)})

    def memory(self) -> int:
        """The most memory that it had, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) // 1000


@contextmanager
def serving(model: Path, log: str = "log.db", limit: Callable[[], None] | None = None) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(place), model, log, limit)
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def rows_of(log: Path) -> int:
    if not log.exists():
        return 0
    with closing(sqlite3.connect(log)) as connection:
        (number,) = connection.execute("SELECT count(*) FROM calibrant_decisions").fetchone()
    return int(number)


def moved_log(model: Path) -> str:
    with serving(model) as server:
        server.decide("a")
        away = server.folder / "away"
        away.mkdir()
        for file in server.folder.glob("log.db*"):
            file.rename(away / file.name)
        answers = [server.decide(f"b{number}") for number in range(15)]
        health = server.ask("GET", "/health")
        server.process.kill()
        server.process.wait()
        return f"log moved: {Counter(answers)}; health {health}; rows at its path {rows_of(server.log)}"


def long_text(model: Path) -> str:
    with serving(model) as server:
        begun = time.monotonic()
        status = server.ask("POST", "/decisions", {"inputs": ["x" * 1_000_000, *[""] * 999]})
        return f"1 MB of text: {status} after {time.monotonic() - begun:.1f} s, {server.memory():,} MB"


def many_names(model: Path) -> str:
    with serving(model) as server:
        statuses = Counter[int]()
        for number in range(40):
            ids = [f"{number}-{case}" for case in range(10)]
            extras = [{f"{each}-{name}": 1 for name in range(450)} for each in ids]
            statuses[server.ask("POST", "/decisions", {"inputs": [ROW] * 10, "ids": ids, "extras": extras})] += 1
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        code: object = "none after 60 s"
        with suppress(subprocess.TimeoutExpired):
            command = [*CALIBRANT, "monitor", str(server.log)]
            code = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
        memory = max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before) // 1000
        return (
            f"450 new extras per case: {dict(statuses)}; monitor: exit code {code}, "
            f"{time.monotonic() - begun:.1f} s, largest process so far {memory:,} MB"
        )


def other_sites(model: Path) -> str:
    with serving(model) as server:
        body = {"inputs": [ROW]}
        answers = {
            "text/plain": server.ask("POST", "/decisions", body, {"Content-Type": "text/plain"}),
            "Host": server.ask("POST", "/decisions", body, {**JSON, "Host": "evil.example"}),
            "Origin": server.ask("POST", "/decisions", body, {**JSON, "Origin": "http://evil.example"}),
        }
        return f"a page of another site: {answers}; rows written {rows_of(server.log)}"


def odd_name(model: Path) -> str:
    with serving(model, "what?.db") as server:
        server.decide("a")
        names = sorted(each.name for each in server.folder.iterdir() if each.name.startswith("what"))
        return f"--log 'what?.db' wrote {names}"


def half_open(model: Path) -> str:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with serving(model, limit=few_files) as server:
        opened = []
        for _ in range(2111):
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                connection.sendall(b"POST /decisions HTTP/1.1\r\nHost: localhost\r\n")
                opened.append(connection)
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        status: object = "no answer in 10 s"
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            status = connection.getresponse().status
        seconds = time.monotonic() - begun
        for each in opened:
            each.close()
        printed = server.err.read_text()
        return (
            f"{len(opened):,} half-open connections: health {status} after {seconds:.1f} s; printed "
            f"{len(printed) / 1e6:.2f} MB, {printed.count('Traceback')} tracebacks"
        )


def locked_log(model: Path) -> str:
    with serving(model) as server, closing(sqlite3.connect(server.log, isolation_level=None)) as other:
        server.decide("a")
        other.execute("BEGIN IMMEDIATE")
        answers: list[int] = []
        clients = [
            threading.Thread(target=lambda name=f"b{number}": answers.append(server.decide(name)))
            for number in range(30)
        ]
        for client in clients:
            client.start()
        time.sleep(1)
        begun = time.monotonic()
        health = server.ask("GET", "/health")
        waited = time.monotonic() - begun
        time.sleep(40)
        other.execute("ROLLBACK")
        for client in clients:
            client.join()
        return f"log locked for 41 s, 30 clients: {dict(Counter(answers))}; health {health} after {waited:.1f} s"


def large_bodies(model: Path) -> str:
    text = json.dumps([0.123456] * 10)
    body = f'{{"inputs": [{", ".join([text] * (15_000_000 // len(text)))}]}}'.encode()
    with serving(model) as server:
        senders = [threading.Thread(target=server.ask, args=("POST", "/decisions", body)) for _ in range(4)]
        for sender in senders:
            sender.start()
        slowest = 0.0
        while any(sender.is_alive() for sender in senders):
            begun = time.monotonic()
            server.ask("GET", "/health")
            slowest = max(slowest, time.monotonic() - begun)
        return f"four bodies of 15 MB: slowest health {slowest:.1f} s, {server.memory():,} MB"


def clients_leave(model: Path) -> str:
    with serving(model) as server:
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", server.port))
            head = b"POST /decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: 1000\r\n\r\n" + b"{")
            connection.close()
        staying = socket.create_connection(("127.0.0.1", server.port))
        staying.sendall(head + b"Content-Length: 1000\r\n\r\n" + b"{")
        time.sleep(1)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=90)
        seconds = time.monotonic() - begun
        staying.close()
        tracebacks = server.err.read_text().count("Traceback")
        return f"50 clients leave, one stalls: {tracebacks} tracebacks; stop takes {seconds:.1f} s, exit code {code}"


def deleted_rows(model: Path) -> str:
    with serving(model) as server:
        server.decide(*(f"{number}" for number in range(100)))
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        with closing(sqlite3.connect(server.log)) as connection, connection:
            connection.execute("DELETE FROM calibrant_decisions WHERE sequence % 2")
        ran = subprocess.run([*CALIBRANT, "monitor", str(server.log)], capture_output=True, text=True, check=False)
        return f"half of the rows deleted: monitor exits with {ran.returncode}: {ran.stderr.strip()[-110:]}"


def full_disk(model: Path) -> str:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    with serving(model, limit=small_files) as server:
        answers = [server.decide(*(f"{number}-{case}" for case in range(50))) for number in range(30)]
        answers += [server.decide(f"{number}") for number in range(50)]
        health = [server.ask("GET", "/health") for _ in range(5)]
        return f"disk full: {dict(Counter(answers))}; health five times {health}"


def kept_connection(model: Path) -> str:
    with serving(model) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        times = []
        for _ in range(100):
            begun = time.monotonic()
            connection.request("POST", "/decisions", json.dumps({"inputs": [ROW]}), JSON)
            connection.getresponse().read()
            times.append(time.monotonic() - begun)
        connection.close()
        return f"a kept connection: median {1000 * sorted(times)[50]:.1f} ms per decision"


THINGS = {
    1: moved_log,
    3: long_text,
    4: many_names,
    5: other_sites,
    6: odd_name,
    7: half_open,
    9: locked_log,
    10: large_bodies,
    11: clients_leave,
    12: deleted_rows,
    14: full_disk,
    17: kept_connection,
}


def main() -> None:
    wanted = [int(each) for each in sys.argv[1:]] or list(THINGS)
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model.onnx"
        export(model)
        for number in wanted:
            try:
                said = THINGS[number](model)
            except Exception as error:  # noqa: BLE001 (it is part of what is found)
                said = f"{type(error).__name__}: {error}"
            print(f"{number}. {said}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
