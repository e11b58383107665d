import multiprocessing
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, Reporter, resume, train
from calibrant.training.batches import BatchReader
from calibrant.training.data import load_dataset
from calibrant.training.launch import ProcessLost


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stripes in two directions, 40 pictures each of changing size."""
    place, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    for name in ("across", "down"):
        (place / name).mkdir()
        for index in range(40):
            side = 20 + index % 7
            waves = np.sin(np.arange(side) * generator.uniform(0.8, 1.2) + generator.uniform(0, 6)) * 90 + 128
            image = np.tile(waves, (side, 1)) + generator.normal(0, 20, (side, side))
            pixels = (image if name == "down" else image.T).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / name / f"{index:02d}.png")
    return place


@pytest.fixture
def recipe(folder):
    return Recipe().changed(
        {
            "data.name": f"folder:{folder}?size=16",
            "epochs": 2,
            "method.name": "nll+random",
            "method.options": {"rest": 0.4, "start": 1, "anneal": 0},
            "optimiser.batch_size": 16,
            "engine.data_path": "stream",
            "engine.workers": 2,
        }
    )


def test_a_streamed_run_is_the_run_in_memory(recipe, tmp_path, assert_same_run):
    streamed = train(recipe, tmp_path / "streamed")
    loaded = train(recipe.changed({"engine.data_path": "auto"}), tmp_path / "loaded")
    assert (streamed.summary["data_path"], loaded.summary["data_path"]) == ("stream", "resident")
    assert_same_run(streamed, loaded, recipe=False)
    assert streamed.predictions("test").ids is not None
    assert list(streamed.predictions("test").ids) == list(loaded.predictions("test").ids)


def test_what_rests_is_not_read(recipe, folder, tmp_path, monkeypatch):
    from calibrant.training.data import StreamedImages

    read = []
    real = StreamedImages.__getitem__
    monkeypatch.setattr(StreamedImages, "__getitem__", lambda self, row: read.append(row) or real(self, row))
    monkeypatch.setattr("calibrant.training.batches.default_workers", lambda: 0)
    run = train(recipe.changed({"engine.workers": 0}), tmp_path / "run")
    held = len(run.predictions("val"))
    trained = [line["samples"] for line in run.epochs()]
    assert trained == [58, 36]  # of each class of 29, 40 % rest, rounded down
    assert len(read) == sum(trained) + 2 * held + len(run.predictions("test"))


def test_auto_says_why(recipe, tmp_path):
    class Listens(Reporter):
        def start(self, run, done):
            self.heard = run.recipe.reasons

    reporter = Listens()
    train(
        recipe.changed({"engine.data_path": "auto", "epochs": 1, "method.name": "nll", "method.options": {}}),
        tmp_path / "run",
        reporter=reporter,
    )
    assert reporter.heard["engine.data_path"].startswith("in memory, pictures were decoded once: 0.0 GB of pixels")


@pytest.fixture
def damaged(folder, tmp_path):
    """A copy of the folder with two files that end early."""
    place = tmp_path / "damaged"
    shutil.copytree(folder, place)
    for name in ("across/03.png", "down/11.png"):
        (place / name).write_bytes((place / name).read_bytes()[:60])
    return place


def test_an_unreadable_picture_ends_a_run_before_it_has_begun(damaged, recipe, tmp_path):
    message = r"(across/03|down/11)\.png cannot be read as an image .* 'calibrant data check' names all"
    with pytest.raises(InvalidInput, match=message):
        train(recipe.changed({"data.name": f"folder:{damaged}?size=16"}), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_picture_that_breaks_in_the_middle_is_named_and_the_run_goes_on_when_it_is_back(
    folder, recipe, tmp_path, assert_same_run
):
    place = tmp_path / "pictures"
    shutil.copytree(folder, place)
    recipe = recipe.changed({"data.name": f"folder:{place}?size=16"})
    path = place / load_dataset(recipe.data.name, data_path="stream").train.ids[0]

    class Breaks(Reporter):
        """Lets one picture end early when the second epoch begins; what rests is drawn from the seed alone."""

        def begin_epoch(self, epoch, steps):
            if epoch == 2:
                path.write_bytes(path.read_bytes()[:60])

    before = multiprocessing.active_children()
    with pytest.raises(InvalidInput, match=rf"{path} cannot be read") as caught:
        train(recipe, tmp_path / "run", reporter=Breaks())
    # The processes that read have ended, although somebody still holds the error.
    assert set(multiprocessing.active_children()) <= set(before)
    assert re.search("'calibrant data check' names all .*: calibrant train --resume ", str(caught.value))
    shutil.copy(folder / path.relative_to(place), path)
    assert_same_run(resume(tmp_path / "run"), train(recipe, tmp_path / "undisturbed"))


def test_a_killed_worker_is_one_line_and_the_run_resumes(recipe, folder, tmp_path, assert_same_run):
    others = set(multiprocessing.active_children())  # of other tests, not yet collected

    class Kills(Reporter):
        """Kills a loader process in the second epoch."""

        alive = True

        def begin_epoch(self, epoch, steps):
            self.epoch = epoch

        def step(self):
            if self.epoch == 2 and self.alive:
                self.alive = False
                victim = (set(multiprocessing.active_children()) - others).pop().pid
                os.kill(victim, signal.SIGKILL)
                os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)

    with pytest.raises(ProcessLost, match=r"a process that reads images .* Continue with: calibrant train --resume"):
        train(recipe, tmp_path / "run", reporter=Kills())
    assert_same_run(resume(tmp_path / "run"), train(recipe, tmp_path / "undisturbed"))


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_two_shapes_are_one_line(workers):
    items = [(torch.zeros(1, side, 8), 0) for side in (8, 8, 9)]
    with pytest.raises(
        InvalidInput, match=r"^images must have one shape, got \[1, 8, 8\] at entry 0 and \[1, 9, 8\]"
    ) as told:
        list(BatchReader(items, batch_size=3, workers=workers))
    assert "\n" not in str(told.value)
