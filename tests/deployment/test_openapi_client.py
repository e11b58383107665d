"""A client that is generated from the OpenAPI document gets every answer and every error as a typed value."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deployment.serving import serving

TOKEN = "a-token-of-sufficient-length"
GENERATOR = shutil.which("openapi-python-client")
PROGRAM = Path(__file__).with_name("generated_client.py")
# What is called, and the status, type and `error` that come back. The service waits 20 s for a slow body.
EXPECTED = [
    ["decide", 200, "DecisionsAnswer", None],
    ["DecisionAnswer", "DecisionAnswer"],
    ["label", 200, "LabelsAnswer", None],
    ["find", 200, "LoggedAnswer", None],
    ["health", 200, "HealthAnswer", None],
    ["another host", 400, "Problem", "unknown_host"],
    ["no token", 401, "Problem", "unauthorized"],
    ["another site", 403, "Problem", "cross_site"],
    ["unknown id", 404, "Problem", "unknown_id"],
    ["an id again", 409, "Problem", "duplicate_id"],
    ["another label", 409, "Problem", "contradicting_label"],
    ["many cases", 413, "Problem", "too_large"],
    ["not JSON", 415, "Problem", "unsupported_media_type"],
    ["words", 422, "Problem", "invalid"],
    ["too busy", 429, "Problem", "too_busy"],
    ["too slow", 408, "Problem", "too_slow"],
    ["log moved", 503, "Problem", "log_unavailable"],
    ["health without log", 503, "Problem", "log_unavailable"],
]


@pytest.mark.skipif(GENERATOR is None, reason="openapi-python-client is not on the PATH (pip install it anywhere)")
def test_a_generated_client_gets_typed_answers_and_errors(python, model, tmp_path):
    path, rows, _ = model
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "rows.json").write_text(json.dumps(rows[:2]))
    log = tmp_path / "log.db"
    options = ["--token-file", str(tmp_path / "token"), "--most-bytes", "300000"]
    with serving(python, path, log, *options) as (client, _):
        authorised = {"Authorization": f"Bearer {TOKEN}"}
        (tmp_path / "openapi.json").write_text(client.get("/openapi.json", headers=authorised).text)
        command = [GENERATOR, "generate", "--path", "openapi.json", "--meta", "none"]
        command += ["--output-path", "calibrant_client"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        theirs = Path(GENERATOR).with_name("python")
        arguments = [str(client.base_url).rstrip("/"), TOKEN, str(log), str(tmp_path / "rows.json")]
        environment = {"PYTHONPATH": str(tmp_path)}
        ran = subprocess.run(
            [theirs, PROGRAM, *arguments], env=environment, text=True, capture_output=True, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == EXPECTED
