import dataclasses
import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.errors import CalibrantError, InvalidInput, OutputError
from calibrant.pruning import load_audit
from calibrant.training import Recipe, Reporter, Run, TrainingDiverged, paper_recipe, resume, train, train_or_resume
from calibrant.training.engine import state_of


def test_a_run_folder_holds_what_the_design_says(whole, toy, toy_recipe):
    assert {path.name for path in whole.path.iterdir()} == {
        *("recipe.toml", "metrics.jsonl", "checkpoints", "predictions", "summary.json", "pruning.npz"),
        *("policy.json", ".lock"),
    }
    summary, lines = whole.summary, whole.epochs()
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert [line["kept"] for line in lines] == [81, 66, 66, 54]
    assert summary["samples_seen"] == 81 + 66 + 66 + 54
    assert summary["samples_full"] == 4 * 81
    assert Run(whole.path).recipe == toy_recipe()
    test = whole.predictions("test")
    assert test.targets.tolist() == toy.test.labels.tolist()
    assert summary["test"]["test_error"] == pytest.approx(1 - test.correct.mean())
    assert load_audit(whole.path / "pruning.npz").kept.sum() == 54
    # The saved weights are those that made the predictions.
    images = (toy.test.images.float() / 255 - 0.3) / 0.2
    logits = whole.load_model()(images).detach()
    torch.testing.assert_close(logits, torch.tensor(test.logits, dtype=logits.dtype), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 4])
def test_a_run_stopped_anywhere_ends_with_the_same_numbers(
    whole, toy, toy_recipe, tmp_path, epoch, assert_same_run, stopped
):
    folder = tmp_path / "part"
    if epoch == 4:
        # Killed after the last epoch, before the summary.
        shutil.copytree(whole.path, folder)
        (folder / "summary.json").unlink()
    else:
        stopped(toy_recipe(), folder, toy, epoch)
    assert not Run(folder).finished
    assert_same_run(resume(folder, data=toy), whole)


def test_rare_checkpoints_and_evaluations_change_no_number(whole, toy, toy_recipe, tmp_path, stopped):
    recipe = toy_recipe(engine__checkpoint_every=3, engine__evaluate_every=2)
    folder = stopped(recipe, tmp_path / "rare", toy, 2)
    # Nothing was saved yet: the two epochs are trained again, and logged once.
    assert not list((folder / "checkpoints").glob("*"))
    run = resume(folder, data=toy)
    assert [line["epoch"] for line in run.epochs()] == [1, 2, 3, 4]
    assert ["validation" in line for line in run.epochs()] == [False, True, False, True]
    assert run.summary["test"] == whole.summary["test"]


def test_adam_goes_on_where_it_was(toy, toy_recipe, tmp_path, assert_same_run, stopped):
    recipe = toy_recipe(optimiser__name="adamw", optimiser__lr=0.003)
    whole = train(recipe, tmp_path / "whole", data=toy)
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)


_DROPOUT = """
from torch import nn

def network(*, n_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, n_classes))
"""


def test_a_networks_own_randomness_goes_on_where_it_was(
    toy, toy_recipe, tmp_path, own_module, assert_same_run, stopped
):
    own_module("dropout_network", _DROPOUT)
    recipe = toy_recipe(model__name="dropout_network:network")
    state = torch.get_rng_state()
    whole = train(recipe, tmp_path / "whole", data=toy)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_trains_on_the_same_pixels_as_the_resident_set(
    whole, toy, toy_recipe, tmp_path, workers, assert_same_run
):
    recipe = toy_recipe(engine__data_path="loader", engine__workers=workers)
    run = train(recipe, tmp_path / "loader", data=toy)
    assert run.summary["data_path"] == "loader"
    assert whole.summary["data_path"] == "resident"
    assert_same_run(run, whole, recipe=False)


def test_the_plan_without_a_huber_term_is_the_one_whose_term_weighs_nothing(toy, toy_recipe, tmp_path):
    # results/ holds runs of the second; `fl+unbiased` names the first.
    options = {"gamma": 0.25, "huber_weight": 0.0, "share": 0.8, "drop": 0.58}
    same = {"fl+unbiased": {}, "fl+h+unbiased": options}
    runs = [
        train(toy_recipe(method__name=name, method__options=given), tmp_path / name, data=toy)
        for name, given in same.items()
    ]
    first, second = (run.predictions("test").logits for run in runs)
    np.testing.assert_array_equal(first, second)


def test_other_seeds_give_other_runs(whole, toy, toy_recipe, tmp_path):
    other = train(toy_recipe(seed=4), tmp_path / "other", data=toy)
    assert other.summary["test"]["nll"] != whole.summary["test"]["nll"]


def test_a_finished_run_is_returned_as_it_is(whole, toy):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")}
    assert resume(whole.path, data=toy).summary == whole.summary
    assert {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")} == before


# What goes wrong.


def test_a_run_that_another_process_took_over_is_left_alone(toy, toy_recipe, tmp_path, monkeypatch):
    """`train` is suspended after it made the folder; `--resume` starts meanwhile and holds the lock."""

    def busy(run):
        raise InvalidInput("run is being written by another process.")

    real = Run.create

    def create(*arguments):
        run = real(*arguments)
        monkeypatch.setattr(Run, "locked", busy)
        return run

    monkeypatch.setattr(Run, "create", create)
    with pytest.raises(InvalidInput, match="another process"):
        train(toy_recipe(), tmp_path / "run", data=toy)
    monkeypatch.undo()
    assert resume(tmp_path / "run", data=toy).finished


def test_settings_that_were_edited_after_the_run_began_are_refused(toy, toy_recipe, tmp_path, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 1)
    path = folder / "recipe.toml"
    Recipe.load(path).changed({"optimiser.lr": 0.07, "model.views": "mirror"}).save(path)
    with pytest.raises(InvalidInput, match=r"began with optimiser\.lr = .*, and its recipe.toml says 0.07 now"):
        resume(folder, data=toy)
    # What follows the training may be another.
    Recipe.load(path).changed({"optimiser.lr": toy_recipe().optimiser.lr}).save(path)
    assert resume(folder, data=toy).recipe.model.views == "mirror"


def test_other_data_than_the_run_began_with_is_refused(toy, toy_recipe, tmp_path, make_toy, stopped):
    folder = stopped(toy_recipe(), tmp_path / "part", toy, 1)
    with pytest.raises(InvalidInput, match="began with other data"):
        resume(folder, data=make_toy(seed=1))


def full_disk_at(name):
    real = os.fsync

    def fsync(descriptor):
        if name in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    return fsync


@pytest.mark.parametrize("name", ["metrics.jsonl", "epoch-00002.safetensors", "val.npz", "pruning.npz", "summary.json"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    whole, toy, toy_recipe, tmp_path, monkeypatch, name, assert_same_run
):
    folder = tmp_path / "part"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk_at(name))
        with pytest.raises(OutputError, match=r"The disk is full: free some space"):
            train(toy_recipe(), folder, data=toy)
    assert not Run(folder).finished
    assert_same_run(resume(folder, data=toy), whole)


def test_a_full_disk_at_the_start_leaves_no_folder(toy, toy_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk_at("recipe.toml"))
    with pytest.raises(OutputError, match="The disk is full"):
        train(toy_recipe(), tmp_path / "part", data=toy)
    assert not (tmp_path / "part").exists()


def test_a_non_finite_loss_names_step_rate_and_last_good_checkpoint(toy, toy_recipe, tmp_path):
    recipe = toy_recipe(optimiser__lr=1e18)
    with pytest.raises(TrainingDiverged) as caught:
        train(recipe, tmp_path / "part", data=toy)
    message = str(caught.value)
    assert "NaN or infinite in epoch 1 at step" in message
    assert "learning rate 1e+18" in message
    assert "There was no checkpoint yet. Try a smaller learning rate" in message
    # The corrected call can have the folder.
    assert list((tmp_path / "part").iterdir()) == []
    assert train(toy_recipe(), tmp_path / "part", data=toy).finished


def test_data_that_cannot_be_read_leave_nothing(toy, toy_recipe, tmp_path):
    class Unreadable(Reporter):
        def begin_epoch(self, epoch, steps):
            raise FileNotFoundError("an image is gone")

    with pytest.raises(FileNotFoundError):
        train(toy_recipe(), tmp_path / "run", data=toy, reporter=Unreadable())
    assert list((tmp_path / "run").iterdir()) == []


def test_a_loss_that_is_never_finite_names_its_first_step(toy, toy_recipe, tmp_path):
    broken = dataclasses.replace(toy, mean=tuple(float("nan") for _ in toy.mean))
    with pytest.raises(TrainingDiverged, match=r"at step 1 of 6, .* look for NaN in the images"):
        train(toy_recipe(), tmp_path / "part", data=broken)


def test_divergence_after_good_epochs_keeps_the_last_good_checkpoint(toy, toy_recipe, tmp_path):
    recipe = toy_recipe()

    class Poison:
        """Breaks the weights when the third epoch begins, as an overflow would."""

        def start(self, run, done):
            self.run = run

        def begin_epoch(self, number, steps):
            if number == 3:
                with torch.no_grad():
                    next(poisoned["network"].parameters()).fill_(float("nan"))

        def step(self): ...

        def end_epoch(self, line): ...

        def stop(self): ...

    poisoned = {}
    import calibrant.training.engine as engine

    class Spy(engine.Setup):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            poisoned["network"] = self.network

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Setup", Spy)
        with pytest.raises(CalibrantError, match=r"epoch 3 at step 1 of 5.*checkpoint is epoch-00002\.safetensors"):
            train(recipe, tmp_path / "part", data=toy, reporter=Poison())
    # What was good can be gone on from.
    assert resume(tmp_path / "part", data=toy).finished


def test_weights_broken_by_an_epochs_last_step_are_never_saved(toy, toy_recipe, tmp_path):
    import calibrant.training.engine as engine

    class Spy(engine.Setup):
        def set_learning_rate(self, value):
            # The sixth and last step of the first epoch: a finite loss, then a step into nothing.
            self.calls = getattr(self, "calls", 0) + 1
            super().set_learning_rate(float("nan") if self.calls == 6 else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Setup", Spy)
        with pytest.raises(TrainingDiverged, match="a weight became NaN or infinite in epoch 1 at step 6 of 6"):
            train(toy_recipe(), tmp_path / "part", data=toy)
    assert list((tmp_path / "part").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": {"epochs": 1}}, r"recipe must be a Recipe, got dict\. Recipe\.load"),
        ({"data": (torch.zeros(3, 1, 8, 8), [0, 1, 2])}, r"data must be a Dataset or TorchData, got tuple\. Torch"),
    ],
)
def test_what_is_no_recipe_folder_or_data_is_one_line(arguments, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        train(**({"recipe": Recipe(), "out": tmp_path / "run"} | arguments))
    assert list(tmp_path.iterdir()) == []


RECIPE = paper_recipe("digits", epochs=3, method__name="flsd+h+unbiased")


class StopAfter(Reporter):
    def __init__(self, epoch):
        self.epoch = epoch

    def end_epoch(self, line):
        if line["epoch"] == self.epoch:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_to_the_numbers_of_an_undisturbed_one(tmp_path):
    whole = train_or_resume(RECIPE, tmp_path / "whole")
    assert state_of(tmp_path / "part", RECIPE) == "new"
    with pytest.raises(KeyboardInterrupt):
        train_or_resume(RECIPE, tmp_path / "part", reporter=StopAfter(1))
    assert state_of(tmp_path / "part", RECIPE) == "stopped"
    part = train_or_resume(RECIPE, tmp_path / "part")
    assert state_of(tmp_path / "part", RECIPE) == "finished"
    assert part.summary["test"] == whole.summary["test"]
    assert (part.predictions("test").logits == whole.predictions("test").logits).all()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    recipe = paper_recipe("digits", epochs=1, method__name="nll")
    return recipe, train_or_resume(recipe, tmp_path_factory.mktemp("finished") / "run").path


def test_a_finished_run_is_left_alone(finished):
    recipe, folder = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    run = train_or_resume(recipe, folder)
    assert isinstance(run, Run)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_run_by_another_recipe_is_refused_and_another_engine_is_not(finished):
    recipe, folder = finished
    with pytest.raises(InvalidInput, match=r"was made with optimiser\.lr = 0\.1, now it is 0\.2"):
        state_of(folder, recipe.changed({"optimiser.lr": 0.2}))
    with pytest.raises(InvalidInput, match=r"method\.options\.gamma"):
        state_of(folder, recipe.changed({"method.options": {"gamma": 1.0}}))
    assert state_of(folder, recipe.changed({"engine.checkpoint_every": 5})) == "finished"


def test_a_folder_from_a_kill_before_the_recipe_was_written_can_be_begun_anew(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert train_or_resume(paper_recipe("digits", epochs=1, method__name="nll"), tmp_path / "run").finished


def test_a_run_by_other_code_of_ones_own_is_refused(own_module, tmp_path):
    text = "from calibrant.losses import Focal\n\ndef mine(*, gamma: float = 1.0):\n    return Focal(gamma)\n"
    own_module("my_executed", text)
    recipe = paper_recipe("digits", epochs=1, method__name="my_executed:mine")
    train_or_resume(recipe, tmp_path / "run")
    assert state_of(tmp_path / "run", recipe) == "finished"
    own_module("my_executed", text + "# changed\n")
    with pytest.raises(InvalidInput, match=r"own_code\.my_executed = \w+, now it is \w+. Choose another --out"):
        state_of(tmp_path / "run", recipe)
