import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.report.figures import kept_share, score_distributions

SHARES = np.array([[1.0, 1.0], [0.9, 0.8], [0.7, 0.8]])


def test_few_classes_are_lines():
    (axes,) = kept_share(SHARES, class_names=["cat", "dog"]).axes
    assert {line.get_label(): line.get_ydata().tolist() for line in axes.lines} == {
        "cat": SHARES[:, 0].tolist(),
        "dog": SHARES[:, 1].tolist(),
    }
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]


def test_many_classes_are_a_band_with_the_median():
    shares = np.linspace(0.2, 1.0, 300).reshape(3, 100)
    (axes,) = kept_share(shares).axes
    (median,) = axes.lines
    assert median.get_ydata() == pytest.approx(np.median(shares, axis=1))
    (band,) = axes.collections
    assert band.get_label() == "lowest to highest of 100 classes"
    vertices = band.get_paths()[0].vertices[:, 1]
    assert (vertices.min(), vertices.max()) == (shares.min(), shares.max())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shares": np.ones(3)}, r"shares must have the shape \(epochs, classes\)"),
        ({"shares": np.ones((0, 2))}, "neither of them 0"),
        ({"shares": SHARES, "class_names": ["one"]}, "class_names must hold 2 names"),
    ],
)
def test_wrong_shapes_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        kept_share(**arguments)


def test_score_distributions_are_shares_of_each_group():
    groups = {"kept": np.array([0.1, 0.1, 0.9, 1.0]), "left": np.array([0.0])}
    (axes,) = score_distributions(groups, n_bins=2).axes
    outlines = [patch for patch in axes.patches if not patch.get_fill()]
    assert [outline.get_label() for outline in outlines] == ["kept (4)", "left (1)"]
    assert [outline.get_data().values.tolist() for outline in outlines] == [[0.5, 0.5], [1.0, 0.0]]


def test_no_groups_are_refused():
    with pytest.raises(InvalidInput, match="at least one group"):
        score_distributions({})
