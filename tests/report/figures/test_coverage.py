import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.report.figures import accuracy_coverage_curves, risk_coverage_curves, threshold_curves
from calibrant.report.statistics import automated


def test_curves_by_hand_with_a_tie():
    # Descending: .9 right; .8 right and .8 wrong together; .6 wrong.
    predictions = Predictions.from_probabilities([[0.8, 0.2], [0.9, 0.1], [0.6, 0.4], [0.8, 0.2]], [0, 0, 1, 1])
    (axes,) = accuracy_coverage_curves({"m": predictions}).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 1], [0.75, 2 / 3], [1, 0.5]]))
    (axes,) = risk_coverage_curves({"m": predictions}).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 0], [0.75, 1 / 3], [1, 0.5]]))
    (axes,) = risk_coverage_curves({"m": predictions}, weights=[2, 2, 3, 1]).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 0], [0.625, 0.2], [1, 0.5]]))


def test_every_method_has_its_line_even_thirty_of_them(make):
    methods = {f"method {i}": make(n=50, seed=i) for i in range(30)}
    figure = accuracy_coverage_curves(methods)
    assert [line.get_label() for line in figure.axes[0].lines] == list(methods)
    (legend,) = figure.legends  # beside the lines, where it covers none of them
    assert [text.get_text() for text in legend.get_texts()] == list(methods)


def test_no_methods_are_refused():
    with pytest.raises(InvalidInput, match="at least one method"):
        risk_coverage_curves({})


def test_threshold_curves_are_what_automated_says(predictions):
    upper, lower = threshold_curves(predictions, points=11).axes
    share, accuracy = upper.lines[0], upper.lines[1]
    rows = [automated(predictions, delta) for delta in np.linspace(0.5, 1, 11)]
    assert share.get_xdata() == pytest.approx(np.linspace(0.5, 1, 11))
    assert share.get_ydata() == pytest.approx([row.share for row in rows])
    nan = float("nan")
    assert accuracy.get_ydata() == pytest.approx(
        [nan if row.accuracy is None else row.accuracy for row in rows], nan_ok=True
    )
    assert lower.lines[0].get_ydata() == pytest.approx([nan if r.ece is None else r.ece for r in rows], nan_ok=True)
    (band,) = upper.collections
    corners = {tuple(np.round(corner, 12)) for corner in band.get_paths()[0].vertices}
    for row in rows:
        for end in row.interval or ():
            assert (round(row.threshold, 12), round(end, 12)) in corners


def test_curves_end_where_nothing_is_automated():
    predictions = Predictions.from_probabilities([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    upper, lower = threshold_curves(predictions, points=6).axes
    assert upper.lines[0].get_ydata().tolist() == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0]
    assert np.isnan(upper.lines[1].get_ydata()[3:]).all()
    assert np.isnan(lower.lines[0].get_ydata()[3:]).all()
