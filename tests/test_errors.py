import importlib
import importlib.metadata
import logging
import os
import subprocess
import sys

import pytest

from calibrant.errors import InvalidInput, at_level, did_you_mean, importing, invalid


def test_the_error_is_a_value_error_with_rule_value_and_way_out():
    error = invalid("gamma", "be at least 0", -1, "Use 3.")
    assert isinstance(error, InvalidInput)
    assert isinstance(error, ValueError)
    assert str(error) == "gamma must be at least 0, got -1. Use 3."


def test_did_you_mean_lists_everything_when_nothing_is_close():
    assert did_you_mean("zzzz", ["nll", "flsd"]) == "Known: nll, flsd."
    assert did_you_mean("MNIST", ["digits", "mnist"]) == "Did you mean 'mnist'?"


@pytest.fixture
def unusable_torchvision(tmp_path):
    """A folder with a torchvision that was built for another torch."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    (tmp_path / "torchvision-9.0.dist-info").mkdir()
    text = "Metadata-Version: 2.1\nName: torchvision\nVersion: 9.0\n"
    (tmp_path / "torchvision-9.0.dist-info" / "METADATA").write_text(text)
    return tmp_path


def test_a_torchvision_that_does_not_fit_is_one_line_with_two_ways_out(unusable_torchvision, monkeypatch):
    monkeypatch.syspath_prepend(unusable_torchvision)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(InvalidInput) as caught, importing("timm:resnet18", "timm", "vision"):
        importlib.import_module("torchvision")
    assert str(caught.value) == (
        "timm cannot be imported, because the installed torchvision does not fit torch (operator torchvision::nms "
        "is missing). Install the pair: pip install -U 'calibrant[vision]'; or: pip uninstall torchvision."
    )


def test_a_torchvision_that_does_not_fit_does_not_break_what_needs_none(unusable_torchvision):
    pytest.importorskip("lightning")
    program = """
from calibrant.training import Recipe
from calibrant.training.setup import make_fabric
import calibrant.integrations.lightning, calibrant.integrations.meters
from calibrant.training.models import build_model
make_fabric(Recipe(engine={"accelerator": "cpu"}))
build_model("torchvision:resnet18", n_classes=2, image_shape=(3, 32, 32))
"""
    paths = os.pathsep.join([str(unusable_torchvision), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InvalidInput: torchvision cannot be imported, because the installed torchvision does not" in ran.stderr


def test_a_missing_library_names_its_extra_and_other_errors_stay_what_they_are():
    told = r"training needs Nothing. Install it with: pip install 'calibrant\[train\]'"
    with pytest.raises(InvalidInput, match=told), importing("training", "Nothing", "train"):
        importlib.import_module("a_library_that_nobody_has")
    with pytest.raises(RuntimeError, match="another"), importing("training", "Nothing", "train"):
        raise RuntimeError("another")


def test_levels_come_back_also_after_an_error():
    log = logging.getLogger("calibrant.test.logs")
    log.setLevel(logging.INFO)
    with pytest.raises(RuntimeError), at_level(logging.ERROR, log.name):
        assert log.level == logging.ERROR
        raise RuntimeError
    assert log.level == logging.INFO
