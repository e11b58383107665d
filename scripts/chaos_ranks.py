"""For chaos.py: processes that train one run, of which one is killed at a random moment.

They are started by calibrant itself (`--devices 2`) or by torchrun. With torchrun there are three processes, and
torchrun itself can be the one that gets a signal: SIGKILL, SIGTERM, or SIGINT for its group as by Ctrl-C.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import psutil

# After the loss of one process the others must end within this time, on a machine that is not busy.
LONGEST_WAIT = 10.0
# torchrun itself waits 30 s for its processes to obey a SIGTERM.
LONGEST_WAIT_OF_TORCHRUN = 60.0
SIGNALS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "interrupted": signal.SIGINT}


class Ranks:
    """A command and all processes that come from it, which are known by a variable in their environment."""

    def __init__(self, command: list[str], log: Path, *, torchrun: bool = False) -> None:
        self.log, self.torchrun, self.token = log, torchrun, f"CHAOS={uuid.uuid4()}"
        self.parts = log.with_suffix(".ranks")
        shutil.rmtree(self.parts, ignore_errors=True)
        # Each process has a file for what it says, because torchrun adds a traceback of its own to its own output.
        launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
        launcher += ["--rdzv-endpoint", "localhost:0", "--redirects", "3", "--log-dir", str(self.parts), "-m"]
        with log.open("w") as err:
            self.first = subprocess.Popen(
                [sys.executable, "-m", *(launcher if torchrun else ()), "calibrant", *command],
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

    def said(self) -> list[str]:
        """What the processes said: one text for those that share a file. What torchrun says itself is not ours."""
        parts = sorted(self.parts.rglob("stderr.log")) if self.torchrun else [self.log]
        return [path.read_text() for path in parts]


def whole(command: list[str], log: Path, *, torchrun: bool = False) -> tuple[int, float, str]:
    """Run a command to its end: exit code, seconds, and what was said."""
    begun, ranks = time.monotonic(), Ranks(command, log, torchrun=torchrun)
    ranks.end(600.0)
    return ranks.first.returncode, time.monotonic() - begun, log.read_text() + "".join(ranks.said())


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


def lose_torchrun(command: list[str], log: Path, delay: float, how: str) -> list[str]:
    """Send torchrun, or one of its processes ("rank"), a signal after `delay` seconds; what was wrong afterwards."""
    ranks = Ranks(command, log, torchrun=True)
    time.sleep(delay)
    if how == "rank":
        others = [process for process in ranks.alive() if process != ranks.first.pid]
        _signal(max(others, default=ranks.first.pid), signal.SIGKILL)
    elif how == "interrupted":
        _signal(-ranks.first.pid, signal.SIGINT)
    else:
        _signal(ranks.first.pid, SIGNALS[how])
    return _wrong(ranks, LONGEST_WAIT_OF_TORCHRUN)


def kill(process: int) -> None:
    """Send SIGKILL to a process, which may have ended by itself."""
    _signal(process, signal.SIGKILL)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(process, number)  # a negative number means the whole group


def _wrong(ranks: Ranks, within: float) -> list[str]:
    wrong = [] if ranks.end(within) else [f"a process still lives after {within:.0f} s"]
    for said in ranks.said():
        complaints = [line for line in said.splitlines() if line.startswith("calibrant: ") and "warning: " not in line]
        if "Traceback" in said or len(complaints) > 1:
            wrong.append(f"it said: {said.strip().splitlines()[-1][:300]}")
    return wrong
