"""Draws from a calibrated model."""

import numpy as np
import pytest

from calibrant import Predictions


def _draw(n=2000, classes=3, *, seed=0, temperature=1.0, **extra):
    rng = np.random.default_rng(seed)
    z = 8.0 * rng.normal(size=(n, classes))
    targets = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return Predictions.from_logits(temperature * z, targets, **extra)


@pytest.fixture(scope="session")
def draw():
    return _draw
