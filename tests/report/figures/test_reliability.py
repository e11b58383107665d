import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.metrics import expected_calibration_error, reliability_bins
from calibrant.report.figures import (
    accuracy_coverage_curves,
    confidence_histogram,
    reliability_diagram,
    reliability_grid,
    risk_coverage_curves,
    threshold_curves,
)
from calibrant.report.statistics import reliability_bands


def bars(axes, label):
    """Left edge, bottom, height of the bars with a label."""
    (container,) = [c for c in axes.containers if c.get_label() == label]
    return np.array([(bar.get_x(), bar.get_y(), bar.get_height()) for bar in container])


def test_diagram_draws_accuracy_intervals_floor_diagonal_and_counts(predictions):
    figure = reliability_diagram(predictions, title="A model")
    upper, lower = figure.axes
    bands = reliability_bands(predictions)
    some = bands.bins.count > 0
    assert bars(upper, "accuracy")[:, 0] == pytest.approx(bands.bins.edges[:-1][some])
    assert bars(upper, "accuracy")[:, 2] == pytest.approx(bands.bins.accuracy[some])
    floor = bars(upper, "noise floor (perfect model)")
    assert floor[:, 1] == pytest.approx(bands.floor_low[some])
    assert floor[:, 1] + floor[:, 2] == pytest.approx(bands.floor_high[some])
    (whiskers,) = [c for c in upper.containers if c.get_label() == "95 % interval"]
    ends = np.array([segment[:, 1] for segment in whiskers.lines[2][0].get_segments()])
    assert ends == pytest.approx(np.stack([bands.low[some], bands.high[some]], axis=1))
    (diagonal,) = upper.lines[-1:]
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert bars(lower, "samples")[:, 2].sum() == len(predictions)
    assert {text.get_text() for text in lower.texts} - {""} == {f"{n:,}" for n in bands.bins.count if n}
    assert upper.get_title("left") == "A model"
    assert upper.get_title("right") == f"ECE {100 * expected_calibration_error(predictions):.2f} %"


def test_grid_has_one_diagram_a_method_and_no_empty_ones(make):
    methods = {f"method {i}": make(seed=i, n=200) for i in range(5)}
    figure = reliability_grid(methods, columns=3)
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == list(methods)
    for axes, predictions in zip(figure.axes, methods.values(), strict=True):
        bins = reliability_bins(predictions)
        assert bars(axes, "accuracy")[:, 2] == pytest.approx(bins.accuracy[bins.count > 0])
        assert sorted(text.get_text() for text in axes.texts) == sorted(f"{n:,}" for n in bins.count if n)


def test_grid_without_methods_is_refused():
    with pytest.raises(InvalidInput, match="methods must hold at least one method"):
        reliability_grid({})


def test_histogram_shares_add_up_and_lines_are_mean_confidence_and_accuracy(predictions):
    (axes,) = confidence_histogram(predictions, n_bins=20).axes
    right, wrong = bars(axes, "right"), bars(axes, "wrong")
    assert right[:, 2].sum() == pytest.approx(predictions.correct.mean())
    assert wrong[:, 2].sum() == pytest.approx(1 - predictions.correct.mean())
    assert wrong[:, 1] == pytest.approx(right[:, 2])
    assert [line.get_xdata()[0] for line in axes.lines] == [
        pytest.approx(predictions.confidence.mean()),
        pytest.approx(predictions.correct.mean()),
    ]


@pytest.mark.parametrize("top", [0.5, 1.0])
def test_one_row_at_the_ends_of_the_scale_can_be_drawn(top, tmp_path):
    figure = reliability_diagram(Predictions.from_probabilities([[top, 1 - top]], [0]))
    assert bars(figure.axes[0], "accuracy")[:, 2].tolist() == [1.0]
    figure.savefig(tmp_path / "x.png")


def test_what_is_no_predictions_is_one_line(predictions):
    for draw in (reliability_diagram, confidence_histogram, threshold_curves):
        with pytest.raises(InvalidInput, match="predictions must be Predictions, got ndarray"):
            draw(np.eye(3))
    for draw in (reliability_grid, accuracy_coverage_curves, risk_coverage_curves):
        with pytest.raises(InvalidInput, match="methods must map names to predictions, got list"):
            draw([predictions])
        with pytest.raises(InvalidInput, match="predictions of 'a' must be Predictions, got ndarray"):
            draw({"a": np.eye(3)})
    with pytest.raises(InvalidInput, match="columns must be at least 1, got 0"):
        reliability_grid({"a": predictions}, columns=0)
