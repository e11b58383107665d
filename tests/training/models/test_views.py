import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.predictions import Predictions
from calibrant.training import Recipe, Run, train
from calibrant.training.data import load_dataset
from calibrant.training.models import AveragedViews


def moved(picture, down, right):
    """A picture moved by a pixel, with the row and column that come in reflected."""
    height, width = picture.shape[-2:]
    rows = [abs(i - down) for i in range(height)]
    columns = [abs(j - right) for j in range(width)]
    rows = [2 * (height - 1) - i if i >= height else i for i in rows]
    columns = [2 * (width - 1) - j if j >= width else j for j in columns]
    return picture[..., rows, :][..., columns]


@pytest.mark.parametrize("views", ["mirror", "mirror+shift"])
def test_logits_are_the_mean_over_views(views):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 6, 4), nn.Tanh())
    pictures = torch.randn(7, 3, 5, 6)
    shown = [(pictures, 1.0)]
    if views == "mirror+shift":
        shown = [(pictures, 0.5), (moved(pictures, -1, -1), 0.25), (moved(pictures, 1, 1), 0.25)]
    expected = sum(weight * (network(view) + network(view.flip(-1))) / 2 for view, weight in shown)
    torch.testing.assert_close(AveragedViews(network, views)(pictures), expected)


def test_a_run_predicts_and_exports_its_views(tmp_path):
    recipe = Recipe(epochs=1, model={"views": "mirror+shift"}, data={"name": "digits"})
    run = train(recipe, tmp_path / "run")
    test = Predictions.load(tmp_path / "run" / "predictions" / "test.npz")
    written = run.export_to_onnx()
    assert written.decisions_differ == 0
    assert isinstance(run.load_model(), AveragedViews)
    images = load_dataset("digits").test.images.float() / 255
    session = onnxruntime.InferenceSession(str(written.path))
    scores = session.run(["scores"], {session.get_inputs()[0].name: images.numpy()})[0]
    np.testing.assert_allclose(scores, test.scores, atol=1e-4)


def test_a_finished_run_predicts_again_as_if_it_had_been_trained_with_views(tmp_path, calibrant):
    recipe = Recipe(epochs=2, model={"views": "mirror"}, data={"name": "digits"})
    train(recipe, tmp_path / "trained")
    plain = train(recipe.changed({"model.views": "none"}), tmp_path / "plain")
    before = plain.predictions("test").scores.copy()
    code, out, err = calibrant("predict", plain.path, "--views", "mirror", "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    assert "calibrated" in out
    again = Run(tmp_path / "again")
    for split in ("val", "test"):
        np.testing.assert_array_equal(
            again.predictions(split).scores, Run(tmp_path / "trained").predictions(split).scores
        )
    assert not np.array_equal(again.predictions("test").scores, before)
    assert again.policy().digest == Run(tmp_path / "trained").policy().digest
    assert isinstance(again.load_model(), AveragedViews)
    np.testing.assert_array_equal(plain.predictions("test").scores, before)


def test_predicting_again_leaves_nothing_behind_if_it_fails(tmp_path, calibrant):
    run = train(Recipe(epochs=1, data={"name": "digits"}), tmp_path / "run")
    code, _, err = calibrant("predict", run.path, "--views", "mirror", "--out", run.path)
    assert code == 2
    assert "new or empty folder" in err
    run.summary_path.unlink()
    code, _, err = calibrant("predict", run.path, "--views", "mirror", "--out", tmp_path / "again")
    assert code == 2
    assert "not finished" in err
    assert not (tmp_path / "again").exists()


def test_views_of_what_is_no_picture_are_refused():
    with pytest.raises(InvalidInput, match=r"left out for inputs that are not pictures .* shape \(2, 9\)"):
        AveragedViews(nn.Linear(9, 2))(torch.zeros(2, 9))
    with pytest.raises(InvalidInput, match="views must be 'mirror' or 'mirror\\+shift'"):
        AveragedViews(nn.Linear(9, 2), "upside-down")


def test_training_refuses_views_of_what_is_no_picture(tmp_path):
    """Nine measurements of each case, stored as a picture of one row."""
    measured = np.zeros((12, 1, 9), np.uint8)
    labels = np.arange(12) % 2
    np.savez(tmp_path / "rows.npz", x_train=measured, y_train=labels, x_test=measured, y_test=labels)
    changes = {"model.views": "mirror", "optimiser.batch_size": 4, "data.name": f"arrays:{tmp_path / 'rows.npz'}"}
    recipe = Recipe(epochs=1).changed(changes)
    with pytest.raises(InvalidInput, match=r"model.views must be none for inputs that are not pictures, got shape"):
        train(recipe, tmp_path / "run")
