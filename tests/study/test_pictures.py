import math

from calibrant.study.pictures import component_bars, pareto_picture


def test_what_is_not_defined_says_so():
    figure = component_bars(["a", "b"], {"ECE(S95)": [math.nan, 0.0123]}, {"|S95|": [0.0, 0.5]})
    left, _ = figure.axes
    assert [text.get_text() for text in left.texts] == ["not defined", "1.23"]


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
