"""Connected processes, forked from one that has imported torch, none of which ever speaks to gloo."""

import ast
import socket
import subprocess
import sys

import pytest

from calibrant.training.lifeline import Lifeline, Reason, _accepted, _read_reason

_PROCESSES = """
import os, signal, socket, sys, time
from pathlib import Path
import torch.distributed
from calibrant.training import launch
from calibrant.training.lifeline import Lifeline

launch._GRACE = 0.1

def process(rank, n, folder, complete):
    watch = launch._Watch([], folder)
    watch.start()
    watch.lifeline = Lifeline(rank, n)
    (folder / f"connected-{rank}").touch()
    if complete:
        # The last process is slow to leave.
        time.sleep(1.0 if rank == n - 1 else 0.0)
        watch.stop(complete=True)
        os._exit(0)
    # As in a collective operation that waits for a process that is gone.
    time.sleep(60)
    os._exit(5)

for n, victim in ((2, 0), (2, 1), (4, 0), (4, 2), (3, None)):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    folder = Path(sys.argv[1], f"{n}-{victim}")
    folder.mkdir()
    started = []
    for rank in range(n):
        started.append(os.fork())
        if not started[-1]:
            process(rank, n, folder, victim is None)
    while len(list(folder.iterdir())) < n:
        time.sleep(0.01)
    if victim is not None:
        os.kill(started[victim], signal.SIGKILL)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started])
"""


def test_a_process_that_is_killed_ends_the_others_and_one_that_says_goodbye_does_not(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", _PROCESSES, str(tmp_path)], capture_output=True, text=True, check=True, timeout=200
    )
    codes = [ast.literal_eval(line) for line in ended.stdout.splitlines()]
    assert codes == [[-9, 2], [2, -9], [-9, 2, 2, 2], [2, 2, -9, 2], [0, 0, 0]]
    assert ended.stderr.splitlines() == ["calibrant: another process of this run ended before the run did."] * 8


@pytest.mark.parametrize(("said", "reason"), [
    (b"12 it is full", Reason(12, "it is full")),
    (b"1 caf\xc3", Reason(1, "caf\ufffd")),  # cut off within a letter
    (b"", None),
    (b"\xff\xff nonsense", None),
])  # fmt: skip
def test_last_words_are_read_to_their_end(said, reason):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(said)
        there.shutdown(socket.SHUT_WR)
        assert _read_reason(here) == reason


def test_a_stranger_is_no_process_of_the_run():
    token = b"t" * 16
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent, wrong, right = (socket.create_connection(server.getsockname()) for _ in range(3))
        silent.close()
        wrong.sendall(b"x" * 16)
        right.sendall(token)
        (accepted,) = _accepted(server, token, 1)
        assert accepted.getpeername() == right.getsockname()
    for each in (accepted, wrong, right):
        each.close()


def test_a_process_whose_torchrun_is_gone_does_not_wait_for_it(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for key, value in place.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ConnectionRefusedError):
        Lifeline(1, 2)
