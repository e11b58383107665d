import re

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.report.entries import ReportEntry, check_entries, read_entries


def test_files_are_called_after_themselves(predictions, tmp_path):
    predictions.save(tmp_path / "nll.npz")
    (entry,) = read_entries([tmp_path / "nll.npz"])
    assert (entry.name, entry.run, entry.images) == ("nll", None, None)
    assert entry.predictions.confidence.tolist() == predictions.confidence.tolist()


def test_the_same_name_twice_gets_the_folder_and_then_a_number(predictions, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        predictions.save(tmp_path / folder / "test.npz")
    paths = [tmp_path / "a" / "test.npz", tmp_path / "b" / "test.npz"]
    assert [entry.name for entry in read_entries(paths)] == ["test (a)", "test (b)"]
    assert [entry.name for entry in read_entries([paths[0], paths[0]])] == ["test (a) #1", "test (a) #2"]


def test_a_run_brings_its_method_and_recipe(run_folder):
    (entry,) = read_entries([run_folder])
    assert entry.name == "flsd+h"
    assert entry.run.recipe.epochs == 3
    assert entry.predictions.targets.shape == (599,)


def test_predictions_inside_a_run_belong_to_it(run_folder):
    (entry,) = read_entries([run_folder / "predictions" / "test.npz"])
    assert (entry.name, entry.run.path) == ("flsd+h", run_folder)


def test_images_can_be_given(predictions, tmp_path):
    predictions.save(tmp_path / "p.npz")
    np.savez(tmp_path / "images.npz", images=np.zeros((600, 4, 4), np.uint8))
    (entry,) = read_entries([tmp_path / "p.npz"], names=["mine"], images=tmp_path / "images.npz")
    assert (entry.name, entry.images.shape) == ("mine", (600, 4, 4))


def test_bad_sources_are_one_line(predictions, tmp_path):
    with pytest.raises(InvalidInput, match="at least one run folder or file"):
        read_entries([])
    with pytest.raises(InvalidInput, match=re.escape(str(tmp_path))):
        read_entries([tmp_path])
    predictions.save(tmp_path / "p.npz")
    with pytest.raises(InvalidInput, match="name must be given once for each of the 1 sources"):
        read_entries([tmp_path / "p.npz"], names=["a", "b"])


def test_plain_tuples_become_entries_and_names_must_tell_them_apart(predictions):
    assert check_entries([("nll", predictions)]) == [ReportEntry("nll", predictions)]
    with pytest.raises(InvalidInput, match="entry names must be distinct and not empty, got 'nll'"):
        check_entries([("nll", predictions), ("nll", predictions)])
    with pytest.raises(InvalidInput, match="distinct and not empty"):
        check_entries([("  ", predictions)])
    with pytest.raises(InvalidInput, match="at least one method"):
        check_entries([])


def test_a_mapping_from_name_to_predictions_does_as_well(predictions):
    assert check_entries({"nll": predictions, "flsd": predictions}) == [
        ReportEntry("nll", predictions),
        ReportEntry("flsd", predictions),
    ]


def test_what_is_no_entry_is_one_line(predictions):
    for wrong in (predictions, [predictions], 3, ["nll"], [(predictions, "nll")], [("nll",)]):
        with pytest.raises(InvalidInput, match="entries must map names to predictions, or be pairs of them, got"):
            check_entries(wrong)
    for wrong in ({"nll": np.eye(3)}, [("nll", np.eye(3))]):
        with pytest.raises(InvalidInput, match="predictions of 'nll' must be Predictions, got ndarray"):
            check_entries(wrong)
