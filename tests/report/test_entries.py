import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.report import ReportEntry, read_entries
from calibrant.report.entries import check_images, data_uri, read_images
from calibrant.training import Run


def test_files_are_called_after_themselves(predictions, tmp_path):
    predictions.save(tmp_path / "nll.npz")
    (entry,) = read_entries([tmp_path / "nll.npz"])
    assert (entry.name, entry.run, entry.images) == ("nll", None, None)
    assert entry.predictions.confidence.tolist() == predictions.confidence.tolist()


def test_the_same_name_twice_gets_the_folder(predictions, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        predictions.save(tmp_path / folder / "test.npz")
    paths = [tmp_path / "a" / "test.npz", tmp_path / "b" / "test.npz"]
    assert [entry.name for entry in read_entries(paths)] == ["test (a)", "test (b)"]
    with pytest.raises(InvalidInput, match="names must be distinct"):
        read_entries([paths[0], paths[0]])


def test_a_run_brings_its_method_and_recipe(run_folder):
    (entry,) = read_entries([run_folder])
    assert entry.name == "nll"
    assert entry.run.settings["epochs"] == 3
    assert entry.predictions.targets.shape == (599,)


def test_predictions_inside_a_run_belong_to_it(run_folder):
    (entry,) = read_entries([run_folder / "predictions" / "test.npz"])
    assert (entry.name, entry.run.path) == ("nll", run_folder)


def test_images_can_be_given(predictions, tmp_path):
    predictions.save(tmp_path / "p.npz")
    np.savez(tmp_path / "images.npz", images=np.zeros((600, 4, 4), np.uint8))
    (entry,) = read_entries([tmp_path / "p.npz"], names=["mine"], images=tmp_path / "images.npz")
    assert (entry.name, entry.images.shape) == ("mine", (600, 4, 4))


def test_a_run_a_path_predictions_and_lists_of_them_are_sources(run_folder, predictions):
    run = Run(run_folder)
    for source in (run, run_folder, str(run_folder), [run], {"nll": run_folder}):
        (entry,) = read_entries(source)
        assert (entry.name, entry.run.path, len(entry.predictions)) == ("nll", run_folder, 599)
    assert [entry.name for entry in read_entries([run, predictions])] == ["nll", "the model"]
    given = ReportEntry("mine", predictions)
    assert read_entries(given) == read_entries([given]) == read_entries({"mine": predictions}) == [given]


def test_predictions_from_a_file_are_called_after_it(predictions, tmp_path):
    predictions.save(tmp_path / "nll.npz")
    assert read_entries(Predictions.load(tmp_path / "nll.npz"))[0].name == "nll"


def test_bad_sources_are_one_line(predictions, tmp_path):
    with pytest.raises(InvalidInput, match="at least one run or file"):
        read_entries([])
    with pytest.raises(InvalidInput, match=re.escape(str(tmp_path))):
        read_entries([tmp_path])
    with pytest.raises(InvalidInput, match="name must be given once for each of the 1 sources"):
        read_entries([predictions], names=["a", "b"])
    with pytest.raises(InvalidInput, match="names must be distinct and not empty"):
        read_entries([predictions], names=["  "])
    with pytest.raises(InvalidInput, match="names must be distinct and not empty"):
        read_entries([predictions, predictions], names=["a", "a"])


@pytest.mark.parametrize("wrong", [3, None, [3], [("nll", 3)], {"nll": np.eye(3)}, [("nll",)], [(3, "nll")]])
def test_what_is_no_source_is_one_line(wrong):
    with pytest.raises(InvalidInput, match="sources must be a run, a path, predictions, or a list of these, got"):
        read_entries(wrong)


def test_an_entry_holds_predictions():
    with pytest.raises(InvalidInput, match="predictions of 'nll'"):
        read_entries(ReportEntry("nll", np.eye(3)))


def opened(address):
    head, body = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


@pytest.mark.parametrize("shape", [(8, 8), (8, 6, 3), (8, 6, 4)])
def test_small_images_travel_unchanged(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert (opened(data_uri(image)) == image).all()


def test_large_images_are_made_small():
    assert max(opened(data_uri(np.zeros((300, 200, 3), np.uint8))).shape) == 96


def test_grey_images_lose_their_channel():
    assert check_images(np.zeros((5, 4, 4, 1), np.uint8), 5).shape == (5, 4, 4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((5, 4, 4)), "images must be uint8"),
        (np.zeros((5, 4), np.uint8), "shape"),
        (np.zeros((5, 4, 4, 2), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((4, 4, 4), np.uint8), "one image for each of the 5 predictions, got 4"),
    ],
)
def test_other_arrays_are_refused(images, message):
    with pytest.raises(InvalidInput, match=message):
        check_images(images, 5)


def test_files_without_images_are_one_line(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        read_images(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", pixels=np.zeros(3))
    with pytest.raises(InvalidInput, match="array named images or x_test, got pixels"):
        read_images(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", images=np.array([object()]))
    with pytest.raises(InvalidInput, match="images must be a plain array"):
        read_images(tmp_path / "objects.npz")
