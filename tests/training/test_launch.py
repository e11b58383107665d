"""What the watching thread does where the main thread cannot; each case in a process of its own."""

import subprocess
import sys

import pytest
import torch

from calibrant.training.launch import _is_lost_peer, _Watch, launched
from calibrant.training.lifeline import Reason
from calibrant.training.speaking import is_told

# Forked from one process, which imports torch for all of them.
_BLOCKED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from calibrant.training import launch
launch._GRACE = 0.1

def blocked(what, folder):
    os.dup2(os.open(folder / what, os.O_CREAT | os.O_WRONLY), 2)
    children = []
    if what == "child":
        children = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])]
    if what == "parent":
        os.environ["CALIBRANT_LAUNCHER"] = "1"
    watch = launch._Watch(children, folder)
    watch.start()
    # As in a collective operation, the main thread does not come to handle a signal.
    signal.signal(signal.SIGINT, lambda *_: None)
    if what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if what == "none":
        watch.stop(complete=True)
        os._exit(0)
    time.sleep(60)

for what in sys.argv[2:]:
    pid = os.fork()
    if not pid:
        blocked(what, Path(sys.argv[1]))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_a_blocked_process_is_ended_with_one_line(tmp_path):
    (tmp_path / "recipe.toml").touch()
    lost = f"of this run ended before the run did. Continue with: calibrant train --resume {tmp_path}\n"
    expected = {
        "interrupt": (130, f"calibrant: stopped; continue with: calibrant train --resume {tmp_path}\n"),
        "child": (2, f"calibrant: process 1 (exit code 7) {lost}"),
        "parent": (2, f"calibrant: the first process {lost}"),
        "none": (0, ""),
    }
    command = [sys.executable, "-c", _BLOCKED, str(tmp_path), *expected]
    codes = map(int, subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=100).stdout.split())
    said = {what: (tmp_path / what).read_text() for what in expected}
    assert dict(zip(expected, zip(codes, said.values(), strict=True), strict=True)) == expected


def test_only_torchs_word_for_a_lost_connection_counts_as_a_lost_process():
    gone = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
    assert _is_lost_peer(gone)
    assert _is_lost_peer(torch.distributed.DistBackendError("NCCL error"))
    assert not _is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_one_process_is_not_watched(tmp_path, toy_recipe):
    from calibrant.training.setup import make_fabric

    fabric = make_fabric(toy_recipe())
    with pytest.raises(RuntimeError, match="mine"), launched(fabric, tmp_path):
        raise RuntimeError("mine, about gloo")


class LateReason:
    """A lifeline on which the first process passes on what a third one told it, a moment later."""

    looks = 0

    def broken(self):
        self.looks += 1
        return self.looks > 2

    def reason(self):
        return Reason(2, "the disk is full") if self.broken() else None

    def tell(self, reason):
        return False


def test_a_process_that_was_not_told_waits_for_the_word_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    watch = object.__new__(_Watch)  # no thread: it would end this process
    watch.lifeline, watch._path = LateReason(), tmp_path
    watch.wait_for_a_reason()
    lost = watch.lost("another process")
    assert str(lost) == "process 2: the disk is full"
    assert is_told(lost)
