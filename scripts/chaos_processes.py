"""Processes for chaos.py: forks that an audit hook disturbs, and real processes of which one is killed.

A fork runs one command of ours. Runs in several processes are started by calibrant itself (`--devices 2`).
"""

import contextlib
import errno
import io
import os
import random
import resource
import runpy
import signal
import sqlite3
import sqlite3.dbapi2
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

import calibrant.cli
from calibrant.scale import work

LONGEST_LIFE = 120.0
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}


@dataclass(frozen=True)
class Fault:
    """What happens to a life: at the event number `at`, a signal or an error; or a limit, or a clock."""

    kind: str = "none"
    at: int = 0


class Hook:
    """Counts events below a folder, in this process, and acts at one of them."""

    def __init__(self, folder: Path, fault: Fault, counter: Path | None) -> None:
        self.folder, self.fault, self.counter = str(folder), fault, counter
        self.count = 0
        self.busy = False

    def install(self) -> None:
        """Begin to watch this process."""
        sys.addaudithook(self)
        flush = os.fsync

        def fsync(descriptor: int) -> None:
            self.event()
            flush(descriptor)

        os.fsync = fsync
        connect = sqlite3.connect

        def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(lambda _: self.event())
            return connection

        sqlite3.connect = sqlite3.dbapi2.connect = watched
        if self.fault.kind == "file size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.at, resource.RLIM_INFINITY))
        if self.fault.kind == "clock":
            draw, real = random.Random(self.fault.at), time.time
            time.time = lambda: real() + draw.choice((-1e8, -3600.0, 0.0, 3600.0, 1e8))

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        """See what Python is about to do."""
        if self.busy:
            return
        if name == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and self.below(path):
                self.event()
        elif name in CHANGES and self.below(arguments[0]):
            self.event()

    def below(self, path: object) -> bool:
        """Whether a path lies in the folder."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)  # noqa: PTH100  (links are not followed)

    def event(self) -> None:
        """Count, and act where this is the one."""
        self.count += 1
        if self.counter is not None:
            self.busy = True
            self.counter.write_text(str(self.count))
            self.busy = False
        if not self.fault.at or self.count < self.fault.at:
            return
        if self.fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fault.kind == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class ForkedProcess:
    """The part of `subprocess.Popen` that `run_tasks` uses, by a fork instead of a new interpreter."""

    def __init__(self, command: list[str], *, stdout: io.BufferedWriter, env: dict[str, str], **_: Any) -> None:
        assert command[:2] == [sys.executable, "-m"]
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(reading, 0)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            os.closerange(3, 4096)  # as after exec: locks are not inherited
            os.environ.update(env)
            sys.argv = command[2:]
            code = 70
            try:
                runpy.run_module(command[2], run_name="__main__", alter_sys=True)
                code = 0
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
            except BaseException:  # noqa: BLE001 (printed as Python would, then the process ends)
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Exit code, once it has ended."""
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@dataclass
class Life:
    """A process that runs one command."""

    pid: int
    output: int
    said: bytes = b""

    def heard(self) -> str:
        """What it has said so far."""
        self._listen()
        return self.said.decode(errors="replace")

    def gone(self) -> bool:
        """Whether it has ended; `wait` is still to be called."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> tuple[int | None, str]:
        """Exit code, negative for a signal, None where it hangs; and what it said."""
        ends = time.monotonic() + LONGEST_LIFE
        while time.monotonic() < ends:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._listen()
            if pid:
                os.close(self.output)
                return os.waitstatus_to_exitcode(status), self.said.decode(errors="replace")
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.output)
        return None, self.said.decode(errors="replace")

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while heard := os.read(self.output, 65536):
                self.said += heard


def start(command: list[str], folder: Path, fault: Fault, counter: Path | None = None) -> Life:
    """Run a command in a fork of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.set_blocking(reading, False)
        return Life(pid, reading)
    os.close(reading)
    # A pipe and no file: a limit on the size of files must not silence it.
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    code = 70
    try:
        work.subprocess = SimpleNamespace(Popen=ForkedProcess, PIPE=subprocess.PIPE)
        Hook(folder, fault, counter).install()
        code = calibrant.cli.run(command)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # noqa: BLE001 (printed as Python would, then the process ends)
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# After the loss of one process the others must end within this time, on a machine that is not busy.
LONGEST_WAIT = 10.0


class Ranks:
    """A command and all processes that come from it, which are known by a variable in their environment."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log, self.token = log, f"CHAOS={uuid.uuid4()}"
        with log.open("w") as err:
            self.first = subprocess.Popen(
                [sys.executable, "-m", "calibrant", *command],
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "CHAOS": self.token.partition("=")[2]},
            )

    def alive(self) -> list[int]:
        """Processes that have not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:  # ended just now, or of somebody else
                continue
            if self.token.encode() in environment and state != "Z":
                found.append(int(folder.name))
        return found

    def working(self) -> list[int]:
        """Processes that have not ended, but for the helper of Python that removes shared memory."""
        found = []
        for process in sorted(self.alive()):
            with contextlib.suppress(OSError):  # ended just now
                if b"resource_tracker" not in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
        return found

    def listening(self) -> list[str]:
        """Addresses at which these processes listen."""
        found = []
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                sockets = psutil.Process(process).net_connections(kind="inet")
                found += [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]
        return found

    def end(self, within: float) -> bool:
        """Whether all processes end within this time; those that do not are killed."""
        last = time.monotonic() + within
        while (self.first.poll() is None or self.alive()) and time.monotonic() < last:
            time.sleep(0.05)
        left = self.alive()
        for process in left:
            os.kill(process, signal.SIGKILL)
        self.first.wait()
        return not left

    def said(self) -> str:
        """What the processes said."""
        return self.log.read_text()


def whole(command: list[str], log: Path) -> tuple[int, float, str]:
    """Run a command to its end: exit code, seconds, and what was said."""
    begun, ranks = time.monotonic(), Ranks(command, log)
    ranks.end(600.0)
    return ranks.first.returncode, time.monotonic() - begun, ranks.said()


def lose_one(command: list[str], log: Path, delay: float, choose: Callable[[list[int]], int]) -> list[str]:
    """Kill one of the processes after `delay` seconds; what was wrong with how the others ended."""
    ranks = Ranks(command, log)
    time.sleep(delay)
    running = ranks.working()
    if not running:
        return []
    elsewhere = [address for address in ranks.listening() if not ip_address(address).is_loopback]
    _signal(choose(running), signal.SIGKILL)
    wrong = _wrong(ranks, LONGEST_WAIT)
    if elsewhere:
        wrong.append(f"it listened at {', '.join(elsewhere)}")
    return wrong


def kill(process: int) -> None:
    """Send SIGKILL to a process, which may have ended by itself."""
    _signal(process, signal.SIGKILL)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(process, number)  # a negative number means the whole group


def _wrong(ranks: Ranks, within: float) -> list[str]:
    wrong = [] if ranks.end(within) else [f"a process still lives after {within:.0f} s"]
    said = ranks.said()
    complaints = [line for line in said.splitlines() if line.startswith("calibrant: ") and "warning: " not in line]
    if "Traceback" in said or len(complaints) > 1:
        wrong.append(f"it said: {said.strip().splitlines()[-1][:300]}")
    return wrong
