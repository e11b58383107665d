"""What an operator relies on: metrics, the access log, workers, OpenAPI, and the files in packaging/."""

import configparser
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from calibrant.deployment import DecisionLog
from tests.deployment.serving import free_port, serving, start

PACKAGING = Path(__file__).parents[2] / "packaging"


def test_prometheus_reads_the_metrics(python, model, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db", "--access-log") as (client, process):
        ids = [f"{row}" for row in range(200)]
        answer = client.post("/decisions", json={"inputs": rows[:200], "ids": ids}).json()
        automated = sum(each["decision"] == "auto" for each in answer["decisions"])
        client.post("/labels", json={"labels": {each["id"]: each["predicted"] for each in answer["decisions"]}})
        assert client.post("/decisions", json={"inputs": "x"}).status_code == 422
        assert client.get("/decisions/0").status_code == 200
        assert client.get("/docs").status_code == 200
        assert client.get("/nothing").status_code == 404
        page = client.get("/metrics")
        families = {family.name: family for family in parser.text_string_to_metric_families(page.text)}
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()

    def value(family, **labels):
        (found,) = [each.value for each in families[family].samples if labels.items() <= each.labels.items()]
        return found

    assert page.headers["content-type"].startswith("text/plain")
    assert value("calibrant_decisions", decision="auto") == automated
    assert value("calibrant_decisions", decision="review") == 200 - automated
    assert value("calibrant_requests", route="/decisions", status="200") == 1
    assert value("calibrant_requests", route="/decisions", status="422") == 1
    assert value("calibrant_requests", route="/decisions/{id}", status="200") == 1
    assert value("calibrant_requests", route="/docs", status="200") == 1
    assert value("calibrant_requests", route="other", status="404") == 1
    assert value("calibrant_log_up") == 1
    assert value("calibrant_log_decisions") == 200
    assert value("calibrant_monitor_alarm", test="promise") == 0
    assert value("calibrant_monitor_labels", test="promise") == automated
    counts = [each for each in families["calibrant_request_seconds"].samples if each.name.endswith("_count")]
    assert {each.labels["route"]: each.value for each in counts}["/decisions"] == 2
    lines = out.splitlines()
    assert len(lines) == 7
    assert " 127.0.0.1 POST /decisions 422 " in lines[2]


def test_openapi_types_every_answer_and_error_and_the_page_loads_nothing(python, model, tmp_path):
    path, _, _ = model
    with serving(python, path, tmp_path / "log.db") as (client, _):
        document = client.get("/openapi.json").json()
        page = client.get("/docs")
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                reference = answer["content"]["application/json"]["schema"]["$ref"]
                assert (status == "200") == (not reference.endswith("/Problem"))
    decide = document["paths"]["/decisions"]["post"]["responses"]
    assert {"400", "401", "403", "408", "409", "413", "415", "422", "429", "500", "503"} <= set(decide)
    answer = document["components"]["schemas"]["DecisionAnswer"]
    assert set(answer["properties"]) == {"id", "decision", "predicted", "class", "confidence", "shortlist", "reason"}
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "POST /decisions" in page.text
    assert "http" not in page.text
    assert "<script" not in page.text


def test_workers_share_a_port_a_log_and_their_counts_and_end_together(python, model, tmp_path):
    path, rows, _ = model
    process, address = start(python, path, tmp_path / "log.db", free_port(), "--workers", "2")
    workers = []
    try:
        for number in range(30):
            body = {"inputs": rows[:2], "ids": [f"{number}a", f"{number}b"]}
            answer = httpx2.post(f"{address}/decisions", json=body, timeout=120)
            assert answer.status_code == 200
        page = httpx2.get(f"{address}/metrics", timeout=60).text
        assert 'calibrant_requests_total{route="/decisions",status="200"} 30' in page
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if children.exists():
            workers = [int(child) for child in children.read_text().split()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
    with DecisionLog(tmp_path / "log.db") as log:
        assert len(log) == 60
    ends = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_workers_end_if_the_first_process_is_killed(python, model, tmp_path):
    path, _, _ = model
    process, address = start(python, path, tmp_path / "log.db", free_port(), "--workers", "2")
    assert httpx2.get(f"{address}/health", timeout=120).status_code == 200
    process.kill()
    process.communicate()
    ends = time.monotonic() + 20
    with pytest.raises(httpx2.TransportError):
        while time.monotonic() < ends:
            httpx2.get(f"{address}/health", timeout=60)
            time.sleep(0.2)


def test_a_worker_that_is_started_again_decides_as_the_others(python, model, tmp_path):
    """It took whatever model lay at the path by then, or died again and again."""
    path, _, _ = model
    shutil.copy(path, tmp_path / "model.onnx")
    process, address = start(python, tmp_path / "model.onnx", tmp_path / "log.db", free_port(), "--workers", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs Linux")
    try:
        before = httpx2.get(f"{address}/health", timeout=120).json()
        (tmp_path / "model.onnx").write_bytes(b"half of a new model")
        for child in children.read_text().split():
            if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        assert httpx2.get(f"{address}/health", timeout=60).json() == before
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def instructions(dockerfile):
    """Instructions and arguments of a Dockerfile."""
    text = dockerfile.read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_the_dockerfile_starts_the_service_as_a_user_without_rights(python, model, tmp_path):
    found = instructions(PACKAGING / "Dockerfile")
    names = [name for name, _ in found]
    assert names[0] == "FROM"
    assert set(names) <= {
        "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    given = dict(found)
    assert given["FROM"].rpartition(":")[2] not in ("", "latest")
    assert given["USER"] not in ("root", "0")
    assert names.index("USER") > names.index("RUN")
    command = [*json.loads(given["ENTRYPOINT"]), *json.loads(given["CMD"])]
    assert command[:2] == ["calibrant", "serve"]
    # The same command, with places of this machine.
    (tmp_path / "token").write_text("a-token-of-sufficient-length")
    port = free_port()
    places = {
        "/model/model.onnx": str(model[0]),
        "/data/decisions.db": str(tmp_path / "log.db"),
        "/run/secrets/token": str(tmp_path / "token"),
        "8000": str(port),
    }
    arguments = [places.get(each, each) for each in command[2:]]
    process = subprocess.Popen([python, "-m", "calibrant", "serve", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("Serving")
        check = json.loads(given["HEALTHCHECK"].partition("CMD")[2])
        subprocess.run([python, *(each.replace("8000", str(port)) for each in check[1:])], check=True)
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


def test_the_systemd_unit_starts_the_service(python, model, tmp_path):
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str
    unit.read(PACKAGING / "calibrant.service")
    program, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("calibrant", "serve")
    assert int(unit["Service"]["TimeoutStopSec"]) > 30
    port = free_port()
    places = {
        "/etc/calibrant/model.onnx": str(model[0]),
        "/var/lib/calibrant/decisions.db": str(tmp_path / "log.db"),
        "8000": str(port),
    }
    arguments = [places.get(each, each) for each in arguments]
    process = subprocess.Popen([python, "-m", "calibrant", "serve", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("Serving")
        assert httpx2.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        process.stdout.close()
    if shutil.which("systemd-analyze") is None or os.name == "nt":
        return
    # Everything but the place of the program, which is not installed here.
    text = (PACKAGING / "calibrant.service").read_text().replace(program, "/bin/true")
    (tmp_path / "calibrant.service").write_text(text)
    said = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "calibrant.service")], capture_output=True, check=False
    )
    assert b"calibrant.service" not in said.stderr, said.stderr
