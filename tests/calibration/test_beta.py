import warnings

import numpy as np
import pytest

from calibrant.calibration import BetaCalibration
from calibrant.errors import CalibrantWarning

Authors = pytest.importorskip("betacal").BetaCalibration


def probabilities(logits):
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


def log_loss(p, targets):
    return -np.mean(np.where(targets == 1, np.log(p), np.log1p(-p)))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_equals_the_authors_package(draw, seed):
    logits, targets = draw(800, 2, temperature=[0.5, 2.0, 3.0, 1.0][seed], seed=seed)
    logits = logits + np.array([0.0, 0.3 * seed])
    p = probabilities(logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = Authors(parameters="abm").fit(p.reshape(-1, 1), targets).predict(p)
    mine = BetaCalibration().fit(logits, targets).transform(logits)[:, 1]
    assert log_loss(mine, targets) == pytest.approx(log_loss(theirs, targets), abs=1e-3)
    np.testing.assert_allclose(mine, theirs, atol=5e-3)


def test_slopes_are_not_negative(draw):
    logits, targets = draw(500, 2)
    found = BetaCalibration().fit(-logits, targets)
    assert (found.maps_[:, :2] >= 0).all()
    share = targets.mean()
    np.testing.assert_allclose(found.transform(logits)[:, 1], share, atol=1e-3)


def test_the_formula(draw):
    logits, targets = draw(300, 2)
    found = BetaCalibration().fit(logits, targets)
    a, b, c = found.maps_[0]
    p = probabilities(logits)
    expected = 1 / (1 + np.exp(-(a * np.log(p) - b * np.log1p(-p) + c)))
    np.testing.assert_allclose(found.transform(logits)[:, 1], expected, rtol=1e-9)


def test_one_vs_rest_rows_sum_to_one_and_help(draw):
    logits, targets = draw(1500, 5, temperature=3.0)
    found = BetaCalibration().fit(logits, targets)
    np.testing.assert_allclose(found.transform(logits).sum(axis=1), 1.0, rtol=1e-12)
    assert found.summary_.nll_after < found.summary_.nll_before - 0.1


def test_extreme_logits_are_not_clipped(draw):
    logits, targets = draw(500, 3)
    found = BetaCalibration().fit(logits, targets)
    extreme = np.array([[800.0, 0.0, 1.0], [900.0, 0.0, 1.0]])
    logs = found.transform_logits(extreme)
    assert np.isfinite(logs).all()
    assert logs[1, 2] < logs[0, 2] < -100


def test_separable_class_stays_the_identity_and_says_so(draw):
    logits, _ = draw(200, 2)
    with pytest.warns(CalibrantWarning, match="no overlap"):
        found = BetaCalibration().fit(logits, logits.argmax(axis=1))
    np.testing.assert_array_equal(found.maps_, [[1.0, 1.0, 0.0]])


def test_a_slope_at_its_bound_is_said(draw):
    logits, targets = draw(500, 2)
    with pytest.warns(CalibrantWarning, match="a slope reached its bound of 1000"):
        found = BetaCalibration().fit(1e-4 * logits, targets)  # the best slopes would be 5,000
    assert found.maps_[0, :2] == pytest.approx([1000.0, 1000.0])
    assert found.summary_.at_bound
