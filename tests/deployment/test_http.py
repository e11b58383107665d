"""A real server process and a real client: bad bodies, limits, a graceful stop, and a load while it is killed."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from contextlib import closing
from urllib.parse import quote

import httpx2
import numpy as np
import pytest

from calibrant.deployment import DecisionLog, serve_model
from calibrant.errors import InvalidInput
from tests.deployment.serving import JSON, REQUESTS, free_port, peak_memory, serving, start

CLIENTS = 8


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
            ("decisions", b"[" * 500 + b"]" * 500, 422, "nested more than 64 deep"),
            ("decisions", b"[" * 100_000, 413, "at most 50 cases or labels, got many more lists or names"),
            ("labels", b'{"labels": [' + b"{}," * 50_000 + b"{}]}", 413, "many more lists"),
            ("labels", b'{"labels": {' + b'"a" :0,' * 20_000 + b'"b": 0}}', 413, "many more lists or names"),
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
            ("decisions", {"inputs": [zeros[:9]]}, 422, "rows of the shape (n, 10), got a row of 9"),
            ("decisions", {"inputs": "zeros"}, 422, "got str"),
            ("decisions", {"inputs": [["0"] * 10]}, 422, "got str"),
            ("decisions", {"inputs": [[True] * 10]}, 422, "got bool"),
            ("decisions", {"inputs": [zeros, "x"]}, 422, "got str"),
            ("decisions", {"inputs": [[[0.0]] * 10]}, 422, "got list"),
            (
                "decisions",
                {"inputs": [zeros], "extras": [{f"{i}": i for i in range(101)}]},
                422,
                "be at most 100, got 101",
            ),
            (
                "decisions",
                {"inputs": [zeros], "extras": [{"x": "y" * 1001}]},
                422,
                "at most 1,000 characters, got 1,001",
            ),
            ("decisions", {"inputs": [[61.0] * 10]}, 422, "must lie in -60 to 60"),
            ("labels", {"labels": {"image 0": "dog"}}, 409, "has the label 3, got 5. The first label counts."),
            ("labels", {"labels": {"nobody": 1}}, 404, "'nobody' was never decided"),
            ("labels", {"labels": {"image 1": "kat"}}, 422, "Did you mean 'cat'?"),
            ("labels", {"labels": {"image 1": 1.5}}, 422, "labels.image 1"),
            ("labels", {"labels": {f"{i}": 1 for i in range(51)}}, 413, "at most 50 labels, got 51"),
        ]:
            given = {"content": body, "headers": JSON} if isinstance(body, bytes) else {"json": body}
            answer = client.post(f"/{place}", **given)
            assert (answer.status_code, list(answer.json())) == (status, ["error", "detail"]), body
            assert message in answer.json()["detail"]
            assert "\n" not in answer.json()["detail"]
        assert client.get("/decisions/nobody").status_code == 404
        for answer, status in ((client.get("/nothing"), 404), (client.delete("/decisions"), 405)):
            assert (answer.status_code, list(answer.json())) == (status, ["error", "detail"])
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


def test_a_log_that_is_damaged_while_it_is_open_is_503(python, model, tmp_path):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, _):
        assert client.post("/decisions", json={"inputs": rows[:500]}).status_code == 200
        with closing(sqlite3.connect(tmp_path / "log.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "log.db").open("r+b") as file:
            file.truncate(8192)
        for answer in (client.post("/decisions", json={"inputs": rows[:1]}), client.get("/health")):
            assert (answer.status_code, answer.json()["error"]) == (503, "log_unavailable")


def test_the_access_log_may_go_and_clients_are_answered(python, model, tmp_path):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db", "--access-log") as (client, process):
        process.stdout.close()
        for _ in range(3):
            assert client.post("/decisions", json={"inputs": rows[:1]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert (process.wait(), process.stderr.read()) == (0, "")
        process.stdout = None


def test_one_long_text_takes_neither_memory_nor_time(python, model, tmp_path):
    """NumPy would take 4 bytes for each sign of the longest text, for each case: 48 GB for the first body."""
    path, rows, _ = model
    long = "x" * 12_000_000
    with serving(python, path, tmp_path / "log.db") as (client, process):
        assert client.post("/decisions", json={"inputs": rows[:1], "ids": ["a"]}).status_code == 200
        for place, body, status in [
            ("decisions", {"inputs": [long] + [""] * 999}, 422),
            ("decisions", {"inputs": [[long] + [""] * 9] * 1}, 422),
            ("decisions", {"inputs": {long: rows[:1]}}, 422),
            ("decisions", {"inputs": rows[:1], "ids": [long]}, 422),
            ("decisions", {"inputs": rows[:1], "extras": [{"site": long}]}, 422),
            ("decisions", {"inputs": rows[:1], "extras": [{long: 1}]}, 422),
            ("decisions", {"inputs": rows[:1], long: 1}, 422),
            ("labels", {"labels": {"a": long}}, 422),
            ("labels", {"labels": {long: 1}}, 404),
        ]:
            begun = time.perf_counter()
            answer = client.post(f"/{place}", json=body)
            assert answer.status_code == status, answer.text[:200]
            assert len(answer.text) < 1000
            assert time.perf_counter() - begun < 20
        assert client.get("/health").json()["logged"] == 1
        assert peak_memory(process) < 1_000_000  # kB


def test_pages_of_other_sites_and_other_hosts_are_refused_and_change_nothing(python, model, tmp_path):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, process):
        own = str(client.base_url).removesuffix("/")
        host = own.removeprefix("http://")
        port = host.rpartition(":")[2]
        body = json.dumps({"inputs": rows[:1]}).encode()
        for headers, status, error in [
            ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
            ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
            ({"content-type": "text/plain; application/json"}, 415, "unsupported_media_type"),
            ({}, 415, "unsupported_media_type"),
            ({**JSON, "origin": "http://evil.example"}, 403, "cross_site"),
            ({**JSON, "origin": "null"}, 403, "cross_site"),
            ({**JSON, "origin": "http://127.0.0.1:1"}, 403, "cross_site"),
            ({**JSON, "origin": f"http://{host}.evil.example"}, 403, "cross_site"),
            ({**JSON, "sec-fetch-site": "cross-site"}, 403, "cross_site"),
            ({**JSON, "sec-fetch-site": "same-site"}, 403, "cross_site"),
            ({**JSON, "host": "evil.example"}, 400, "unknown_host"),
            ({**JSON, "host": "localhost.evil.example"}, 400, "unknown_host"),
            ({**JSON, "host": "localhost@evil.example"}, 400, "unknown_host"),
            ({**JSON, "host": "203.0.113.7"}, 400, "unknown_host"),
            ({**JSON, "host": ""}, 400, "unknown_host"),
            ({**JSON, "host": "evil.example", "origin": "http://evil.example"}, 400, "unknown_host"),
        ]:
            answer = client.post("/decisions", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (status, error), headers
            assert list(answer.json()) == ["error", "detail"]
            if status != 415:
                assert client.get("/health", headers=headers).status_code == status
        assert client.get("/health").json()["logged"] == 0
        allowed = [
            {"content-type": "application/json; charset=utf-8"},
            {**JSON, "origin": own, "sec-fetch-site": "same-origin"},
            {**JSON, "host": f"LOCALHOST:{port}"},
            {**JSON, "host": f"[::1]:{port}", "sec-fetch-site": "none"},
        ]
        for headers in allowed:
            assert client.post("/decisions", content=body, headers=headers).status_code == 200, headers
        assert client.get("/health").json()["logged"] == len(allowed)
        process.terminate()
        assert process.communicate() == ("", "")


def test_beyond_this_machine_a_token_is_needed(python, model, tmp_path):
    path, rows, _ = model
    token = "mOsLEnVHXSWsTwqt-7QP"
    (tmp_path / "token").write_text(token + "\n")
    flags = ("--host", "0.0.0.0", "--token-file", str(tmp_path / "token"), "--allowed-host", "decide.example")
    with serving(python, path, tmp_path / "log.db", *flags) as (client, _):
        body = {"inputs": rows[:1]}
        for given in (
            None,
            "",
            token,
            f"Basic {token}",
            "Bearer",
            f"Bearer {token}x",
            f"Bearer {token[:-1]}",
            "Bearer \xe9",
        ):
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            answers = [client.post("/decisions", json=body, headers=headers), client.get("/docs", headers=headers)]
            for answer in answers:
                assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized"), given
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").json()["logged"] == 0
        bearer = {"authorization": f"Bearer {token}"}
        for host, status in (("decide.example:80", 200), ("192.0.2.3:8000", 200), ("evil.example", 400)):
            answer = client.post("/decisions", json=body, headers={**bearer, "host": host})
            assert answer.status_code == status, host
        assert client.get("/health").json()["logged"] == 2


def test_a_connection_that_is_kept_answers_without_delay(python, model, tmp_path):
    """Without TCP_NODELAY, each request but the first waits some 40 ms for the client's delayed acknowledgement."""
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db", "--no-log") as (client, _):
        address = client.base_url
        connection = http.client.HTTPConnection(address.host, address.port)
        body, seconds = json.dumps({"inputs": rows[:1]}), []
        for _ in range(30):
            begun = time.perf_counter()
            connection.request("POST", "/decisions", body, JSON)
            answer = connection.getresponse()
            answer.read()
            seconds.append(time.perf_counter() - begun)
            assert (answer.status, answer.getheader("connection")) == (200, None)
        connection.close()
    assert np.median(seconds) < 0.03


def test_a_locked_log_is_503_with_a_time_to_retry_and_health_answers_meanwhile(python, model, tmp_path):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, _):
        holder = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        answers = []

        def ask():
            with httpx2.Client(base_url=client.base_url, timeout=120) as own:
                answers.append(own.post("/decisions", json={"inputs": rows[:1]}))

        # More than there are connections and threads.
        clients = [threading.Thread(target=ask) for _ in range(50)]
        began = time.monotonic()
        for each in clients:
            each.start()
        time.sleep(2)
        assert client.get("/health", timeout=5).json()["logged"] == 0
        for each in clients:
            each.join()
        # Those that wait behind others for the log get the same answer, not a wait of their own.
        assert time.monotonic() - began < 60
        holder.execute("ROLLBACK")
        holder.close()
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["error"] for answer in answers} == {"log_unavailable"}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in answers)
        assert client.post("/decisions", json={"inputs": rows[:1]}).status_code == 200
        assert client.get("/health").json()["logged"] == 1


def test_a_full_disk_is_503_and_health_says_so(python, model, tmp_path):
    """Health looked at the log and wrote nothing, so it said ok while every decision failed."""
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("needs Linux")
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, process):
        assert client.post("/decisions", json={"inputs": rows[:1]}).status_code == 200
        # No file may grow any more, as on a full disk.
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        largest = max(each.stat().st_size for each in tmp_path.glob("log.db*"))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest - 1, limits[1]))
        for answer in (client.post("/decisions", json={"inputs": rows[:100]}), client.get("/health")):
            assert (answer.status_code, answer.json()["error"]) == (503, "log_unavailable")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
        assert client.get("/health").json()["logged"] == 1
        assert client.post("/decisions", json={"inputs": rows[:1]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        # Once, not for every request.
        (line,) = process.communicate()[1].splitlines()
        assert line.startswith(f"calibrant: decision log {tmp_path / 'log.db'} cannot be used: ")


def test_bad_arguments_are_one_line(calibrant, model, tmp_path):
    path, _, _ = model
    (tmp_path / "other.onnx").write_bytes(b"no model")
    (tmp_path / "short").write_text("hunter2")
    (tmp_path / "long").write_text("hunter2" * 1000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, message in [
            ([tmp_path / "missing.onnx"], "does not exist"),
            ([tmp_path / "other.onnx"], "written by this calibrant"),
            ([path, "--log", tmp_path / "no" / "log.db"], "a folder that exists"),
            ([path, "--no-log", "--port", 70000], "port must lie in 0..65535"),
            ([path, "--no-log", "--port", taken.getsockname()[1]], "cannot listen on 127.0.0.1:"),
            ([path, "--no-log", "--most-cases", 0], "most_cases must"),
            ([path, "--no-log", "--host", "0.0.0.0"], "so a token is needed. Add --token-file FILE"),
            ([path, "--no-log", "--token-file", tmp_path / "none"], "does not exist"),
            ([path, "--no-log", "--token-file", tmp_path / "short"], "hold one line of 16 to 512"),
            ([path, "--no-log", "--token-file", tmp_path / "long"], "hold one line of 16 to 512"),
        ]:
            code, _, err = calibrant("serve", *arguments, *([] if "--port" in arguments else ["--port", 0]))
            assert (code, err.count("\n")) == (2, 1), arguments
            assert message in err
            assert "hunter2" not in err


@pytest.mark.parametrize("name", ["uvicorn", "fastapi", "onnxruntime"])
def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch, model, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)
    for each in ("http", "connections", "access"):
        monkeypatch.delitem(sys.modules, f"calibrant.deployment.{each}", raising=False)
        monkeypatch.delattr(f"calibrant.deployment.{each}", raising=False)
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

        slow = threading.Thread(
            target=lambda: answers.append(client.post("/decisions", content=slowly(), headers=JSON))
        )
        slow.start()
        begun.wait(timeout=60)
        process.send_signal(signal.SIGTERM)
        slow.join()
        assert [answer.status_code for answer in answers] == [200]
        assert process.wait(timeout=60) == 0
    with DecisionLog(tmp_path / "log.db") as log:
        assert len(log) == 20


def half_open(address, head=b"POST /decisions HTTP/1.1\r\nHost: localhost\r\n"):
    """A connection that has sent a part of a request."""
    connection = socket.create_connection((address.host, address.port), timeout=30)
    connection.sendall(head)
    return connection


def test_half_open_connections_keep_nobody_out(python, model, tmp_path):
    """Before there were limits, they used up the file descriptors, and each failed accept printed a traceback."""
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, process):
        address, silent = client.base_url, []
        for number in range(700):
            silent.append(half_open(address, b"" if number % 2 else b"POST /decisions HTTP/1.1\r\nHost: localhost\r\n"))
            if number % 100 == 99:
                begun = time.perf_counter()
                answer = httpx2.post(f"{address}/decisions", json={"inputs": rows[:1]}, timeout=30)
                assert answer.status_code == 200
                assert time.perf_counter() - begun < 5
        for connection in silent:
            connection.close()
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        lines = said.splitlines()
        assert 150 < len(lines) < 300
        assert all("too many connections: one that sent no complete request was closed" in line for line in lines)


def test_clients_that_leave_in_the_middle_say_nothing_and_delay_nothing(python, model, tmp_path):
    path, rows, _ = model
    body = json.dumps({"inputs": rows[:50]}).encode()
    head = (
        b"POST /decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with serving(python, path, tmp_path / "log.db") as (client, process):
        address = client.base_url
        staying = [half_open(address, head % len(body) + body[:100]) for _ in range(5)]
        for part in (b"", body[:100], body[:-1]):
            half_open(address, head % len(body) + part).close()
        for _ in range(5):
            half_open(address, head % len(body) + body).close()  # it does not wait for the answer
        for junk in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
            half_open(address, junk).close()
        assert client.get("/health").status_code == 200
        begun = time.perf_counter()
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert time.perf_counter() - begun < 15
        assert process.returncode == 0
        assert "Traceback" not in said
        for connection in staying:
            connection.close()


def test_large_bodies_do_not_keep_others_waiting(python, model, tmp_path):
    """Parsed in the event loop, four bodies of 16 MB kept /health waiting for 10 s."""
    path, rows, _ = model
    text = json.dumps(rows[0])
    large = f'{{"inputs": [{", ".join([text] * (15_000_000 // len(text)))}]}}'.encode()
    with serving(python, path, tmp_path / "log.db") as (client, process):
        address = f"{client.base_url}/decisions"
        senders = [
            threading.Thread(target=lambda: httpx2.post(address, content=large, headers=JSON, timeout=120))
            for _ in range(4)
        ]
        for sender in senders:
            sender.start()
        slowest = 0.0
        while any(sender.is_alive() for sender in senders):
            begun = time.perf_counter()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.perf_counter() - begun)
        assert slowest < 3
        assert peak_memory(process) < 1_000_000  # kB
