"""Tasks as srun starts them: real processes with Slurm's variables, on one machine, without Slurm."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from calibrant.training import Run
from calibrant.training.checkpoint import newest_checkpoint


class Step:
    """The tasks of a job step, each with an error stream of its own."""

    def __init__(self, folder, tasks, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        step = {"SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
        step |= {"SLURM_STEP_TASKS_PER_NODE": str(tasks), "SLURM_NTASKS": str(tasks), "MASTER_PORT": port}
        self._files = [folder / f"err-{tasks}-{rank}.txt" for rank in range(tasks)]
        self.tasks = []
        for rank, file in enumerate(self._files):
            mine = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "OMP_NUM_THREADS": "1"}
            with file.open("w") as err:
                command = [sys.executable, "-m", "calibrant", "train", *map(str, arguments)]
                environment = {**os.environ, **step, **mine}
                self.tasks.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=environment))

    def said(self, rank):
        return self._files[rank].read_text()

    def end(self, seconds=300):
        """Exit codes; a task that does not end by itself fails the test."""
        try:
            return [task.wait(seconds) for task in self.tasks]
        finally:
            for task in self.tasks:
                task.kill()


@pytest.fixture(scope="module")
def settings(make_toy, tmp_path_factory):
    """108 samples in batches of 53, which neither two nor three tasks divide; of the last two some tasks get none."""
    folder, toy = tmp_path_factory.mktemp("toy"), make_toy(samples=120)
    arrays = {"x_train": toy.train.images[:, 0].numpy(), "y_train": toy.train.labels.numpy()}
    arrays |= {"x_test": toy.test.images[:, 0].numpy(), "y_test": toy.test.labels.numpy()}
    np.savez(folder / "toy.npz", **arrays)
    return [
        *("--data", f"arrays:{folder}/toy.npz", "--model", "tiny", "--method", "flsd+h+p-ema", "--accelerator", "cpu"),
        *(
            "--prune-start",
            "2",
            "--prune-interval",
            "2",
            "--batch-size",
            "53",
            "--precision",
            "64-true",
            "--lr",
            "0.05",
        ),
        *("--set", "balance=sampler", "--set", "data.crop=1"),
    ]


def assert_equal_but_for_rounding(run, expected):
    assert [line["kept"] for line in run.epochs()] == [line["kept"] for line in expected.epochs()]
    assert run.summary["samples_seen"] == expected.summary["samples_seen"]
    state, other = (newest_checkpoint(each.checkpoints).tensors for each in (run, expected))
    for name, value in other.items():
        if name.startswith(("model.", "optimiser.")):
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-9)
    for split in ("val", "test"):
        assert np.abs(run.predictions(split).logits - expected.predictions(split).logits).max() < 1e-9


def test_a_run_goes_on_with_any_number_of_processes_to_the_numbers_of_one(children, settings, tmp_path):
    one = children.start("train", *settings, "--epochs", "4", "--out", tmp_path / "one")
    two = Step(tmp_path, 2, *settings, "--epochs", "4", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert two.end() == [0, 0], two.said(0)
    assert "flsd+h+p-ema on arrays" in two.said(0)
    assert "flsd+h+p-ema on arrays" not in two.said(1)  # only the first task tells about the run
    expected, run = Run.open(tmp_path / "one"), Run.open(tmp_path / "two")
    assert_equal_but_for_rounding(run, expected)
    for name in ("alone", "three"):
        shutil.copytree(run.path, tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
        (tmp_path / name / "checkpoints" / "epoch-00004.json").unlink()
    alone = children.start("train", "--resume", tmp_path / "alone", "--devices", "1")
    three = Step(tmp_path, 3, "--resume", tmp_path / "three")
    assert alone.wait() == 0, alone.err
    assert three.end() == [0, 0, 0], three.said(0)
    assert "going on after epoch 3" in three.said(0)
    for name in ("alone", "three"):
        assert_equal_but_for_rounding(Run.open(tmp_path / name), expected)


@pytest.mark.parametrize("lost", [1])
def test_a_task_that_dies_ends_the_others_with_one_line(settings, tmp_path, lost):
    step = Step(tmp_path, 2, *settings, "--epochs", "2000", "--out", tmp_path / "run")
    for _ in range(30_000):
        if "epoch" in step.said(0):
            break
        assert step.tasks[0].poll() is None, step.said(0)
        time.sleep(0.01)
    step.tasks[lost].send_signal(signal.SIGKILL)
    codes = step.end(60)
    assert codes[lost] == -signal.SIGKILL
    assert codes[1 - lost] == 2
    line = step.said(1 - lost).splitlines()[-1]
    assert line.startswith("calibrant: another process of this run ended before the run did. Continue with: ")
    assert "Traceback" not in step.said(1 - lost)
