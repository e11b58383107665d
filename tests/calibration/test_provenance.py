import warnings

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.calibration.base import warn_if_in_sample
from calibrant.errors import CalibrantWarning


@pytest.fixture
def read(tmp_path):
    """Overconfident predictions, read from a file."""
    rng = np.random.default_rng(0)
    z = 8.0 * rng.normal(size=(200, 3))
    Predictions.from_logits(2.0 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)).save(tmp_path / "val.npz")
    return Predictions.load(tmp_path / "val.npz")


def test_scores_of_the_cases_of_the_fit_are_in_sample(read):
    calibrator = TemperatureScaling().fit(read)
    known = calibrator.provenance_
    for origin in (read.origin, calibrator(read).origin):
        assert known.in_sample(origin).startswith("In-sample: the calibrator was fitted on these cases")
    with pytest.warns(CalibrantWarning, match="val.npz: In-sample"):
        warn_if_in_sample(known, read.origin)


def test_other_cases_are_not(read, tmp_path):
    some, rest = read.split(0.3, seed=1)
    calibrator = TemperatureScaling().fit(some)
    other = Predictions.from_logits(2.0 * read.logits, read.targets)
    other.save(tmp_path / "test.npz")
    known = calibrator.provenance_
    for origin in (rest.origin, other.origin, Predictions.load(tmp_path / "test.npz").origin):
        assert known.in_sample(origin) == ""
    assert "some of these cases" in known.in_sample(read.origin)
    on_arrays = TemperatureScaling().fit(read.logits, read.targets).provenance_
    assert on_arrays.in_sample(read.origin) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_in_sample(known, rest.origin)
