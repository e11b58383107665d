"""A PostgreSQL server of our own on a free loopback port, gone after the test."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def programs():
    """Folder of the newest server programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    assert found, "no PostgreSQL server is installed: apt-get install postgresql"
    return found[-1].parent


def account():
    """PostgreSQL refuses to run as root: then the package's own user, or nobody."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextlib.contextmanager
def server():
    """Start a server, give the URL of an empty database, stop it."""
    user, folder = account(), Path(tempfile.mkdtemp(prefix="calibrant-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    data, options = folder / "data", {"user": user, "cwd": folder}
    options |= {"stdout": (folder / "log").open("wb"), "stderr": subprocess.STDOUT}
    port = free_port()
    command = [programs() / "postgres", "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1", "-F"]
    try:
        # Trust is enough: the port is on the loopback and lives for seconds.
        initdb = [programs() / "initdb", "-D", data, "-U", "calibrant", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, **options)
        process = subprocess.Popen(command, **options)
        try:
            wait_until_ready(port, process, folder / "log")
            yield f"postgresql+psycopg://calibrant@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    finally:
        options["stdout"].close()
        shutil.rmtree(folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(port, process, log, seconds=120):
    import psycopg

    ends = time.monotonic() + seconds
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="calibrant", dbname="postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < ends, "the server did not start"
            time.sleep(0.1)
        else:
            return
