"""Draws from known models."""

import numpy as np
import pytest


def _draw(n=2000, classes=4, *, scale=2.0, temperature=2.0, seed=0, dtype=np.float64):
    """Targets drawn from softmax(z); the model says temperature * z, so the true temperature is `temperature`."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, classes))
    targets = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return (temperature * z).astype(dtype), targets


@pytest.fixture(scope="session")
def draw():
    return _draw
