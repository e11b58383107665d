"""Bins (lo, hi] with exact edges, in NumPy and on a device."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.integrations.on_device import accumulate_bins, add_by_product
from calibrant.metrics import reliability_bins
from calibrant.metrics.binning import bin_edges, bin_index, check_bins, sum_bins


def sure(confidences, dtype=np.float64, right=True):
    """Two-class predictions with the given confidences for class 0."""
    top = np.asarray(confidences, dtype=dtype)
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), np.full(len(top), 0 if right else 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("n_bins", [3, 7, 10, 15, 20])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(n_bins, dtype):
    for k in range(n_bins // 2 + 1, n_bins + 1):
        count = reliability_bins(sure([k / n_bins], dtype), n_bins).count
        assert count.tolist() == [int(bin_ == k - 1) for bin_ in range(n_bins)], k


def test_tenths_as_decimals_land_as_written():
    # linspace(0, 1, 11)[3] is 0.30000000000000004, and float32 0.7 is below 0.7: both would misplace a tenth.
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    for precision, dtype in (("float64", np.float64), ("float32", np.float32)):
        stored = np.asarray(values, dtype=dtype).astype(np.float64)
        assert bin_index(stored, bin_edges(10, precision)).tolist() == list(range(10))
        above = np.nextafter(np.asarray(values, dtype=dtype), dtype(2)).astype(np.float64)[:-1]
        assert bin_index(above, bin_edges(10, precision)).tolist() == list(range(1, 10))


def test_zero_and_one_are_inside():
    assert bin_index(np.asarray([0.0, 1.0]), bin_edges(15)).tolist() == [0, 14]


@given(st.integers(1, 150), st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_index_is_the_definition(n_bins, values):
    edges = bin_edges(n_bins)
    for value, index in zip(values, bin_index(np.asarray(values), edges), strict=True):
        assert edges[index] < value <= edges[index + 1] or (index == 0 and value == 0.0)


@pytest.mark.parametrize("repeats", [1, 500], ids=["searched", "swept"])
@pytest.mark.parametrize("n_bins", [1, 15, 98, 99, 150])
def test_float32_confidences_are_binned_as_their_float64_values(n_bins, repeats):
    edges = bin_edges(n_bins, "float32")
    on = edges.astype(np.float32)
    narrow = np.tile(np.concatenate([on, np.nextafter(on[:-1], np.float32(2)), np.nextafter(on[1:], on[:1])]), repeats)
    correct = np.arange(len(narrow)) % 3 == 0
    bins = sum_bins(narrow, correct, edges)
    index = [max(0, sum(edge < value for edge in edges.tolist()) - 1) for value in narrow[: 3 * n_bins + 1].tolist()]
    index = np.tile(index, repeats)
    for bin_ in range(n_bins):
        assert bins.count[bin_] == (index == bin_).sum()
        assert bins.correct_sum[bin_] == correct[index == bin_].sum()
        exact = math.fsum(narrow[index == bin_].tolist())
        assert bins.confidence_sum[bin_] == pytest.approx(exact, rel=1e-12)
    assert (bins.count.dtype, bins.correct_sum.dtype, bins.confidence_sum.dtype) == (np.int64, np.int64, np.float64)


def test_reliability_bins_hold_counts_means_and_gaps():
    bins = reliability_bins(sure([0.55, 0.65, 0.68], right=True), 10)
    assert bins.count.tolist() == [0, 0, 0, 0, 0, 1, 2, 0, 0, 0]
    assert bins.confidence[6] == pytest.approx(0.665)
    assert bins.accuracy[6] == 1.0
    assert bins.gap[6] == pytest.approx(-0.335)
    assert np.isnan(bins.gap[0])
    assert (bins.count.dtype, bins.correct_sum.dtype, bins.confidence_sum.dtype) == (np.int64, np.int64, np.float64)


def test_equal_mass_bins_split_evenly_and_keep_ties_together():
    bins = reliability_bins(sure(np.linspace(0.51, 0.99, 23)), 5, equal_mass=True)
    assert bins.count.tolist() == [5, 5, 5, 4, 4]
    assert reliability_bins(sure([0.6] * 9 + [0.7]), 5, equal_mass=True).count.tolist() == [9, 1]
    assert reliability_bins(sure([0.6] * 4), 5, equal_mass=True).count.tolist() == [4]
    assert reliability_bins(sure([0.6, 0.7]), 5, equal_mass=True).count.tolist() == [1, 1]
    assert reliability_bins(sure([1.0, 1.0, 0.7]), 2, equal_mass=True).count.tolist() == [3]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "10", None])
def test_a_number_of_bins_is_a_positive_whole_number(bad):
    with pytest.raises(InvalidInput, match="n_bins"):
        check_bins(bad)


@pytest.mark.parametrize("rows", [1, 50, 5000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_device_bins_equal_numpy_bins(n_bins, dtype, rows):
    generator = torch.Generator().manual_seed(3)
    confidence = (torch.randint(0, 41, (rows,), generator=generator) / 40).to(dtype)  # many on edges
    correct = torch.rand(rows, generator=generator) < 0.5
    counts, sums, right = accumulate_bins(confidence, correct, n_bins)
    assert (counts.dtype, sums.dtype, right.dtype) == (torch.int64, torch.float64, torch.int64)
    index = bin_index(confidence.double().numpy(), bin_edges(n_bins, str(dtype).removeprefix("torch.")))
    assert counts.tolist() == np.bincount(index, minlength=n_bins).tolist()
    assert right.tolist() == np.bincount(index[correct.numpy()], minlength=n_bins).tolist()
    np.testing.assert_allclose(sums, np.bincount(index, confidence.double().numpy(), n_bins), rtol=1e-14)


def test_the_product_used_on_a_gpu_gives_the_same_sums():
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 10, (500,), generator=generator)
    values, correct = torch.rand(500, dtype=torch.float64, generator=generator), index % 3 == 0
    terms = index, torch.ones_like(index), values, correct.long(), 12
    for found, added in zip(add_by_product(*terms), terms[1:4], strict=True):
        assert found.dtype == added.dtype
        np.testing.assert_allclose(found, np.bincount(index, added, 12), rtol=1e-14)
