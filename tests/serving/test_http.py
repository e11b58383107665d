"""A real server process and a real client: bad bodies, limits, a graceful stop, and a load while it is killed."""

import csv
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import httpx2
import numpy as np
import pytest
import torch
from torch import nn

from calibrant import Predictions, samples
from calibrant.errors import InvalidInput
from calibrant.posthoc import TemperatureScaling
from calibrant.routing import choose_shortlist, choose_threshold, route_file
from calibrant.serving import DecisionLog, export_onnx, serve_model

REQUESTS, CLIENTS = 1000, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """CIFAR-10 logits as the input of a network that changes nothing, and what `route apply` says about them."""
    folder = tmp_path_factory.mktemp("http")
    some, rest = samples.load("cifar10-resnet32-nll", "val").split(0.2)
    test = samples.load("cifar10-resnet32-nll")
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.97)
    shortlist = choose_shortlist(calibrator(test.subset(np.arange(5000, 10000))), rule=rule)
    parts = {"calibrator": calibrator, "rule": rule, "shortlist": shortlist}
    example = torch.from_numpy(test.logits[:200].astype(np.float32))
    export_onnx(nn.Identity(), folder / "model.onnx", example=example, ranges={"inputs": (-60, 60)}, **parts)
    first = test.subset(np.arange(REQUESTS))
    ids = [f"image {i}" for i in range(REQUESTS)]
    named = Predictions.from_logits(first.logits, first.targets, ids=ids, class_names=test.class_names)
    named.save(folder / "new.npz")
    route_file(rule, folder / "new.npz", folder / "applied.csv", calibrator=calibrator, shortlist=shortlist)
    with (folder / "applied.csv").open() as lines:
        applied = {row["id"]: row for row in csv.DictReader(lines)}
    return folder / "model.onnx", first.logits.astype(float).tolist(), applied


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(python, path, log, port, *more):
    command = [python, "-m", "calibrant", "serve", str(path), "--port", str(port), "--log", str(log), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("Serving"), process.stderr.read()
    return process, line.split()[-1]


@contextmanager
def serving(python, path, log, *more):
    process, address = start(python, path, log, 0, *more)
    try:
        with httpx2.Client(base_url=address, timeout=120) as client:
            yield client, process
    finally:
        process.kill()
        process.communicate()


def test_answers_labels_and_every_bad_body_is_one_line(python, model, tmp_path):
    path, rows, applied = model
    log, zeros = tmp_path / "log.db", [0.0] * 10
    with serving(python, path, log, "--most-cases", "50", "--most-bytes", "200000") as (client, process):
        health = client.get("/health").json()
        assert (health["status"], health["logged"]) == ("ok", 0)
        ids = ["image 0", "image 1", "a/b %2F \N{SNOWMAN}"]
        facts = [{"site": "north"}, {}, {"age": 7}]
        answer = client.post("/decisions", json={"inputs": rows[:3], "ids": ids, "extras": facts})
        assert answer.status_code == 200
        assert answer.json()["model"] == health["model"]
        for said in answer.json()["decisions"][:2]:
            assert_as_applied(said, applied[said["id"]])
        assert client.post("/labels", json={"labels": {"image 0": "cat", "image 1": 8}}).json() == {"new": 2}
        kept = client.get(f"/decisions/{quote(ids[2], safe='')}").json()
        assert (kept["id"], kept["extras"], kept["target"]) == (ids[2], {"age": 7}, None)
        assert client.get("/decisions/image 0").json()["target"] == 3
        single = client.post("/decisions", json={"inputs": {"inputs": rows[:1]}}).json()["decisions"]
        assert len(single[0]["id"]) == 32
        paths = client.get("/openapi.json").json()["paths"]
        assert set(paths) == {"/decisions", "/decisions/{id}", "/labels", "/health"}
        assert "inputs" in json.dumps(paths["/decisions"]["post"]["requestBody"])
        for place, body, status, message in [
            ("decisions", b"{", 422, "the body must be a JSON file"),
            ("decisions", b"", 422, "the body must be a JSON file"),
            ("decisions", b"\xff\xfe", 422, "the body must be a JSON file"),
            ("decisions", b"[" * 100_000, 422, "nested more than 64 deep"),
            ("decisions", b'{"inputs": [[NaN]]}', 422, "NaN, which is not JSON"),
            ("decisions", b'{"inputs": 1, "inputs": 2}', 422, "twice in one object"),
            ("decisions", b" " * 200_001, 413, "at most 200,000 bytes"),
            ("decisions", [], 422, "the body: Input should be"),
            ("decisions", {}, 422, "inputs: Field required"),
            ("decisions", {"inputs": [zeros], "more": 1}, 422, "more: Extra inputs are not permitted"),
            ("decisions", {"inputs": [zeros], "ids": [1]}, 422, "ids.0: Input should be a valid string"),
            ("decisions", {"inputs": [zeros], "ids": ["a", "b"]}, 422, "ids must be as many as the 1 cases"),
            ("decisions", {"inputs": [zeros], "ids": [""]}, 422, "id must be text of 1 to 256"),
            ("decisions", {"inputs": [zeros], "ids": ["image 0"]}, 409, "was decided before"),
            ("decisions", {"inputs": [zeros], "extras": [{"x": [1]}]}, 422, "extras.0.x"),
            ("decisions", {"inputs": [zeros] * 51}, 413, "at most 50 cases, got 51"),
            ("decisions", {"inputs": [zeros[:9]]}, 422, "have the shape (n, 10), got (1, 9)"),
            ("decisions", {"inputs": "zeros"}, 422, "hold numbers"),
            ("decisions", {"inputs": [[61.0] * 10]}, 422, "must lie in -60 to 60"),
            ("labels", {"labels": {"image 0": "dog"}}, 409, "has the label 3, got 5. The first label counts."),
            ("labels", {"labels": {"nobody": 1}}, 404, "'nobody' was never decided"),
            ("labels", {"labels": {"image 1": "kat"}}, 422, "Did you mean 'cat'?"),
            ("labels", {"labels": {"image 1": 1.5}}, 422, "labels.image 1"),
        ]:
            given = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = client.post(f"/{place}", **given)
            assert (answer.status_code, list(answer.json())) == (status, ["detail"]), body
            assert message in answer.json()["detail"]
            assert "\n" not in answer.json()["detail"]
        assert client.get("/decisions/nobody").status_code == 404
        assert client.get("/nothing").status_code == 404
        assert client.delete("/decisions").status_code == 405
        assert client.get("/health").json()["logged"] == 4
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        assert (process.returncode, said) == (0, "")
    with DecisionLog(log) as opened:
        (block,) = opened.decisions()
        assert block.ids[:3].tolist() == ids
        assert block.target.tolist() == [3, 8, -1, -1]


def assert_as_applied(said, row):
    assert said["decision"] == row["decision"]
    assert said["class"] == row["class"]
    assert said["confidence"] == float(row["confidence"])
    assert said["shortlist"] == json.loads(row["shortlist"] or "[]")


def test_a_kill_in_the_middle_of_a_thousand_requests_loses_no_answered_decision(python, model, tmp_path):
    path, rows, applied = model
    log, port = tmp_path / "log.db", free_port()
    process, address = start(python, path, log, port)
    answered, lock, again = {}, threading.Lock(), threading.Event()
    half = threading.Event()

    def ask(client, i):
        """One decision; None where the server had logged it and died before it answered."""
        body = {"inputs": [rows[i]], "ids": [f"image {i}"]}
        while True:
            try:
                answer = client.post("/decisions", json=body)
                if answer.status_code == 409:
                    return None
                assert answer.status_code == 200, answer.text
                return answer.json()["decisions"][0]
            except httpx2.TransportError:
                assert again.wait(timeout=300)

    def work(own):
        with httpx2.Client(base_url=address, timeout=300) as client:
            for i in range(own, REQUESTS, CLIENTS):
                said = ask(client, i)
                with lock:
                    if said is not None:
                        answered[said["id"]] = said
                    if len(answered) >= REQUESTS // 3:
                        half.set()

    clients = [threading.Thread(target=work, args=(own,)) for own in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        assert half.wait(timeout=300)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        process, _ = start(python, path, log, port)
        again.set()
        for client in clients:
            client.join()
    finally:
        again.set()
        process.kill()
        process.communicate()
    with DecisionLog(log) as opened:
        blocks = list(opened.decisions())
    logged = {name: at for block in blocks for name, at in zip(block.ids, block.confidence, strict=True)}
    assert sum(len(block) for block in blocks) == REQUESTS == len(logged)
    assert set(logged) == set(applied)
    # Decisions that were logged and not answered: at most one for each client.
    assert REQUESTS - CLIENTS <= len(answered) <= REQUESTS
    for name, said in answered.items():
        assert logged[name] == said["confidence"]
        assert_as_applied(said, applied[name])


def test_a_log_that_is_moved_away_is_503_until_the_service_is_restarted(python, model, tmp_path):
    path, rows, _ = model
    log, away = tmp_path / "log.db", tmp_path / "away"
    away.mkdir()
    with serving(python, path, log) as (client, _):
        assert client.post("/decisions", json={"inputs": rows[:3], "ids": ["a", "b", "c"]}).status_code == 200
        for each in tmp_path.glob("log.db*"):
            each.rename(away / each.name)
        with serving(python, path, log) as (other, _):
            assert other.post("/decisions", json={"inputs": rows[:1], "ids": ["d"]}).status_code == 200
            for answer in (
                client.post("/decisions", json={"inputs": rows[:1], "ids": ["e"]}),
                client.post("/labels", json={"labels": {"a": 1}}),
                client.get("/decisions/a"),
                client.get("/health"),
            ):
                assert answer.status_code == 503
                assert "log.db was replaced by another file" in answer.json()["detail"]
    for place, ids in ((away / "log.db", ["a", "b", "c"]), (log, ["d"])):
        with DecisionLog(place) as opened:
            (block,) = opened.decisions()
            assert block.ids.tolist() == ids


def test_bad_arguments_are_one_line(calibrant, model, tmp_path):
    path, _, _ = model
    (tmp_path / "other.onnx").write_bytes(b"no model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, message in [
            ([tmp_path / "missing.onnx"], "does not exist"),
            ([tmp_path / "other.onnx"], "written by this calibrant"),
            ([path, "--log", tmp_path / "no" / "log.db"], "a folder that exists"),
            ([path, "--no-log", "--port", 70000], "port must lie in 0..65535"),
            ([path, "--no-log", "--port", taken.getsockname()[1]], "cannot listen on 127.0.0.1:"),
            ([path, "--no-log", "--most-cases", 0], "most_cases must"),
        ]:
            code, _, err = calibrant("serve", *arguments)
            assert (code, err.count("\n")) == (2, 1), arguments
            assert message in err


@pytest.mark.parametrize("name", ["uvicorn", "fastapi", "onnxruntime", "sqlalchemy"])
def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch, model, tmp_path, name):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InvalidInput, match=r"pip install 'calibrant\[serve\]'"):
        serve_model(model[0], log=tmp_path / "log.db")


def test_requests_that_are_under_way_are_answered_before_the_end(python, model, tmp_path):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, process):
        answers = []
        # A slow body: its last byte comes after the signal.
        body = json.dumps({"inputs": rows[:20]}).encode()
        begun = threading.Event()

        def slowly():
            yield body[:100]
            begun.set()
            time.sleep(0.5)
            yield body[100:]

        slow = threading.Thread(target=lambda: answers.append(client.post("/decisions", content=slowly())))
        slow.start()
        begun.wait(timeout=60)
        process.send_signal(signal.SIGTERM)
        slow.join()
        assert [answer.status_code for answer in answers] == [200]
        assert process.wait(timeout=60) == 0
    with DecisionLog(tmp_path / "log.db") as log:
        assert len(log) == 20
