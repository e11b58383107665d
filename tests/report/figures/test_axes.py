"""Figures that draw one panel draw it into axes of the user's, and show themselves in a notebook."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrant import Predictions, report


def _predictions():
    rng = np.random.default_rng(0)
    return Predictions.from_logits(3 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300))


DRAWN = {
    "reliability": lambda **ax: report.reliability_diagram(_predictions(), title="T", **ax),
    "histogram": lambda **ax: report.confidence_histogram(_predictions(), title="T", **ax),
    "accuracy": lambda **ax: report.accuracy_coverage_curves({"a": _predictions()}, title="T", **ax),
    "risk": lambda **ax: report.risk_coverage_curves(dict.fromkeys("abcdefg", _predictions()), title="T", **ax),
    "thresholds": lambda **ax: report.threshold_curves(_predictions(), title="T", **ax),
    "kept": lambda **ax: report.kept_share([[1.0, 0.5], [0.9, 0.4]], title="T", **ax),
    "scores": lambda **ax: report.score_distributions({"a": [0.1, 0.9]}, title="T", **ax),
    "times": lambda **ax: report.training_time_bars({"set": {"a": 2.0, "b": 1.0}}, title="T", **ax),
    "pareto": lambda **ax: report.pareto_picture([0.1, 0.2], [0.02, 0.01], [1.0, 0.5], [True, True], title="T", **ax),
}


def _numbers(axes):
    bars = [each.get_patch_transform().transform(each.get_path().vertices).tolist() for each in axes.patches]
    lines = [line.get_xydata().tolist() for line in axes.lines]
    points = [each.get_offsets().tolist() for each in axes.collections]
    return bars, lines, points


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_is_drawn_into_axes_of_the_user(name):
    own = Figure()
    left, right = own.subplots(1, 2)
    assert DRAWN[name](ax=right) is own
    fresh = DRAWN[name]().axes[0]
    assert repr(_numbers(right)) == repr(_numbers(fresh))  # as text: a line that ends in NaN is equal to itself
    assert any(_numbers(right))
    assert _numbers(left) == ([], [], [])
    assert "T" in (right.get_title(), right.get_title(loc="left"))
    assert right.get_ylabel() == fresh.get_ylabel()
    assert fresh.get_xlabel() in ("", right.get_xlabel())  # the upper of two panels has none
    assert right.get_legend() is not None
    assert own.legends == []


def test_a_notebook_shows_a_new_figure_as_a_picture():
    assert DRAWN["histogram"]()._repr_png_().startswith(b"\x89PNG\r\n")
