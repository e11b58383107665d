"""A real server process for tests of the service."""

import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx2

REQUESTS = 1000
JSON = {"content-type": "application/json"}


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


def peak_memory(process):
    """The most memory that a process had, in kB; 0 where Linux does not say it."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return 0
    (peak,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak)
