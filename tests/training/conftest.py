"""A small made-up problem, and processes that start at once."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.training import Recipe, Reporter, train
from calibrant.training.data import Augmentation, Dataset, Images

# Imports torch and Lightning once, then forks a process for every command: a kill test needs many of them.
_ZYGOTE = """
import json, os, signal, sys
import lightning.fabric, sklearn.datasets, torch
import calibrant.cli.train, calibrant.training.data, calibrant.training.engine
from calibrant.cli import run
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1])), flush=True)
        continue
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= job["environment"]
    for number, name in ((0, "/dev/null"), (1, job["out"]), (2, job["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    if job["largest_file"]:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file"],) * 2)
    if job["die_at"]:
        left = job["die_at"]
        def dying(real):
            def operation(*arguments, **more):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **more)
            return operation
        for name in ("replace", "unlink", "mkdir"):
            setattr(os, name, dying(getattr(os, name)))
    code = 70
    try:
        code = run(job["arguments"])
    except SystemExit as ending:
        code = ending.code
    finally:
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(code)
"""


class Child:
    """A running `calibrant` command, in a session of its own."""

    def __init__(self, zygote, pid, stem):
        self._zygote, self.pid, self._stem = zygote, pid, stem
        self._code = None

    def wait(self):
        """Wait for the end; the exit code, or minus the signal."""
        if self._code is None:
            self._code = self._zygote.ask({"wait": self.pid})
        return self._code

    def wait_at_most(self, seconds):
        """Wait for the end of the command and of all that it started; what does not end by itself fails the test."""
        ends = time.monotonic() + seconds
        try:
            while self.alive():
                assert time.monotonic() < ends, f"{self.alive()} did not end: {self.err}"
                time.sleep(0.01)
        finally:
            self.end()
        return self.wait()

    def end(self):
        """Kill what is left of the session."""
        for process in self.alive() if self._code is None else []:
            os.kill(process, signal.SIGKILL)

    def signal(self, number):
        """Send a signal."""
        os.kill(self.pid, number)

    def alive(self):
        """Processes of the session that have not ended."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:  # ended just now
                continue
            if int(words[3]) == self.pid and words[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def ranks(self):
        """Processes that the command started to train with, in the order of their ranks."""
        started = []
        for process in sorted(self.alive()):
            try:
                words = Path(f"/proc/{process}/cmdline").read_text()
            except OSError:  # ended just now
                continue
            if "spawn_main" in words:
                started.append(process)
        return started

    def listening(self):
        """Addresses at which a process of the command listens."""
        sockets = {}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    packed = bytes.fromhex(words[1].partition(":")[0])
                    # The kernel writes groups of four bytes, each in the order of this machine.
                    groups = [packed[start : start + 4] for start in range(0, len(packed), 4)]
                    if sys.byteorder == "little":
                        groups = [group[::-1] for group in groups]
                    sockets[f"socket:[{words[9]}]"] = str(ip_address(b"".join(groups)))
        found = set()
        for process in self.alive():
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    found.add(sockets.get(str(link.readlink())))
        return found - {None}

    @property
    def running(self):
        """Whether it has not ended yet."""
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"

    @property
    def out(self):
        """Standard output so far."""
        return self._stem.with_suffix(".out").read_text()

    @property
    def err(self):
        """Standard error so far."""
        return self._stem.with_suffix(".err").read_text()


class Zygote:
    """Starts `calibrant` commands as separate processes without waiting for imports."""

    def __init__(self, folder):
        self._folder, self._started = folder, []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CALIBRANT_COMMIT": "test"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, job):
        """Send one request and read its answer."""
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments, largest_file=0, terminal=None, die_at=0, environment=None):
        """Start a command.

        Args:
            arguments: What follows `calibrant`.
            environment: Variables beside those of this process.
            largest_file: The system refuses to write larger files.
            terminal: Path of one, to which standard error goes.
            die_at: The process is killed right before its so-many-th rename, removal or new folder; a kill anywhere
                between two of these leaves the same files.
        """
        name = f"child-{len(self._started)}"
        (self._folder / f"{name}.err").touch()
        job = {
            "arguments": [str(argument) for argument in arguments],
            "out": str(self._folder / f"{name}.out"),
            "err": terminal or str(self._folder / f"{name}.err"),
            "largest_file": largest_file,
            "die_at": die_at,
            "environment": environment or {},
        }
        child = Child(self, self.ask(job), self._folder / name)
        self._started.append(child)
        return child

    def stop(self):
        """End it, without waiting for the interpreter to take itself apart, and what failed tests have left."""
        for child in self._started:
            child.end()
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def children(tmp_path_factory):
    """Starts commands: `child = children.start("train", "--out", folder)`."""
    zygote = Zygote(tmp_path_factory.mktemp("children"))
    yield zygote
    zygote.stop()


def _make_toy(samples=90, tests=30, classes=3, side=6, seed=0):
    """Images whose class shows in the brightness of a third of them, with noise."""
    generator = torch.Generator().manual_seed(seed)

    def part(n):
        labels = torch.arange(n) % classes
        images = torch.randint(0, 120, (n, 1, side, side), generator=generator)
        for row, label in enumerate(labels.tolist()):
            images[row, 0, label::classes] += 60
        return Images(images.to(torch.uint8), labels)

    names = tuple(f"class {number}" for number in range(classes))
    return Dataset("toy", part(samples), part(tests), names, (0.3,), (0.2,), Augmentation(crop_padding=1, flip=True))


@pytest.fixture(scope="session")
def toy():
    """81 training, 9 validation and 30 test images of 6x6 pixels in 3 classes."""
    return _make_toy()


@pytest.fixture(scope="session")
def make_toy():
    """Makes sets like `toy` in other sizes."""
    return _make_toy


@pytest.fixture(scope="session")
def toy_recipe():
    """A quick recipe for `toy` with two prunings; dotted keys change it."""

    def make(**changes):
        base = Recipe().changed(
            {
                "epochs": 4,
                "seed": 3,
                "method.name": "flsd+h+p-ema",
                "method.options.start": 1,
                "method.options.interval": 2,
                "method.options.fraction": 0.2,
                "optimiser.batch_size": 16,
                "optimiser.lr": 0.05,
                "engine.accelerator": "cpu",
            }
        )
        return base.changed({key.replace("__", "."): value for key, value in changes.items()})

    return make


class _StopError(BaseException):
    """Stands for whatever stops a process."""


class _StopAfter(Reporter):
    def __init__(self, epoch):
        self.epoch = epoch

    def begin_epoch(self, epoch, steps):
        if epoch == self.epoch + 1:
            raise _StopError


@pytest.fixture(scope="session")
def stopped():
    """Begins a run and stops it right after an epoch was recorded; returns the folder."""

    def begin(recipe, folder, data, epoch):
        with pytest.raises(_StopError):
            train(recipe, folder, data=data, reporter=_StopAfter(epoch))
        return folder

    return begin


@pytest.fixture
def epoch_line():
    """A line of the epoch log."""

    def make(epoch, **changes):
        return {
            "epoch": epoch,
            "lr": 0.1,
            "kept": 10,
            "kept_share": 1.0,
            "samples": 10,
            "image_size": [6, 6],
            "flops": 1000.0,
            "loss": 0.5,
            "accuracy": 0.9,
            "terms": {"nll": 0.5},
            "ece": 0.1,
            "train_seconds": 1.0,
            "seconds": 1.5,
            "samples_per_second": 10.0,
            **changes,
        }

    return make


@pytest.fixture
def summary():
    """The smallest sound summary."""
    figures = {"n": 10, "test_error": 0.1, "nll": None, "ece": 0.1}
    return {
        "method": {"name": "nll", "settings": {}},
        "test": figures,
        "validation": figures,
        "best_validation": None,
        "samples_seen": 52,
        "samples_full": 60,
        "seen_share": 52 / 60,
        "environment": {"torch": "2.13.0"},
        "timing": {"train_seconds": 1.25, "seconds": 1.5},
    }


@pytest.fixture
def assert_same_run():
    """Compare two finished runs: everything but clock readings and the environment must be identical."""

    def check(one, other, *, recipe=True):
        first, second = (
            {key: value for key, value in run.summary.items() if key not in {"timing", "environment"}}
            for run in (one, other)
        )
        if not recipe:
            for summary in (first, second):
                del summary["recipe"], summary["data_path"], summary["steps_mode"]
        assert first == second
        assert _untimed(one.epochs()) == _untimed(other.epochs())
        for split in ("val", "test"):
            assert np.array_equal(one.predictions(split).logits, other.predictions(split).logits)
        weights, others = one.load_model().state_dict(), other.load_model().state_dict()
        assert all(torch.equal(weights[name], others[name]) for name in weights)

    return check


def _untimed(lines):
    clocks = {"seconds", "train_seconds", "samples_per_second"}
    return [{key: value for key, value in line.items() if key not in clocks} for line in lines]


@pytest.fixture(scope="session")
def whole(toy, toy_recipe, tmp_path_factory):
    """An undisturbed run."""
    return train(toy_recipe(), tmp_path_factory.mktemp("runs") / "whole", data=toy)
