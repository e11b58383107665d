"""For chaos.py: two processes that train one run, of which one is killed at a random moment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# After the loss of one process the other one must end within this time, on a machine that is not busy.
LONGEST_WAIT = 30.0


class Ranks:
    """A command that starts a second process of its own, in a session that holds both."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("w") as err:
            self.first = subprocess.Popen(
                [sys.executable, "-m", "calibrant", *command],
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )

    def alive(self) -> list[int]:
        """Processes of the session that have not ended."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:  # ended just now
                continue
            if int(words[3]) == self.first.pid and words[0] != "Z":
                found.append(int(stat.parent.name))
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


def whole(command: list[str], log: Path) -> tuple[int, float, str]:
    """Run a command to its end: exit code, seconds, and what was said."""
    begun, ranks = time.monotonic(), Ranks(command, log)
    ranks.end(600.0)
    return ranks.first.returncode, time.monotonic() - begun, log.read_text()


def lose_one(command: list[str], log: Path, delay: float, choose: Callable[[list[int]], int]) -> list[str]:
    """Kill one of the processes after `delay` seconds; what was wrong with how the others ended."""
    ranks = Ranks(command, log)
    time.sleep(delay)
    running = ranks.alive()
    if not running:
        return []
    os.kill(choose(sorted(running)), signal.SIGKILL)
    wrong = [] if ranks.end(LONGEST_WAIT) else [f"a process still lives after {LONGEST_WAIT:.0f} s"]
    said = log.read_text()
    complaints = [line for line in said.splitlines() if line.startswith("calibrant: ")]
    if "Traceback" in said or len([line for line in complaints if "warning: " not in line]) > 1:
        wrong.append(f"it said: {said.strip().splitlines()[-1][:300]}")
    return wrong
