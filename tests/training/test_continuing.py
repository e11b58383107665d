import pytest

from calibrant.errors import InvalidInput
from calibrant.training import Run, paper_recipe
from calibrant.training.engine import state_of, train_or_resume
from calibrant.training.progress import Quiet

RECIPE = paper_recipe("digits", epochs=3, method__name="flsd+h+unbiased")


class StopAfter(Quiet):
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
