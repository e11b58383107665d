"""The noise floor against plain simulation."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics import expected_calibration_error, noise_floor
from calibrant.metrics.functions import NoiseBin


def make(top, right):
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))


def test_it_is_the_mean_ece_of_simulated_targets():
    rng = np.random.default_rng(0)
    top = rng.uniform(0.5, 1.0, 500)
    simulated = [expected_calibration_error(make(top, rng.random(500) < top), 10) for _ in range(1500)]
    floor = noise_floor(make(top, top > 0), 10, draws=4000)
    assert floor.mean == pytest.approx(np.mean(simulated), rel=0.03)
    assert floor.upper == pytest.approx(np.quantile(simulated, 0.95), rel=0.05)


def test_it_does_not_depend_on_the_targets_and_repeats_with_its_seed():
    top = np.linspace(0.5, 1.0, 100)
    assert noise_floor(make(top, top > 0), 10) == noise_floor(make(top, top < 0), 10)
    assert noise_floor(make(top, top > 0), 10, seed=1) != noise_floor(make(top, top > 0), 10, seed=2)


def test_certain_rows_make_no_noise():
    floor = noise_floor(make(np.ones(10), np.zeros(10, bool)), 10)
    assert (floor.mean, floor.upper) == (0.0, 0.0)


@pytest.mark.parametrize("top", [0.8, 1 - 1e-3, 1 - 1e-6, 1e-4])
def test_limit_laws_of_large_bins_have_the_exact_moments(top):
    rows, draws = 12_000, 20_000
    group = NoiseBin(np.full(rows, top))
    found = group.surplus(draws, np.random.default_rng(1))
    exact = np.random.default_rng(2).binomial(rows, top, draws) - rows * top
    spread = exact.std()
    assert found.mean() == pytest.approx(0.0, abs=5 * spread / np.sqrt(draws) + 1e-9)
    assert found.std() == pytest.approx(spread, rel=0.05, abs=0.02)
    assert np.abs(found).mean() == pytest.approx(np.abs(exact).mean(), rel=0.05, abs=0.01)
