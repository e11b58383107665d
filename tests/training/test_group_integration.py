"""Processes that another launcher started: real ones, with the variables of torchrun."""

import shutil
import signal
import time

import numpy as np
import pytest
import torch

from calibrant.training import Run
from calibrant.training.checkpoint import newest_checkpoint


@pytest.fixture(scope="module")
def settings(make_toy, tmp_path_factory):
    """108 samples in batches of 53, which neither two nor three tasks divide; of the last two some tasks get none."""
    folder, toy = tmp_path_factory.mktemp("toy"), make_toy(samples=120)
    arrays = {"x_train": toy.train.images[:, 0].numpy(), "y_train": toy.train.labels.numpy()}
    arrays |= {"x_test": toy.test.images[:, 0].numpy(), "y_test": toy.test.labels.numpy()}
    np.savez(folder / "toy.npz", **arrays)
    return [
        *(
            "--data",
            f"arrays:{folder}/toy.npz",
            "--model",
            "tiny",
            "--method",
            "flsd+h+p-ema",
            "--set",
            "engine.accelerator=cpu",
        ),
        *(
            "--set",
            "method.options.start=2",
            "--set",
            "method.options.interval=2",
            "--set",
            "optimiser.batch_size=53",
            "--set",
            "engine.precision=64-true",
            "--set",
            "optimiser.lr=0.05",
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
    two = children.step(2, "train", *settings, "--epochs", "4", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert [task.wait_at_most(300) for task in two] == [0, 0], two[0].err
    assert "flsd+h+p-ema on arrays" in two[0].err
    assert "flsd+h+p-ema on arrays" not in two[1].err  # only the first task tells about the run
    expected, run = Run(tmp_path / "one"), Run(tmp_path / "two")
    assert_equal_but_for_rounding(run, expected)
    for name in ("alone", "three"):
        shutil.copytree(run.path, tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
        (tmp_path / name / "checkpoints" / "epoch-00004.safetensors").unlink()
    alone = children.start("train", "--resume", tmp_path / "alone", "--devices", "1")
    three = children.step(3, "train", "--resume", tmp_path / "three")
    assert alone.wait() == 0, alone.err
    assert [task.wait_at_most(300) for task in three] == [0, 0, 0], three[0].err
    assert "going on after epoch 3" in three[0].err
    for name in ("alone", "three"):
        assert_equal_but_for_rounding(Run(tmp_path / name), expected)


def test_a_task_that_dies_ends_the_others(children, settings, tmp_path):
    tasks = children.step(3, "train", *settings, "--epochs", "2000", "--out", tmp_path / "run")
    for _ in range(30_000):
        if "epoch 1/" in tasks[0].err:
            break
        assert tasks[0].running, tasks[0].err
        time.sleep(0.01)
    tasks[1].signal(signal.SIGKILL)
    codes = [task.wait_at_most(60) for task in tasks]
    assert codes == [2, -signal.SIGKILL, 2]
    for task in (tasks[0], tasks[2]):
        line = task.err.splitlines()[-1]
        assert line.startswith("calibrant: another process of this run ended before the run did. Continue with: ")
        assert "Traceback" not in task.err


def test_tasks_with_different_recipes_are_refused(children, settings, tmp_path):
    seeds = [["--seed", 0], ["--seed", 0], ["--seed", 1]]
    tasks = children.step(3, "train", *settings, "--epochs", "4", "--out", tmp_path / "run", of_each=seeds)
    assert [task.wait_at_most(300) for task in tasks] == [2, 2, 2]
    refused = "calibrant: seed must be the same in all processes of a run, got 0 in process 0 and 1 in process 2"
    for task in tasks:
        assert task.err.splitlines()[-1].startswith(refused)
    assert not (tmp_path / "run").exists()


def test_a_task_whose_torchrun_was_killed_before_it_started_ends(children, settings, tmp_path):
    # The port is free: nothing serves it any more.
    gone = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    tasks = children.step(2, "train", *settings, "--epochs", "4", "--out", tmp_path / "run", environment=gone)
    assert [task.wait_at_most(60) for task in tasks] == [2, 2]
    assert tasks[0].err.splitlines()[-1] == "calibrant: torchrun of this run ended before the run did."
    assert not (tmp_path / "run").exists()
