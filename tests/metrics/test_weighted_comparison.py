"""`compare` with weights and clusters: against rows that come twice, and with intervals that know of patients."""

import numpy as np
import pytest

from calibrant import Predictions, compare
from calibrant.metrics import evaluate_groups, negative_log_likelihood


def pair(n=300, seed=0):
    """Two models; the second is better on class 0 and worse elsewhere."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    extras = {"w": rng.random(n) + 0.2, "patient": np.arange(n) // 3, "site": np.tile(["a", "b"], n // 2)}
    models = []
    for strength in (np.full(n, 1.5), np.where(y == 0, 3.0, 0.8)):
        z = rng.normal(size=(n, 3))
        z[np.arange(n), y] += strength
        models.append(Predictions.from_logits(z, y, extras=extras))
    return models


def test_values_are_weighted_and_verdicts_follow_the_mix():
    a, b = pair()
    on_zero = np.where(a.targets == 0, 20.0, 1.0)
    found = compare(a, b, n_resamples=200, weights=on_zero)
    gap = negative_log_likelihood(b, weights=on_zero) - negative_log_likelihood(a, weights=on_zero)
    assert found["nll"].difference == pytest.approx(gap)
    assert found["nll"].verdict == "better"
    assert compare(a, b, n_resamples=200, weights=1 / on_zero)["nll"].verdict == "worse"
    assert found["ece"].interval is None
    assert found["ece"].verdict == "cannot tell"


def test_equal_weights_give_about_the_plain_intervals():
    a, b = pair(600, 1)
    plain = compare(a, b, n_resamples=400)
    same = compare(a, b, n_resamples=400, weights=np.full(600, 3.0))
    for name in ("test_error", "nll", "brier", "auroc", "aurc", "share@0.95"):
        width = plain[name].interval[1] - plain[name].interval[0]
        assert same[name].difference == pytest.approx(plain[name].difference, abs=1e-12), name
        for ours, theirs in zip(same[name].interval, plain[name].interval, strict=True):
            assert ours == pytest.approx(theirs, abs=0.15 * width), name


def test_rows_that_repeat_each_other_are_one_cluster():
    a, b = pair(150, 2)
    rows, patient = np.repeat(np.arange(150), 4), np.repeat(np.arange(150), 4)
    once = compare(a, b, n_resamples=300, clusters=np.arange(150))
    often = compare(a.subset(rows), b.subset(rows), n_resamples=300, clusters=patient)
    for name in ("test_error", "nll", "auroc", "share@0.95", "accuracy@0.95"):
        widths = [each[name].interval[1] - each[name].interval[0] for each in (once, often)]
        assert widths[1] == pytest.approx(widths[0], rel=0.1), name


def test_a_model_is_not_better_than_itself():
    a, _ = pair(90, 3)
    found = compare(a, a, n_resamples=50, weights="w", clusters="patient")
    assert {row.verdict for row in found.rows} == {"cannot tell"}


@pytest.mark.parametrize("column", [True, False])
def test_groups_take_weights_of_their_own_rows(column):
    a, _ = pair(120, 4)
    weights = "w" if column else np.asarray(a.extras["w"])
    own = a.extras["site"] == "a"
    expected = negative_log_likelihood(a.subset(own), weights=np.asarray(a.extras["w"])[own])
    assert evaluate_groups(a, "site", weights=weights).groups["a"].nll == pytest.approx(expected)
