"""What `import calibrant` offers, and what it does not load before it is used."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

PACKAGES = {path.parent.name for path in Path(calibrant.__file__).parent.glob("*/__init__.py")} - {"cli"}


def test_completion_knows_the_packages_and_the_public_names():
    offered = dir(calibrant)
    assert offered == sorted(set(offered))
    assert {*PACKAGES, *calibrant.__all__} <= set(offered)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_is_an_attribute(package):
    # Called directly: an import by another test would have set the attribute already.
    assert calibrant.__getattr__(package) is importlib.import_module(f"calibrant.{package}")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'calibrant' has no attribute 'loses'"):
        _ = calibrant.loses


def test_import_and_dir_load_nothing_and_a_package_loads_on_first_use():
    program = """
import sys, calibrant
assert "losses" in dir(calibrant) and "evaluate" in dir(calibrant)
heavy = {"torch", "numpy", "matplotlib", "calibrant.losses"} & set(sys.modules)
assert not heavy, heavy
print(calibrant.losses.Brier.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Brier\n"), done.stderr
