"""Processes for chaos.py: forks that run a command of ours, and an audit hook that disturbs them."""

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
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import calibrant.cli
from calibrant.scale import processes

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
            except BaseException:  # noqa: BLE001  (told as Python would, then the process ends)
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
        processes.subprocess = SimpleNamespace(Popen=ForkedProcess, PIPE=subprocess.PIPE)
        Hook(folder, fault, counter).install()
        code = calibrant.cli.run(command)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # noqa: BLE001  (told as Python would, then the process ends)
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
