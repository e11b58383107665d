"""Two processes that train one run: whichever is killed, all end soon, and the run can be continued exactly."""

import os
import signal
import time
from ipaddress import ip_address

import pytest

from calibrant.training import Run

_SETTINGS = [
    *("--data", "digits", "--method", "nll", "--epochs", "120", "--devices", "2"),
    *("--set", "engine.accelerator=cpu", "--set", "data.validation=0.8"),  # short epochs
]
_SECONDS = 10  # in which all processes must have ended


def in_its_epochs(launcher):
    """Wait until the run has logged an epoch; the processes that train."""
    for _ in range(12_000):
        if "\nepoch" in launcher.err:
            break
        assert launcher.running, launcher.err
        time.sleep(0.01)
    ranks = launcher.ranks()
    assert len(ranks) == 2
    return ranks


def end(launcher):
    """Wait for the end of all processes; the exit code, and the lines about anything but epochs."""
    code = launcher.wait_at_most(_SECONDS)
    return code, [line for line in launcher.err.splitlines() if not line.startswith("epoch")]


def test_killed_processes_end_the_others_and_the_run_continues_exactly(children, tmp_path, assert_same_run):
    folder = tmp_path / "run"
    hint = f"ontinue with: calibrant train --resume {folder}"

    launcher = children.start("train", *_SETTINGS, "--out", folder)
    in_its_epochs(launcher)
    addresses = launcher.listening()
    assert addresses  # the ranks do talk to each other over sockets
    assert all(ip_address(address).is_loopback for address in addresses), addresses
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
    code, lines = end(launcher)
    assert code == 130
    assert lines == ["nll on digits with tiny, 120 epochs, seed 0", f"calibrant: stopped; c{hint}"]

    for victim in (0, 1):
        launcher = children.start("train", "--resume", folder)
        os.kill(in_its_epochs(launcher)[victim], signal.SIGKILL)
        code, (begun, lost) = end(launcher)
        assert code == 2
        assert "going on after epoch" in begun
        assert lost == f"calibrant: a process (exit code -9) of this run ended before the run did. C{hint}"

    launcher = children.start("train", "--resume", folder)
    in_its_epochs(launcher)
    launcher.signal(signal.SIGKILL)
    code, lines = end(launcher)
    assert code == -signal.SIGKILL
    assert len(lines) == 1

    last = children.start("train", "--resume", folder)
    whole = children.start("train", *_SETTINGS, "--out", tmp_path / "whole")
    assert last.wait() == 0, last.err
    assert whole.wait() == 0, whole.err
    assert_same_run(Run(folder), Run(tmp_path / "whole"))


@pytest.mark.parametrize("victim", ["launcher", 0, 1])
def test_a_kill_before_the_first_epoch_leaves_no_process(children, tmp_path, victim):
    launcher = children.start("train", *_SETTINGS, "--out", tmp_path / "run")
    while len(launcher.ranks()) < 2:
        assert launcher.running, launcher.err
        time.sleep(0.01)
    os.kill(launcher.pid if victim == "launcher" else launcher.ranks()[victim], signal.SIGKILL)
    launcher.wait_at_most(3 * _SECONDS)  # a process that imports torch notices it afterwards
    # Python's own, in a process that was still waiting for its task when the launcher died.
    if victim != "launcher" or "EOFError: Ran out of input" not in launcher.err:
        assert "Traceback" not in launcher.err
