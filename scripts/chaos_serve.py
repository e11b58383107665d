"""For chaos.py: a service that is killed in the middle of requests, again and again, on one log.

The rule: every decision and every label that was answered is in the log, as it was answered; of a request that was not
answered all cases are there or none; and SQLite finds nothing wrong with the file.
"""

import http.client
import json
import os
import random
import re
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chaos_processes import Fault, Life, start
from torch import nn

from calibrant import samples
from calibrant.decisions import fit_policy
from calibrant.deployment import Decider, DecisionLog, export_onnx

CLIENTS, CASES = 3, 5
_SAMPLE = "cifar10-resnet32-nll"


def export(path: Path) -> None:
    """A network that gives its input back, and a policy for it: logits of CIFAR-10 are the inputs."""
    cases = samples.load(_SAMPLE, "val")
    example = torch.from_numpy(cases.logits[:50].astype(np.float32))
    policy = fit_policy(cases, 0.97)
    export_onnx(nn.Identity(), path, example=example, ranges={"inputs": (-60, 60)}, policy=policy)


def labelled_log(folder: Path) -> None:
    """What `monitor` reads: decisions.db in the folder, about 500 cases with their labels."""
    export(folder / "model.onnx")
    test = samples.load(_SAMPLE).subset(np.arange(500))
    ids = [f"image {row}" for row in range(len(test))]
    decider = Decider.load(folder / "model.onnx", log=folder / "decisions.db")
    decider.decide(test.logits.astype(np.float32), ids=ids)
    assert decider.log is not None
    decider.log.label_all(dict(zip(ids, test.targets.tolist(), strict=True)))
    decider.log.close()


@dataclass
class Clients:
    """What was asked, and what was answered."""

    rows: list[list[float]]
    numbers: Any = field(default_factory=count)
    asked: list[list[str]] = field(default_factory=list)
    decided: dict[str, dict[str, Any]] = field(default_factory=dict)
    labelled: dict[str, int] = field(default_factory=dict)

    def run(self, port: int) -> None:
        """Ask until the service is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            while True:
                number = next(self.numbers)
                ids = [f"{number}-{case}" for case in range(CASES)]
                rows = [self.rows[(number * CASES + case) % len(self.rows)] for case in range(CASES)]
                self.asked.append(ids)
                answer = self._post(connection, "/decisions", {"inputs": rows, "ids": ids})
                self.decided.update({each["id"]: each for each in answer["decisions"]})
                labels = {ids[0]: number % 10}
                self._post(connection, "/labels", {"labels": labels})
                self.labelled.update(labels)

    def _post(self, connection: http.client.HTTPConnection, path: str, content: object) -> Any:
        connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        return json.loads(said)

    def wrong(self, place: Path) -> list[str]:
        """What the log lost or never should have held."""
        with closing(sqlite3.connect(place)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check").fetchone()
        wrong = [] if found == "ok" else [f"the log is damaged: {found}"]
        with DecisionLog(place) as log:
            kept = {each: values for block in log.decisions() for each, values in _rows(block)}
        wrong += [
            f"a part of a request is in the log: {ids}" for ids in self.asked if len({each in kept for each in ids}) > 1
        ]
        for each, said in self.decided.items():
            if kept.get(each, ())[:3] != (said["predicted"], said["confidence"], said["decision"] == "auto"):
                wrong.append(f"an answered decision is not in the log: {each}")
        wrong += [
            f"a label that was taken is not in the log: {each}"
            for each, target in self.labelled.items()
            if kept.get(each, (-1,))[-1] != target
        ]
        return wrong


def _rows(block: Any) -> Any:
    columns = (block.predicted, block.confidence, block.automate, block.target)
    for each, *values in zip(block.ids.tolist(), *(column.tolist() for column in columns), strict=True):
        yield each, tuple(values)


def kill_services(times: int, place: Path, draw: random.Random) -> tuple[int, list[str]]:
    """Lives of one service on one log: how many were killed, and what was wrong."""
    model, log = place / "model.onnx", place / "decisions.db"
    export(model)
    clients = Clients(samples.load(_SAMPLE).logits[:500].astype(float).tolist())
    kills, wrong = 0, []
    for number in range(times):
        # Every other life dies at a statement to its database; the others at a random moment.
        at = draw.randint(1, 300) if number % 2 else 0
        life = start(["serve", str(model), "--port", "0", "--log", str(log)], place, Fault("kill", at))
        port = _port(life)
        if port is not None:
            with ThreadPoolExecutor(CLIENTS) as pool:
                working = [pool.submit(clients.run, port) for _ in range(CLIENTS)]
                time.sleep(0.0 if at else draw.uniform(0.0, 0.5))
                if not at:
                    os.kill(life.pid, signal.SIGKILL)
                for each in working:
                    each.result()
        code, said = life.wait()
        kills += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            wrong.append(f"life {number}: exit code {code}: {said.strip()[-300:]}")
        # Rows are only added, so what is there at the end was never lost; a look now and then finds the life.
        if log.is_file() and (number % 10 == 9 or number == times - 1):
            wrong += [f"life {number}: {each}" for each in clients.wrong(log)]
    return kills, wrong


def _port(life: Life) -> int | None:
    """Where it listens; None where it died before."""
    ends = time.monotonic() + 60.0
    while time.monotonic() < ends:
        found = re.search(r"at http://127\.0\.0\.1:(\d+)", life.heard())
        if found:
            return int(found[1])
        if life.gone():
            return None
        time.sleep(0.01)
    return None
