"""What the watching thread does where the main thread cannot; each case in a process of its own."""

import json
import subprocess
import sys

import pytest
import torch

from calibrant.data import Unreadable
from calibrant.errors import CalibrantError, InvalidInput
from calibrant.training.launch import (
    _TOLD,
    ProcessLost,
    _is_lost_peer,
    _Watch,
    first_process_speaks,
    is_first_process,
    launched,
    stopped_message,
)
from calibrant.training.lifeline import Reason

_BLOCKED = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from calibrant.training import launch
launch._GRACE = 0.1
children = []
if sys.argv[1] == "child":
    children = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])]
if sys.argv[1] == "parent":
    os.environ["CALIBRANT_LAUNCHER"] = "1"
watch = launch._Watch(children, Path(sys.argv[2]))
watch.start()
# As in a collective operation, the main thread does not come to handle a signal.
signal.signal(signal.SIGINT, lambda *_: None)
if sys.argv[1] == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
if sys.argv[1] == "none":
    watch.stop(complete=True)
    sys.exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("interrupt", 130, "stopped; continue with: calibrant train --resume {}"),
        ("child", 2, "process 1 (exit code 7) of this run ended before the run did. Continue with: calibrant"),
        ("parent", 2, "the first process of this run ended before the run did. Continue with: calibrant"),
        ("none", 0, ""),
    ],
)
def test_a_blocked_process_is_ended_with_one_line(tmp_path, what, code, message):
    (tmp_path / "recipe.toml").touch()
    ended = subprocess.run(
        [sys.executable, "-c", _BLOCKED, what, str(tmp_path)], capture_output=True, text=True, check=False, timeout=50
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.count("\n") == (1 if message else 0)
    assert ended.stderr.startswith(f"calibrant: {message.format(tmp_path)}" if message else "")


def test_only_torchs_word_for_a_lost_connection_counts_as_a_lost_process():
    gone = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
    assert _is_lost_peer(gone)
    assert _is_lost_peer(torch.distributed.DistBackendError("NCCL error"))
    assert not _is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_the_way_out_is_told_only_where_there_is_a_run(tmp_path):
    assert stopped_message(tmp_path) == "stopped before anything was written"
    (tmp_path / "recipe.toml").touch()
    assert stopped_message(tmp_path).endswith(f"--resume {tmp_path}")


@pytest.mark.parametrize(
    ("environment", "first"), [({}, True), ({"LOCAL_RANK": "1"}, False), ({"RANK": "0", "LOCAL_RANK": "1"}, True)]
)
def test_the_first_process_is_told_by_its_environment(monkeypatch, environment, first):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() is first


def test_one_process_is_not_watched(tmp_path, toy_recipe):
    from calibrant.training.setup import make_fabric

    fabric = make_fabric(toy_recipe())
    with pytest.raises(RuntimeError, match="mine"), launched(fabric, tmp_path):
        raise RuntimeError("mine, about gloo")


@pytest.mark.parametrize(("rank", "error", "raised"), [
    ("0", InvalidInput, InvalidInput),
    ("1", InvalidInput, SystemExit),
    ("1", ProcessLost, ProcessLost),
    ("1", Unreadable, Unreadable),
])  # fmt: skip
def test_a_process_beside_the_first_speaks_of_what_it_alone_knows(rank, error, raised, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(raised), first_process_speaks():
        raise error("bad")


@pytest.mark.parametrize("error", [InvalidInput, ProcessLost, Unreadable, OSError])
def test_what_the_first_process_was_told_is_said_by_it_alone(error, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    told = error("bad")
    told.add_note(_TOLD)
    with pytest.raises(SystemExit), first_process_speaks():
        raise told


def test_a_process_that_we_started_says_which_one_it_is(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("CALIBRANT_LAUNCHER", "1")
    with pytest.raises(CalibrantError, match=r"^process 3: bad$"), first_process_speaks():
        raise InvalidInput("bad")


def test_torchrun_finds_the_cause_and_takes_a_lost_process_for_its_consequence(tmp_path, monkeypatch):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {}
    for rank, error in ((0, ProcessLost("another process ended")), (1, InvalidInput("seed must\nbe the same"))):
        place = tmp_path / f"{rank}.json"
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(place))
        with pytest.raises((ProcessLost, SystemExit)), first_process_speaks():
            raise error
        assert json.loads(place.read_text())
        failures[rank] = ProcessFailure(local_rank=rank, pid=1, exitcode=2, error_file=str(place))
    *_, last, _ = str(ChildFailedError("calibrant", failures)).splitlines()
    assert last == "  traceback : calibrant: seed must be the same"


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
    assert lost.__notes__ == [_TOLD]
