import pytest

from calibrant.errors import InvalidInput
from calibrant.report import ablation_curves

VALUES = ["0.1", "1", "10"]
ERRORS = {"ECE": [0.03, 0.01, 0.02], "TE": [0.06, 0.065, 0.07]}
SHARES = {"|S95|": [0.6, 0.7, 0.8]}


def test_two_panels_over_the_setting():
    left, right = ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda").axes
    assert {line.get_label(): list(line.get_ydata()) for line in left.lines} == ERRORS
    assert {line.get_label(): list(line.get_ydata()) for line in right.lines} == SHARES
    for axes in (left, right):
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1", "10"]
        assert axes.get_xlabel() == "lambda"


def test_a_value_chosen_on_validation_is_marked_and_the_lowest_test_error_is_not():
    for axes in ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", chosen="10").axes:
        *curves, mark = axes.lines
        assert mark.get_label() == "chosen on validation"
        assert list(mark.get_xdata()) == [2, 2]
        assert {line.get_label() for line in curves} in ({"ECE", "TE"}, {"|S95|"})


def test_spreads_are_bars_around_the_curve_and_nan_is_none():
    spreads = {"ECE": [0.005, 0.002, float("nan")]}
    left, right = ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", spreads=spreads).axes
    (bars,) = left.collections
    ends = [[point[1] for point in segment] for segment in bars.get_segments()]
    assert ends[:2] == [pytest.approx([0.025, 0.035]), pytest.approx([0.008, 0.012])]
    assert len(ends) == 2 or all(value != value for value in ends[2])
    assert not right.collections
    with pytest.raises(InvalidInput, match="curve 'ECE'"):
        ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", spreads={"ECE": [0.1]})


def test_a_short_curve_is_refused_by_name():
    with pytest.raises(InvalidInput, match="curve 'ECE' must have one value for each of the 3 settings, got 2"):
        ablation_curves(VALUES, {"ECE": [0.1, 0.2]}, SHARES, parameter="lambda")


def test_legends_hide_no_curve():
    figure = ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", chosen="1")
    figure.canvas.draw()
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 >= axes.get_window_extent().y1
        assert legend.x1 <= axes.get_window_extent().x1


def test_components_are_points_without_a_line():
    errors, shares = {"ECE": [0.2, 0.1]}, {"|S95|": [0.5, 0.6]}
    for axes in ablation_curves(["FLSD", "+H"], errors, shares, parameter="parts", connected=False).axes:
        (points,) = axes.lines
        assert points.get_linestyle() == "None"
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["FLSD", "+H"]
