"""Two processes that train one run, and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_SETTINGS = [
    *("--data", "digits", "--method", "nll", "--epochs", "300", "--accelerator", "cpu", "--devices", "2"),
    *("--set", "data.validation=0.8"),  # short epochs
]


class Pair:
    """A training in two processes, in a session of its own."""

    def __init__(self, folder, *arguments):
        self._err = folder / "err.txt"
        with self._err.open("w") as err:
            self.first = subprocess.Popen(
                [sys.executable, "-m", "calibrant", "train", *map(str, arguments)],
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )

    @property
    def lines(self):
        """What was said."""
        return self._err.read_text().splitlines()

    def alive(self):
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

    def wait_for_an_epoch(self):
        """Until the run goes, in two processes."""
        for _ in range(12_000):
            if any(line.startswith("epoch") for line in self.lines):
                break
            assert self.first.poll() is None, self.lines
            time.sleep(0.01)
        assert len(self.alive()) == 2

    def end(self):
        """Wait for the end of all processes; the exit code of the first, and what was said beside the epochs."""
        try:
            code = self.first.wait(60)
            for _ in range(1000):
                if not self.alive():
                    break
                time.sleep(0.01)
            assert self.alive() == []
        finally:
            for process in self.alive():
                os.kill(process, signal.SIGKILL)
        return code, [line for line in self.lines if not line.startswith("epoch")]


@pytest.fixture
def interruptible():
    """A shell that runs the tests in the background makes them ignore interrupts, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_and_a_lost_process_end_both_with_one_line_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "run"
    way_out = f"ontinue with: calibrant train --resume {folder}"

    pair = Pair(tmp_path, *_SETTINGS, "--out", folder)
    pair.wait_for_an_epoch()
    os.killpg(pair.first.pid, signal.SIGINT)  # as a terminal does
    code, (begun, stopped) = pair.end()
    assert code == 130
    assert begun == "nll on digits with tiny, seed 0"
    assert stopped == f"calibrant: stopped; c{way_out}"

    lost = f"calibrant: another process of this run ended before the run did. C{way_out}"
    pair = Pair(tmp_path, "--resume", folder)
    pair.wait_for_an_epoch()
    (second,) = set(pair.alive()) - {pair.first.pid}
    os.kill(second, signal.SIGKILL)
    code, (begun, said) = pair.end()
    assert code == 2
    assert "going on after epoch" in begun
    assert said == lost

    pair = Pair(tmp_path, "--resume", folder)
    pair.wait_for_an_epoch()
    pair.first.kill()
    code, (begun, said) = pair.end()
    assert code == -signal.SIGKILL
    assert "going on after epoch" in begun
    # It finds out by the broken connection, or by the parent that is gone.
    assert said in {lost, lost.replace("another process", "the first process")}
