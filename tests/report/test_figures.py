import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrant import Predictions, report
from calibrant.errors import InvalidInput
from calibrant.metrics import expected_calibration_error, reliability_bins
from calibrant.report import (
    coverage_curves,
    reliability_diagram,
    reliability_grid,
    save_figure,
)
from calibrant.report.summaries import reliability_bands


def _predictions():
    rng = np.random.default_rng(0)
    return Predictions.from_logits(3 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300))


DRAWN = {
    "reliability": lambda **ax: report.reliability_diagram(_predictions(), title="T", **ax),
    "accuracy": lambda **ax: report.coverage_curves({"a": _predictions()}, title="T", **ax),
    "risk": lambda **ax: report.coverage_curves(dict.fromkeys("abcdefg", _predictions()), error=True, title="T", **ax),
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
    assert DRAWN["reliability"]()._repr_png_().startswith(b"\x89PNG\r\n")


def bars(axes, label):
    """Left edge, bottom, height of the bars with a label."""
    (container,) = [c for c in axes.containers if c.get_label() == label]
    return np.array([(bar.get_x(), bar.get_y(), bar.get_height()) for bar in container])


def test_diagram_draws_accuracy_intervals_floor_diagonal_and_counts(predictions):
    figure = reliability_diagram(predictions, title="A model")
    upper, lower = figure.axes
    bands = reliability_bands(predictions)
    assert bars(upper, "accuracy")[:, 0] == pytest.approx(bands.low_edge)
    assert bars(upper, "accuracy")[:, 2] == pytest.approx(bands.accuracy)
    floor = bars(upper, "noise floor (perfect model)")
    assert floor[:, 1] == pytest.approx(bands.floor_low)
    assert floor[:, 1] + floor[:, 2] == pytest.approx(bands.floor_high)
    (whiskers,) = [c for c in upper.containers if c.get_label() == "95 % interval"]
    ends = np.array([segment[:, 1] for segment in whiskers.lines[2][0].get_segments()])
    assert ends == pytest.approx(np.stack([bands.low, bands.high], axis=1))
    (diagonal,) = upper.lines[-1:]
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert bars(lower, "samples")[:, 2].sum() == len(predictions)
    assert {text.get_text() for text in lower.texts} == {f"{n:,}" for n in bands.cases}
    assert upper.get_title("left") == "A model"
    assert upper.get_title("right") == f"ECE {100 * expected_calibration_error(predictions):.2f} %"


def test_grid_has_one_diagram_a_method_and_no_empty_ones(make):
    methods = {f"method {i}": make(seed=i, n=200) for i in range(5)}
    figure = reliability_grid(methods)
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == list(methods)
    for axes, predictions in zip(figure.axes, methods.values(), strict=True):
        bins = reliability_bins(predictions)
        assert bars(axes, "accuracy")[:, 2] == pytest.approx(bins.accuracy[bins.count > 0])
        assert sorted(text.get_text() for text in axes.texts) == sorted(f"{n:,}" for n in bins.count if n)


def test_grid_without_methods_is_refused():
    with pytest.raises(InvalidInput, match="methods must hold at least one method"):
        reliability_grid({})


@pytest.mark.parametrize("top", [0.5, 1.0])
def test_one_row_at_the_ends_of_the_scale_can_be_drawn(top, tmp_path):
    figure = reliability_diagram(Predictions.from_probabilities([[top, 1 - top]], [0]))
    assert bars(figure.axes[0], "accuracy")[:, 2].tolist() == [1.0]
    figure.savefig(tmp_path / "x.png")


def test_what_is_no_predictions_is_one_line(predictions):
    with pytest.raises(InvalidInput, match="predictions must be Predictions, got ndarray"):
        reliability_diagram(np.eye(3))
    for draw in (reliability_grid, coverage_curves):
        with pytest.raises(InvalidInput, match="methods must map names to predictions, got list"):
            draw([predictions])
        with pytest.raises(InvalidInput, match="predictions of 'a' must be Predictions, got ndarray"):
            draw({"a": np.eye(3)})


def test_curves_by_hand_with_a_tie():
    # Descending: .9 right; .8 right and .8 wrong together; .6 wrong.
    predictions = Predictions.from_probabilities([[0.8, 0.2], [0.9, 0.1], [0.6, 0.4], [0.8, 0.2]], [0, 0, 1, 1])
    (axes,) = coverage_curves({"m": predictions}).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 1], [0.75, 2 / 3], [1, 0.5]]))
    (axes,) = coverage_curves({"m": predictions}, error=True).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 0], [0.75, 1 / 3], [1, 0.5]]))
    (axes,) = coverage_curves({"m": predictions}, error=True, weights=[2, 2, 3, 1]).axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0.25, 0], [0.625, 0.2], [1, 0.5]]))


def test_every_method_has_its_line_even_thirty_of_them(make):
    methods = {f"method {i}": make(n=50, seed=i) for i in range(30)}
    figure = coverage_curves(methods)
    assert [line.get_label() for line in figure.axes[0].lines] == list(methods)
    (legend,) = figure.legends  # beside the lines, where it covers none of them
    assert [text.get_text() for text in legend.get_texts()] == list(methods)


def test_no_methods_are_refused():
    with pytest.raises(InvalidInput, match="at least one method"):
        coverage_curves({})


def test_names_are_text_and_no_formula(make, tmp_path):
    figure = reliability_grid({"$\\frac{": make(n=40), "_hidden": make(n=40, seed=1)})
    assert all(path.stat().st_size for path in save_figure(figure, tmp_path / "grid"))
