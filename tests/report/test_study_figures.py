import math

import pytest

from calibrant.errors import InvalidInput
from calibrant.report import ablation_curves, component_bars, pareto_picture

VALUES = [0.1, 1, 10]
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
    for axes in ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", chosen=10).axes:
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
    figure = ablation_curves(VALUES, ERRORS, SHARES, parameter="lambda", chosen=1)
    figure.canvas.draw()
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 >= axes.get_window_extent().y1
        assert legend.x1 <= axes.get_window_extent().x1


def test_what_is_not_defined_says_so():
    figure = component_bars(["a", "b"], {"ECE(S95)": [math.nan, 0.0123]}, {"|S95|": [0.0, 0.5]})
    left, _ = figure.axes
    assert [text.get_text() for text in left.texts] == ["not defined", "1.23"]


def test_spreads_stand_at_the_end_of_their_bars():
    spreads = {"ECE": [0.01, math.nan]}
    left, right = component_bars(["a", "b"], {"ECE": [0.2, 0.1]}, {"|S95|": [0.5, 0.5]}, spreads=spreads).axes
    first = left.collections[0].get_segments()[0]
    assert [point[0] for point in first] == pytest.approx([0.19, 0.21])
    assert [point[1] for point in first] == [left.patches[0].get_y() + left.patches[0].get_height() / 2] * 2
    assert not right.collections


def test_legends_hide_no_bar():
    figure = component_bars(["a", "b"], {"ECE": [0.2, 0.1], "TE": [0.2, 0.1]}, {"|S95|": [0.5, 0.5]})
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1


def test_the_front_is_ringed_and_colour_means_samples():
    figure = pareto_picture([0.1, 0.2, 0.3], [0.03, 0.02, 0.04], [0.5, 0.6, 0.9], [True, True, False])
    points, rings = figure.axes[0].collections
    assert points.get_offsets().tolist() == [[0.1, 0.03], [0.2, 0.02], [0.3, 0.04]]
    assert points.get_array().tolist() == [0.5, 0.6, 0.9]
    assert rings.get_offsets().tolist() == [[0.1, 0.03], [0.2, 0.02]]
