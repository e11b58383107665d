"""Smooth ECE against direct integration with an explicitly reflected kernel."""

import numpy as np
import pytest
from scipy.optimize import brentq

from calibrant import Predictions
from calibrant.metrics import expected_calibration_error, smooth_calibration_error


def reference(confidence, correct):
    """Fixed point of the smoothed error, the kernel reflected four times at each end, on a midpoint grid."""
    grid = (np.arange(4000) + 0.5) / 4000
    residual = confidence - correct

    def error(bandwidth):
        total = np.zeros_like(grid)
        for c, r in zip(confidence, residual, strict=True):
            for shift in range(-4, 6, 2):
                for image in (shift + c, shift - c):
                    total += r * np.exp(-0.5 * ((grid - image) / bandwidth) ** 2)
        return np.abs(total).mean() / (bandwidth * np.sqrt(2 * np.pi) * len(confidence))

    return error(brentq(lambda s: error(s) - s, 1e-3, 1.0, xtol=1e-6))


@pytest.mark.parametrize(("seed", "rows", "power"), [(0, 60, 1.0), (1, 40, 2.0), (2, 5, 1.0), (3, 80, 0.3)])
def test_agrees_with_direct_integration(seed, rows, power):
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.5, 1.0, rows)
    right = rng.random(rows) < top**power
    p = Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))
    assert smooth_calibration_error(p) == pytest.approx(reference(top, right), abs=2e-4)


def test_ends_of_the_interval_and_one_row():
    for top, target, expected in ((1.0, 1, 1.0), (0.5, 0, 0.5)):
        p = Predictions.from_probabilities([[top, 1 - top]] * 3, [target] * 3)
        assert smooth_calibration_error(p) == pytest.approx(expected, abs=1e-3)


def test_certain_and_right_is_zero():
    p = Predictions.from_probabilities(np.eye(3), [0, 1, 2])
    assert smooth_calibration_error(p) == pytest.approx(0.0, abs=1e-12)


def test_one_sided_miscalibration_equals_ece():
    # Where all gaps have one sign, smoothing cancels nothing.
    rng = np.random.default_rng(4)
    top = rng.uniform(0.7, 0.99, 20_000)
    right = rng.random(20_000) < top - 0.15
    p = Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))
    assert smooth_calibration_error(p) == pytest.approx(expected_calibration_error(p), abs=1e-3)
