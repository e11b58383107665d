"""Influences against numerical derivatives, and the ends of the studentised intervals."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.metrics import auroc, negative_log_likelihood
from calibrant.metrics.clusters import Influence, Sample


def draw(n=80, seed=0, *, ties=False):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, 3))
    z = z.round() if ties else z
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


@pytest.mark.parametrize("ties", [False, True])
def test_influence_is_the_derivative_by_the_weight_of_a_row(ties):
    cases = draw(ties=ties)
    influence, weights = Influence(cases), np.random.default_rng(1).random(80) + 0.5
    found = influence(weights)
    assert set(found) == {"test_error", "nll", "brier", "auroc", "aurc"}
    for row in (0, 7, 33, 79):
        for sign in (1, -1):
            moved = weights.copy()
            moved[row] += sign * 1e-6
            for name, (value, _) in influence(moved).items():
                slope = sign * (value - found[name][0]) / 1e-6
                assert slope == pytest.approx(found[name][1][row], rel=1e-3, abs=1e-7), name


@pytest.mark.parametrize("ties", [False, True])
def test_values_are_those_of_the_metrics(ties):
    cases, weights = draw(ties=ties), np.random.default_rng(2).random(80) + 0.5
    found = Influence(cases)(weights)
    assert found["nll"][0] == pytest.approx(negative_log_likelihood(cases, weights=weights))
    assert found["auroc"][0] == pytest.approx(auroc(cases, weights=weights))
    plain = 0.0
    for i in range(80):
        above = cases.confidence >= cases.confidence[i]
        plain += weights[i] * (weights * ~cases.correct)[above].sum() / weights[above].sum()
    assert found["aurc"][0] == pytest.approx(plain / weights.sum())


def test_interval_of_a_mean_is_at_least_students_and_on_the_scale_of_logarithms():
    cases = draw(200, 3)
    sample = Sample(np.ones(200), np.arange(200), n_resamples=200, seed=0, level=0.95)
    low, high = sample.studentised(Influence(cases), evaluate(cases).values(), {"nll": "log"})["nll"]
    mean, error = cases.nll.mean(), cases.nll.std() / np.sqrt(200)
    factor = np.exp(1.972 * error / mean)
    assert low <= mean / factor * 1.001
    assert high >= mean * factor * 0.999
    assert high / low < factor**4


def test_metrics_without_any_spread_have_no_interval():
    """All rows right: AURC is 0 and AUROC is not defined, and chance cannot be told from these rows."""
    cases = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2]] * 30, [0] * 60)
    found = evaluate(cases, weights=np.arange(1, 61), n_resamples=50).intervals
    assert "aurc" not in found
    assert "auroc" not in found
    assert found["test_error"][1] > 0.05


def test_no_interval_reaches_beyond_what_is_possible():
    """On the scale of logarithms, one heavy row sends the upper end of a Brier score to 1e8."""
    weights = np.random.default_rng(5).lognormal(0, 3, 60)
    found = evaluate(draw(60), weights=weights, n_resamples=200).intervals
    assert found["brier"][1] == 2.0
    assert found["aurc"][1] == 1.0


def test_an_infinite_nll_has_no_interval():
    cases = Predictions.from_probabilities([[1.0, 0.0]] + [[0.7, 0.3]] * 39, [1] + [0] * 30 + [1] * 9)
    assert "nll" not in evaluate(cases, clusters=np.arange(40), n_resamples=50).intervals
    assert "nll" in evaluate(cases, weights=[0] + [1] * 19 + [2] * 20, n_resamples=50).intervals
