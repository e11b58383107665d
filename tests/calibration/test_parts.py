"""A temperature from sums over parts is that of all rows."""

import tracemalloc

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling, calibrate_parts, fit_parts
from calibrant.errors import InvalidInput


def write_parts(folder, rows, *, targets=None, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 3))
    true = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1) if targets is None else np.asarray(targets)
    whole = Predictions.from_logits(3 * logits, true, ids=np.arange(rows), class_names=("a", "b", "c"))
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), [rows // 5, rows // 2])):
        whole.subset(part).save(folder / f"{number}.parquet")
    return whole


def test_the_temperature_of_parts_is_that_of_all_rows(tmp_path):
    whole = write_parts(tmp_path / "parts", 9000)
    expected, found = TemperatureScaling().fit(whole), fit_parts(tmp_path / "parts")
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-12)
    assert found.summary_.cases == expected.summary_.cases
    assert found.summary_.iterations == expected.summary_.iterations
    assert found.summary_.nll_before == pytest.approx(expected.summary_.nll_before, rel=1e-12)
    assert found.summary_.nll_after == pytest.approx(expected.summary_.nll_after, rel=1e-12)
    calibrate_parts(found, tmp_path / "parts", tmp_path / "calibrated")
    made = Predictions.load(tmp_path / "calibrated")
    np.testing.assert_allclose(made.scores, expected(whole).scores, rtol=1e-9)
    assert made.ids.tolist() == whole.ids.tolist()
    assert not (tmp_path / ".calibrated.tmp").exists()


def test_memory_does_not_grow_with_the_number_of_parts(tmp_path):
    rng = np.random.default_rng(0)
    part = Predictions.from_logits(rng.normal(size=(10_000, 3)), rng.integers(0, 3, 10_000))
    peaks = {}
    for count in (1, 2, 12):  # the first is left out: it imports what the others use
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            part.save(folder / f"{number}.parquet")
        tracemalloc.start()
        fit_parts(folder)
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[12] < 1.5 * peaks[2]


def test_separable_parts_keep_the_identity(tmp_path):
    logits = np.random.default_rng(0).normal(size=(40, 3))
    write_parts(tmp_path / "parts", 40, targets=logits.argmax(axis=1))
    with pytest.warns(UserWarning, match="every case is classified correctly"):
        assert fit_parts(tmp_path / "parts").temperature_ == 1.0


def test_one_class_is_refused_and_a_folder_is_not_replaced(tmp_path):
    write_parts(tmp_path / "one", 40, targets=np.zeros(40, np.int64))
    with pytest.raises(InvalidInput, match="at least two classes"):
        fit_parts(tmp_path / "one")
    whole = write_parts(tmp_path / "parts", 400)
    with pytest.raises(InvalidInput, match="target must be a folder that does not exist yet"):
        calibrate_parts(TemperatureScaling().fit(whole), tmp_path / "parts", tmp_path / "one")


def test_other_methods_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="method must be temperature for a folder that is read in parts"):
        fit_parts(tmp_path, "isotonic")


def test_zeros_of_true_classes_are_left_out_of_parts_too(tmp_path):
    rng = np.random.default_rng(0)
    shares = np.stack([rng.multinomial(8, row) for row in rng.dirichlet([1, 1, 1], size=900)]) / 8
    whole = Predictions.from_probabilities(shares, rng.integers(0, 3, 900), ids=np.arange(900))
    never = np.flatnonzero(shares[np.arange(900), whole.targets] == 0)
    parts = [never, *np.array_split(np.setdiff1d(np.arange(900), never), 2)]
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate(parts):
        whole.subset(rows).save(tmp_path / "parts" / f"{number}.parquet")
    with pytest.warns(UserWarning, match="left out of the fit"):
        expected = TemperatureScaling().fit(whole)
    with pytest.warns(UserWarning, match="left out of the fit"):
        found = fit_parts(tmp_path / "parts")
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)
    assert found.summary_.cases == expected.summary_.cases == 900 - len(never)
