"""Runs whose checkpoints or logs are damaged or forged."""

import dataclasses
import shutil

import pytest
import torch

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.training import Reporter, resume
from calibrant.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 1
    elif how == "truncate":
        del content[len(content) // 2 :]
    else:
        content = content.replace(rb"\"epoch\": 3", rb"\"epoch\": 1")
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["flip", "truncate", "edit"])
def test_a_damaged_checkpoint_is_passed_over(whole, toy, toy_recipe, tmp_path, how, assert_same_run, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 3)
    damage(folder / "checkpoints" / "epoch-00003.safetensors", how)
    with pytest.warns(CalibrantWarning, match=r"epoch-00003\.safetensors is damaged.*The one before it is used"):
        run = resume(folder, data=toy)
    assert_same_run(run, whole)


def test_where_all_checkpoints_are_damaged_nothing_is_touched(toy, toy_recipe, tmp_path, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 3)
    for path in (folder / "checkpoints").glob("*.safetensors"):
        damage(path, "flip")
    log = (folder / "metrics.jsonl").read_bytes()
    with (
        pytest.warns(CalibrantWarning, match="damaged"),
        pytest.raises(
            InvalidInput, match=r"none of the 2 checkpoints .* delete that folder to train from the beginning"
        ),
    ):
        resume(folder, data=toy)
    assert (folder / "metrics.jsonl").read_bytes() == log
    shutil.rmtree(folder / "checkpoints")
    assert resume(folder, data=toy).finished


def test_a_torn_log_and_the_drafts_of_a_kill_are_cleared(whole, toy, toy_recipe, tmp_path, assert_same_run, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 2)
    with (folder / "metrics.jsonl").open("a") as log:
        log.write('{"epoch": 3, "loss": 0.1}\n{"epoch": 4, "lo')
    checkpoints = folder / "checkpoints"
    (checkpoints / ".epoch-00003.safetensors.99.tmp").write_bytes(b"half")
    run = resume(folder, data=toy)
    assert_same_run(run, whole)
    assert {path.name for path in checkpoints.iterdir()} == {"epoch-00003.safetensors", "epoch-00004.safetensors"}


@pytest.mark.parametrize(("old", "new"), [(b'{"epoch": 1', b'["epoch": 1'), (b"train_seconds", b"train_sekonds")])
def test_a_damaged_log_is_refused_before_any_training(toy, toy_recipe, tmp_path, stopped, old, new):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 2)
    log = folder / "metrics.jsonl"
    log.write_bytes(log.read_bytes().replace(old, new, 1))
    before = log.read_bytes()

    class NoTraining(Reporter):
        def begin_epoch(self, epoch, steps):
            pytest.fail("trained")

    with pytest.raises(InvalidInput, match=r"metrics\.jsonl, line 1, is damaged"):
        resume(folder, data=toy, reporter=NoTraining())
    assert log.read_bytes() == before


def forge(folder, change):
    """Change the newest checkpoint's tensors and keep its digests right, as no damaged disk would."""
    path = max((folder / "checkpoints").glob("*.safetensors"))
    checkpoint = load_checkpoint(path)
    change(checkpoint)
    save_checkpoint(path.parent, checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.tensors.update({"model.strange": torch.zeros(1)}),
        lambda c: c.tensors.update({"nobody.strange": torch.zeros(1)}),
        lambda c: c.tensors.update({"strange": torch.zeros(1)}),
        lambda c: c.tensors.update({"optimiser.x.momentum_buffer": torch.zeros(1)}),
        lambda c: c.tensors.update({"pruner.rows": torch.zeros(3)}),
        lambda c: c.tensors.pop("pruner.rows"),
        lambda c: c.values["pruner"].pop("settings"),
        lambda c: c.values["pruner"].update(settings=5),
        lambda c: c.values["pruner"].clear(),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_run_is_one_line(toy, toy_recipe, tmp_path, stopped, change):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 1)
    forge(folder, change)
    with pytest.raises(InvalidInput, match=r"checkpoint epoch-00001\.safetensors does not fit the recipe and the data"):
        resume(folder, data=toy)


def test_a_checkpoint_beyond_the_last_epoch_is_refused(toy, toy_recipe, tmp_path, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 1)
    save_checkpoint(folder / "checkpoints", dataclasses.replace(newest_checkpoint(folder / "checkpoints"), epoch=5))
    with pytest.raises(InvalidInput, match="is not of this run of 4 epochs"):
        resume(folder, data=toy)
