"""Real processes: killed, interrupted, short of disk, two at once, several together."""

import itertools
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from calibrant.training import Recipe, Run
from calibrant.training.checkpoint import newest_checkpoint

_DIGITS = [
    *(
        "--data",
        "digits",
        "--method",
        "flsd+h+p-ema",
        "--epochs",
        "6",
        "--seed",
        "3",
        "--set",
        "engine.accelerator=cpu",
    ),
    *("--set", "method.options.start=2", "--set", "method.options.interval=2"),
]


def wait_until(condition, child, what):
    """Poll; a child that ends first, or a minute without it, is a failure."""
    for _ in range(6000):
        if condition():
            return
        assert child.running, f"ended before {what}: {child.err}"
        time.sleep(0.01)
    pytest.fail(f"a minute passed without {what}")


@pytest.fixture(scope="module")
def whole(children, tmp_path_factory):
    """An undisturbed run on the digits, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    started = time.monotonic()
    child = children.start("train", *_DIGITS, "--out", folder, "--json")
    assert child.wait() == 0, child.err
    assert '"test_error"' in child.out
    return Run(folder), time.monotonic() - started


def test_kill_minus_nine_at_random_moments_changes_no_number(children, whole, tmp_path, assert_same_run):
    folder, (undisturbed, seconds) = tmp_path / "run", whole
    # With a loader process, which outlives its parent for seconds: it must not hold on to the folder.
    settings = [*_DIGITS, "--set", "engine.data_path=loader", "--set", "engine.workers=1", "--out", folder]
    draw, kills = random.Random(7), []
    while len(kills) < 3:
        begun = (folder / "recipe.toml").is_file()
        child = children.start("train", *(["--resume", folder] if begun else settings))
        delay = draw.uniform(0.1, 0.5) * seconds
        time.sleep(delay)
        if not child.running:
            # Quicker than thought: the folder is finished, and the next life begins a new one.
            assert child.wait() == 0, child.err
            shutil.rmtree(folder)
            continue
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        kills.append(delay)
    begun = (folder / "recipe.toml").is_file()
    last = children.start("train", *(["--resume", folder] if begun else settings))
    assert last.wait() == 0, last.err
    assert_same_run(Run(folder), undisturbed, recipe=False)
    assert not list(folder.rglob("*.tmp"))


def test_a_kill_before_each_single_file_operation_changes_no_number(children, toy, tmp_path, assert_same_run):
    arrays = {"x_train": toy.train.images[:, 0].numpy(), "y_train": toy.train.labels.numpy()}
    arrays |= {"x_test": toy.test.images[:, 0].numpy(), "y_test": toy.test.labels.numpy()}
    np.savez(tmp_path / "toy.npz", **arrays)
    settings = [
        *("--data", f"arrays:{tmp_path}/toy.npz", "--model", "tiny", "--method", "flsd+h+p-ema", "--epochs", "3"),
        *(
            "--set",
            "method.options.start=1",
            "--set",
            "method.options.interval=1",
            "--set",
            "optimiser.batch_size=32",
            "--set",
            "engine.accelerator=cpu",
        ),
    ]
    whole = children.start("train", *settings, "--out", tmp_path / "whole")
    assert whole.wait() == 0, whole.err
    survived = 0
    for number in itertools.count(1):
        folder = tmp_path / f"run-{number}"
        child = children.start("train", *settings, "--out", folder, die_at=number)
        if child.wait() == 0:
            break
        begun = (folder / "recipe.toml").is_file()
        child = children.start("train", *(["--resume", folder] if begun else [*settings, "--out", folder]))
        assert child.wait() == 0, f"operation {number}: {child.err}"
        assert_same_run(Run(folder), Run(tmp_path / "whole"))
        assert not list(folder.rglob("*.tmp"))
        survived += 1
    # New folders, recipe, log, three checkpoints of which one is removed, predictions, pruning, summary.
    assert survived > 30


def test_interrupts_a_second_process_and_a_finished_run_are_one_line_each(children, whole, tmp_path, assert_same_run):
    folder = tmp_path / "run"
    child = children.start("train", *_DIGITS, "--out", folder)
    # The log of the second epoch means that the first one is saved.
    wait_until(lambda: len(Run(folder, Recipe()).epochs()) >= 2, child, "the second epoch")
    # While it runs nobody else may write there: neither a second resume nor a new run.
    child.signal(signal.SIGSTOP)
    second = children.start("train", "--resume", folder)
    assert second.wait() == 2
    assert second.err.splitlines()[-1].endswith(
        "is being written by another process. Wait for it, or choose another folder."
    )
    third = children.start("train", *_DIGITS, "--out", folder)
    assert third.wait() == 2
    assert "which holds something" in third.err
    child.signal(signal.SIGCONT)

    child.signal(signal.SIGINT)
    assert child.wait() == 130
    assert child.err.splitlines()[-1] == f"calibrant: stopped; continue with: calibrant train --resume {folder}"
    assert "Traceback" not in child.err

    going_on = children.start("train", "--resume", folder)
    assert going_on.wait() == 0, going_on.err
    assert "going on after epoch" in going_on.err
    assert_same_run(Run(folder), whole[0])
    again = children.start("train", "--resume", folder)
    assert again.wait() == 0
    assert again.err == f"calibrant: run {folder} is finished already: nothing to do\n"


def test_a_file_that_cannot_grow_is_one_line_and_the_run_goes_on(children, whole, tmp_path, assert_same_run):
    folder = tmp_path / "run"
    # The system itself refuses to write more than 100 kB into a file: the first checkpoint is larger.
    child = children.start("train", *_DIGITS, "--out", folder, largest_file=100_000)
    assert child.wait() == 2
    assert child.err.splitlines()[-1].startswith(
        f"calibrant: cannot write {folder}/checkpoints/epoch-00001.safetensors."
    )
    assert "Traceback" not in child.err
    assert list((folder / "checkpoints").iterdir()) == []
    going_on = children.start("train", "--resume", folder)
    assert going_on.wait() == 0, going_on.err
    assert_same_run(Run(folder), whole[0])


def test_a_folder_without_permission_is_one_line(children, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.access(locked, os.W_OK):
        # Root may write everywhere but here.
        locked = "/proc/self"
    child = children.start("train", *_DIGITS, "--out", f"{locked}/run")
    assert child.wait() == 2
    assert child.err.count("\n") == 1
    assert child.err.startswith(f"calibrant: cannot write {locked}/run.")


# Several processes.


def assert_equal_but_for_rounding(run, expected, tolerance):
    """Weights and losses agree to the tolerance; who was kept, and what was counted, agrees exactly."""
    assert [line["kept"] for line in run.epochs()] == [line["kept"] for line in expected.epochs()]
    assert run.epochs()[-1]["loss"] == pytest.approx(expected.epochs()[-1]["loss"], rel=tolerance)
    assert run.summary["samples_seen"] == expected.summary["samples_seen"]
    state, other = (newest_checkpoint(each.checkpoints) for each in (run, expected))
    for name, value in other.tensors.items():
        if name.startswith(("model.", "optimiser.")):
            torch.testing.assert_close(state.tensors[name], value, rtol=tolerance, atol=tolerance)
    for name in ("pruner.kept_mask", "pruner.left", "pruner.history"):
        assert torch.equal(state.tensors[name], other.tensors[name])
    torch.testing.assert_close(state.tensors["pruner.rows"], other.tensors["pruner.rows"], rtol=0, atol=1e-6)
    assert np.allclose(run.predictions("test").logits, expected.predictions("test").logits, atol=1e2 * tolerance)


def test_two_processes_equal_one_on_the_digits(children, tmp_path):
    """float64, 4 epochs with a pruning after the first and the third, weights of the last two averaged.

    At the second pruning what rests is scored, by each process a part, and may return. The last
    batch does not divide by two.
    """
    settings = [
        *("--data", "digits", "--method", "flsd+h+p-ema", "--epochs", "4", "--set", "engine.accelerator=cpu"),
        *(
            "--set",
            "method.options.start=1",
            "--set",
            "method.options.interval=2",
            "--set",
            "engine.precision=64-true",
            "--set",
            "optimiser.lr=0.05",
        ),
        *("--set", "schedule.average=0.5"),
        *("--set", "method.options.readmit=true", "--set", "method.options.scoring=resting"),
    ]
    one = children.start("train", *settings, "--out", tmp_path / "one")
    two = children.start("train", *settings, "--devices", "2", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert two.wait() == 0, two.err
    assert two.out.count("test error") == 1
    expected = Run(tmp_path / "one")
    assert expected.summary["samples_scored"] > 0
    assert_equal_but_for_rounding(Run(tmp_path / "two"), expected, tolerance=1e-10)


def test_two_processes_equal_one_with_an_adaptive_loss(children, make_toy, tmp_path):
    """Only the first process validates; the exponents of the others follow it."""
    toy = make_toy(samples=120)
    arrays = {"x_train": toy.train.images[:, 0].numpy(), "y_train": toy.train.labels.numpy()}
    arrays |= {"x_test": toy.test.images[:, 0].numpy(), "y_test": toy.test.labels.numpy()}
    np.savez(tmp_path / "toy.npz", **arrays)
    settings = [
        *("--data", f"arrays:{tmp_path}/toy.npz", "--model", "tiny", "--method", "adafocal", "--epochs", "3"),
        *(
            "--set",
            "optimiser.batch_size=36",
            "--set",
            "engine.accelerator=cpu",
            "--set",
            "engine.precision=64-true",
            "--set",
            "optimiser.lr=0.05",
        ),
        *("--set", "method.options.adafocal_bins=3", "--set", "method.options.adafocal_switch=0.9"),
    ]
    one = children.start("train", *settings, "--out", tmp_path / "one")
    two = children.start("train", *settings, "--devices", "2", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert two.wait() == 0, two.err
    expected = Run(tmp_path / "one")
    assert_equal_but_for_rounding(Run(tmp_path / "two"), expected, tolerance=1e-9)


@pytest.mark.real_data
def test_two_processes_equal_one_on_real_images(children, real_data_dir, tmp_path):
    """A thousand images of CIFAR-100. ResNet-32 would take minutes, and the small network shows the same."""
    with np.load(real_data_dir / "cifar100.npz") as arrays:
        rows = np.arange(0, 50_000, 50)
        part = {name: arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")}
        np.savez(
            tmp_path / "part.npz",
            x_train=part["x_train"][rows],
            y_train=part["y_train"][rows],
            x_test=part["x_test"][:200],
            y_test=part["y_test"][:200],
        )
    settings = [
        *("--data", f"arrays:{tmp_path}/part.npz", "--model", "tiny", "--method", "flsd+h+p-ema", "--epochs", "2"),
        *(
            "--set",
            "method.options.start=1",
            "--set",
            "method.options.fraction=0.2",
            "--set",
            "optimiser.batch_size=128",
            "--set",
            "engine.accelerator=cpu",
        ),
        *("--set", "engine.precision=64-true"),
    ]
    one = children.start("train", *settings, "--out", tmp_path / "one")
    two = children.start("train", *settings, "--devices", "2", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert two.wait() == 0, two.err
    assert_equal_but_for_rounding(Run(tmp_path / "two"), Run(tmp_path / "one"), tolerance=1e-10)
