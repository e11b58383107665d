"""How many requests the service answers, beside a bare FastAPI + onnxruntime app on the same model, in one run.

The bare app checks nothing, keeps nothing and gives no reason: it is the least that a service can do. "Bare, SQLite" is
the same app with one table of SQLite, a row per case and a commit per request that waits for the disk: the least that a
service with a durable log can do. Each server runs in a process of its own. The load comes from one client process with
plain sockets, which costs far less than a server.

    python benchmarks/throughput.py [--seconds 3] [--clients 1 8 64] [--cases 1 100] [--once] [--log-folder FOLDER]

A line per server: requests per second, median and 99th percentile of the time to an answer in ms, and the share of the
bare app's requests. `--once` opens a connection per request as well. The first line says how long the disk takes for
one commit of SQLite; `--log-folder /dev/shm` keeps the logs in memory, so that only compute is counted.
"""

import argparse
import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import numpy as np

BARE = """
import sqlite3
import sys
import threading

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

session = onnxruntime.InferenceSession(sys.argv[1])
app = FastAPI()
turn = threading.Lock()
log = None
if len(sys.argv) > 3:
    log = sqlite3.connect(sys.argv[3], check_same_thread=False)
    log.execute("PRAGMA journal_mode = WAL")
    log.execute("PRAGMA synchronous = FULL")
    log.execute("CREATE TABLE decisions (number INTEGER PRIMARY KEY, predicted INT, confidence REAL, automate INT)")


class Cases(BaseModel):
    inputs: list[list[float]]


@app.post("/decisions")
def decide(cases: Cases):
    rows = np.asarray(cases.inputs, dtype=np.float32)
    probabilities, predicted, automate = session.run(["probabilities", "predicted", "automate"], {"inputs": rows})
    confidence = probabilities.max(axis=1)
    decisions = [
        {"predicted": int(k), "confidence": float(p), "automate": bool(a)}
        for k, p, a in zip(predicted, confidence, automate)
    ]
    if log is not None:
        rows = [tuple(each.values()) for each in decisions]
        with turn, log:
            log.executemany("INSERT INTO decisions (predicted, confidence, automate) VALUES (?, ?, ?)", rows)
    return {"decisions": decisions}


uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


def export(path: Path) -> np.ndarray:
    """A small network with a policy; returns rows to ask about."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from calibrant import Predictions
    from calibrant.decisions import fit_policy
    from calibrant.deployment import export_onnx

    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    pixels, targets = torch.from_numpy(x.astype(np.float32) / 16), torch.from_numpy(y)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(pixels[:800]), targets[:800]).backward()
        optimiser.step()
    with torch.no_grad():
        held_out = Predictions.from_logits(network(pixels[800:]), targets[800:])
    policy = fit_policy(held_out, 0.97)
    export_onnx(network, path, example=pixels[800:], ranges={"inputs": (0, 1)}, policy=policy)
    return pixels[800:].numpy()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "the server ended"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def bodies(rows: np.ndarray, cases: int) -> list[bytes]:
    rounded = np.round(rows, 4).tolist()
    wanted = [[rounded[(start * 7 + row) % len(rounded)] for row in range(cases)] for start in range(50)]
    return [json.dumps({"inputs": each}).encode() for each in wanted]


async def load(port: int, clients: int, seconds: float, contents: list[bytes], *, keep: bool) -> list[float]:
    """The time of each request that was answered with 200."""
    took: list[float] = []
    numbers, ends = count(), time.perf_counter() + seconds
    kept = b"" if keep else b"Connection: close\r\n"
    head = b"POST /decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + kept
    requests = [b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body) for body in contents]

    async def ask() -> None:
        reader = writer = None
        while time.perf_counter() < ends:
            begun = time.perf_counter()
            if writer is None or reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(requests[next(numbers) % len(requests)])
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            took.append(time.perf_counter() - begun)
            if not keep:
                writer.close()
                writer = None

    await asyncio.gather(*(ask() for _ in range(clients)))
    return took


def commit_times(folder: Path) -> list[float]:
    """How long commits of one row take in a folder, in ms."""
    took = []
    with closing(sqlite3.connect(folder / "commits.db", isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("PRAGMA synchronous = FULL")
        log.execute("CREATE TABLE decisions (number INTEGER PRIMARY KEY, confidence REAL)")
        for _ in range(500):
            begun = time.perf_counter()
            log.execute("INSERT INTO decisions (confidence) VALUES (0.5)")
            took.append(1e3 * (time.perf_counter() - begun))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--cases", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each server, taken in turn")
    parser.add_argument("--once", action="store_true", help="measure a connection per request as well")
    parser.add_argument("--log-folder", type=Path, help="where the logs are; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir=arguments.log_folder) as log_place:
        folder, logs = Path(place), Path(log_place)
        rows = export(folder / "model.onnx")
        (folder / "bare.py").write_text(BARE)
        model = str(folder / "model.onnx")
        ports = {name: free_port() for name in ("bare app", "without log", "bare, SQLite", "with log")}
        bare = [str(folder / "bare.py"), model]
        serve = ["-m", "calibrant", "serve", model, "--port"]
        with (
            running([*bare, str(ports["bare app"])], ports["bare app"]),
            running([*bare, str(ports["bare, SQLite"]), str(logs / "bare.db")], ports["bare, SQLite"]),
            running([*serve, str(ports["without log"]), "--no-log"], ports["without log"]),
            running([*serve, str(ports["with log"]), "--log", str(logs / "log.db")], ports["with log"]),
        ):
            p50, p99 = np.percentile(commit_times(logs), [50, 99])
            print(
                f"{os.cpu_count()} cores, {arguments.rounds} rounds of {arguments.seconds:g} s; "
                f"a commit of SQLite alone takes {p50:.2f} ms (99 %: {p99:.2f}); load average {os.getloadavg()[0]:.1f}"
            )
            print("| connection | cases | clients | server | requests/s | p50 ms | p99 ms | of bare | p99 of bare |")
            print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
            for keep in (True, False) if arguments.once else (True,):
                for cases in arguments.cases:
                    for clients in arguments.clients:
                        measure(ports, rows, cases, clients, arguments, keep=keep)


def measure(
    ports: dict[str, int], rows: np.ndarray, cases: int, clients: int, arguments: argparse.Namespace, *, keep: bool
) -> None:
    contents = bodies(rows, cases)
    took: dict[str, list[float]] = {name: [] for name in ports}
    for port in ports.values():
        asyncio.run(load(port, clients, 0.5, contents, keep=keep))
    for _ in range(arguments.rounds):
        for name, port in ports.items():
            took[name] += asyncio.run(load(port, clients, arguments.seconds, contents, keep=keep))
    seconds = arguments.seconds * arguments.rounds
    base_p99 = np.percentile(took["bare app"], 99)
    for name, times in took.items():
        p50, p99 = np.percentile(times, [50, 99])
        print(
            f"| {'kept' if keep else 'one each'} | {cases} | {clients} | {name} | {len(times) / seconds:.0f} "
            f"| {1e3 * p50:.1f} | {1e3 * p99:.1f} | {len(times) / len(took['bare app']):.2f} | {p99 / base_p99:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
