"""Settings for the whole suite."""

import os
import shutil
import sys
from pathlib import Path

import pytest

# Two test processes on two cores: more threads each would only fight. Spawned processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# The same examples on every machine: a red run can be repeated. Deadlines would be timed assertions.
settings.register_profile("calibrant", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calibrant")

_CHROMIUM = shutil.which("chromium")
_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
_DATA = os.environ.get("CALIBRANT_DATA")
_NEEDS = {
    "browser": (_CHROMIUM is not None, "Debian's chromium is not installed"),
    "postgres": (bool(_POSTGRES), "no PostgreSQL server is installed"),
    "real_data": (_DATA is not None, "CALIBRANT_DATA is not set"),
}


def pytest_collection_modifyitems(config, items):
    """Leave out what this machine cannot run and say so; under CALIBRANT_REQUIRE_ALL run it and let it fail."""
    if os.environ.get("CALIBRANT_REQUIRE_ALL"):
        return
    for item in items:
        for marker, (present, reason) in _NEEDS.items():
            if item.get_closest_marker(marker) and not present:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def real_data_dir():
    """Folder with real image sets as .npz."""
    assert _DATA, "CALIBRANT_DATA is not set"
    return Path(_DATA)


@pytest.fixture
def calibrant(capsys):
    """Run the command line in this process: `code, out, err = calibrant("evaluate", "x.npz")`."""
    from calibrant.cli import run

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def python():
    """The interpreter to start child processes with."""
    return sys.executable
