import numpy as np
import pytest

from calibrant.training import Recipe, Run
from calibrant.training.data import load_dataset
from calibrant.training.run_data import TrainingData


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", Recipe(data={"name": "digits", "validation": 0.2, "split_seed": 7}))


def test_test_images_are_those_of_the_data_set(run):
    test = load_dataset("digits").test
    images = run.test_images(test.labels.numpy())
    assert images.shape == (599, 8, 8, 1)
    assert (images[5, :, :, 0] == test.images[5, 0].numpy()).all()
    assert run.test_images(test.labels.numpy()[::-1]) is None


def test_training_samples_are_what_the_engine_trains_on(run):
    splits = TrainingData.make(run.recipe, load_dataset("digits"))
    targets = splits.targets.numpy()
    samples = run.training_samples(targets, np.array([17, 3]))
    for sample, position in zip(samples, (17, 3), strict=True):
        assert (sample.image[..., 0] == splits.train.images[position, 0].numpy()).all()
    everyone = run.training_samples(targets, np.arange(len(targets)))
    assert set(splits.held_out["val"].ids).isdisjoint(sample.identity for sample in everyone)
    assert run.training_samples(np.zeros(len(targets), np.int64), np.array([0])) is None


def test_a_data_set_that_is_not_here_gives_no_pictures(tmp_path):
    run = Run.create(tmp_path / "run", Recipe(data={"name": f"arrays:{tmp_path}/gone.npz"}))
    nothing = np.zeros(3, np.int64)
    assert run.test_images(nothing) is None
    assert run.training_samples(nothing, nothing) is None
