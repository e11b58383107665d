"""No test of this room sees the user's own data folders."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty user cache, and no CALIBRANT_DATA."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    return folder


@pytest.fixture
def generator():
    """NumPy's own generator, always the same."""
    return np.random.default_rng(0)


@pytest.fixture
def npz(tmp_path, generator):
    """Write a small .npz set; keywords replace arrays, None leaves one out."""

    def write(name="own.npz", **changes):
        content = {
            "x_train": generator.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8),
            "y_train": np.arange(12, dtype=np.uint8) % 3,
            "x_test": generator.integers(0, 256, (6, 6, 5, 3), dtype=np.uint8),
            "y_test": np.arange(6) % 3,
        } | changes
        path = tmp_path / name
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return path, content

    return write
