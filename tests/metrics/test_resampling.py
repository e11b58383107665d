"""A resampled metric is the plain metric of the rows that were drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import Predictions, evaluate
from calibrant.metrics import METRICS, Confidences
from calibrant.metrics.confidences import Order
from calibrant.metrics.intervals import resample_models
from calibrant.metrics.metric import SET_METRICS, set_metric


def make(rows, classes, seed, coarse):
    rng = np.random.default_rng(seed)
    if coarse:
        p = rng.multinomial(10, np.full(classes, 1 / classes), rows) / 10
    else:
        p = rng.dirichlet(np.full(classes, 0.3), rows)
    return Predictions.from_probabilities(p, rng.integers(0, classes, rows))


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 999), st.booleans(), st.integers(1, 12))
def test_counts_mean_repetition(rows, classes, seed, coarse, n_bins):
    p = make(rows, classes, seed, coarse)
    drawn = np.random.default_rng(seed).integers(0, rows, rows)
    counts = np.stack([np.bincount(drawn, minlength=rows), np.ones(rows)]).astype(np.float64)
    resampled = Confidences(Order(p.confidence, p.correct).ranked(counts), n_bins, "float64")
    for place, again in enumerate((p.subset(drawn), p)):
        expected = evaluate(again, n_bins=n_bins, thresholds=(0.7,)).values()
        found = {
            each.name: each.compute(resampled) for each in METRICS.values() if each.family in ("calibration", "ranking")
        }
        with np.errstate(invalid="ignore"):
            inside = resampled.above(0.7)
            found |= {set_metric(name, 0.7): each.compute(inside) for name, each in SET_METRICS.items()}
        for name, values in found.items():
            if expected[name] is None:
                assert np.isnan(values[place]), name
            elif name == "debiased_ece":
                assert values[place] ** 2 == pytest.approx(expected[name] ** 2, abs=1e-12)  # a root magnifies rounding
            else:
                assert values[place] == pytest.approx(expected[name], abs=1e-9 if name == "smooth_ece" else 1e-12), name


def test_draws_depend_on_the_seed_alone_and_pairs_see_the_same():
    p = make(200, 3, 0, coarse=False)
    evaluation = evaluate(p)

    def draws(seed):
        first, second = resample_models([p, p], [evaluation] * 2, n_resamples=50, seed=seed)
        np.testing.assert_array_equal(first.draws["ece"], second.draws["ece"])
        return first.draws

    np.testing.assert_array_equal(draws(4)["nll"], draws(4)["nll"])
    assert not np.array_equal(draws(4)["nll"], draws(5)["nll"])
    # The bootstrap of a mean has the spread of that mean.
    assert draws(4)["brier"].mean() == pytest.approx(evaluation.brier, rel=0.05)
