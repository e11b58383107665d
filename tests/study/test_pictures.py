import math

import pytest

from calibrant.study.pictures import component_bars, pareto_picture


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
