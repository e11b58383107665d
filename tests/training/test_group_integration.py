"""Several processes train like one, and a run can go on with another number of them."""

import shutil

import numpy as np
import pytest
import torch

from calibrant.training import Run
from calibrant.training.checkpoint import newest_checkpoint


@pytest.fixture(scope="module")
def settings(make_toy, tmp_path_factory):
    """108 samples in batches of 53, which neither two nor three processes divide; of the last two some get none."""
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
    two = children.start("train", *settings, "--epochs", "4", "--devices", "2", "--out", tmp_path / "two")
    assert one.wait() == 0, one.err
    assert two.wait() == 0, two.err
    assert two.err.count("flsd+h+p-ema on arrays") == 1  # only the first process tells about the run
    expected, run = Run(tmp_path / "one"), Run(tmp_path / "two")
    assert_equal_but_for_rounding(run, expected)
    for name in ("alone", "three"):
        shutil.copytree(run.path, tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
        (tmp_path / name / "checkpoints" / "epoch-00004.safetensors").unlink()
    alone = children.start("train", "--resume", tmp_path / "alone", "--devices", "1")
    three = children.start("train", "--resume", tmp_path / "three", "--devices", "3")
    assert alone.wait() == 0, alone.err
    assert three.wait() == 0, three.err
    assert "going on after epoch 3" in three.err
    for name in ("alone", "three"):
        assert_equal_but_for_rounding(Run(tmp_path / name), expected)
