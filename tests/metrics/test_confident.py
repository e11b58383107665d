"""The high-confidence set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.metrics import confident_set


def make(top, right, dtype=np.float64):
    top = np.asarray(top, dtype=dtype)
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.where(right, 0, 1))


@given(
    st.lists(st.tuples(st.floats(0.51, 1.0), st.booleans()), min_size=1, max_size=30),
    st.floats(0.5, 1.0),
    st.integers(1, 12),
)
def test_agrees_with_its_definition(pairs, delta, n_bins):
    found = confident_set(make(*zip(*pairs, strict=True)), delta, n_bins=n_bins)
    inside = [(c, hit) for c, hit in pairs if c >= delta]
    assert found.share == pytest.approx(len(inside) / len(pairs))
    if not inside:
        assert (found.accuracy, found.ece, found.ece_inside) == (None, None, None)
        return
    assert found.accuracy == pytest.approx(np.mean([hit for _, hit in inside]))
    for low, value in ((0.0, found.ece), (delta, found.ece_inside)):
        edges = [low + (1 - low) * (k / n_bins) for k in range(n_bins + 1)]
        cells = {}
        for c, hit in inside:
            index = sum(c > edge for edge in edges[1:-1])
            cells.setdefault(index, []).append(c - hit)
        assert value == pytest.approx(sum(abs(sum(cell)) for cell in cells.values()) / len(inside), abs=1e-13)


def test_with_ten_bins_ece_of_s95_is_the_gap_of_the_means():
    top, right = [0.96, 0.97, 0.999, 0.6], [True, False, True, True]
    found = confident_set(make(top, right), 0.95)
    assert found.ece == pytest.approx(abs(np.mean(top[:3]) - 2 / 3))
    assert found.ece_inside > found.ece


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_confidence_written_as_the_threshold_is_inside(dtype):
    # float32(0.95) is a little below 0.95; the threshold is rounded to the same type.
    assert confident_set(make([0.95], [True], dtype), 0.95).share == 1.0


@pytest.mark.parametrize("delta", [-0.1, 1.1, 95, float("nan")])
def test_a_threshold_is_a_fraction(delta):
    with pytest.raises(InvalidInput, match="threshold must"):
        confident_set(make([0.9], [True]), delta)
