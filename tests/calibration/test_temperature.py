import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import cauchy

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.errors import CalibrantWarning, InvalidInput


def slow_nll(logits, targets, temperature):
    z = np.asarray(logits, dtype=np.float64) / temperature
    return float(np.mean(logsumexp(z, axis=1) - z[np.arange(len(z)), targets]))


def slow_temperature(logits, targets, prior_scale=None):
    """The best temperature; with a prior the first optimum on the way from that of the likelihood to 1."""
    options = {"xatol": 1e-10}

    def objective(log_t, scale=prior_scale):
        value = len(targets) * slow_nll(logits, targets, np.exp(log_t))
        if scale is not None:
            value -= cauchy.logpdf(log_t, scale=scale)
        return value

    likely = minimize_scalar(lambda x: objective(x, None), bounds=(-9, 9), method="bounded", options=options).x
    if prior_scale is None:
        return float(np.exp(likely))
    way = np.linspace(likely, 0.0, 1001)
    values = np.array([objective(log_t) for log_t in way])
    first = int(np.argmax(np.append(np.diff(values), 1.0) > 0))
    ends = sorted((way[max(first - 1, 0)], way[min(first + 1, 1000)]))
    return float(np.exp(minimize_scalar(objective, bounds=ends, method="bounded", options=options).x))


def test_float32_logits_with_true_temperature_two(draw):
    logits, targets = draw(50_000, 10, dtype=np.float32)
    found = TemperatureScaling().fit(logits, targets)
    assert found.temperature_ == pytest.approx(2.0, abs=0.02)
    assert found.summary_.converged
    assert not found.summary_.at_bound


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 6),
    scale=st.floats(0.2, 5),
    temperature=st.floats(0.1, 10),
    n=st.integers(50, 150),
)
@pytest.mark.parametrize("prior_scale", [None, 0.25, 2.0])
def test_equals_a_slow_search(draw, prior_scale, seed, classes, scale, temperature, n):
    logits, targets = draw(n, classes, scale=scale, temperature=temperature, seed=seed)
    if (logits.argmax(axis=1) == targets).all() or len(set(targets)) < 2:
        return
    found = TemperatureScaling(prior_scale=prior_scale)
    if not 2e-3 < slow_temperature(logits, targets) < 5e2:
        return
    expected = slow_temperature(logits, targets, prior_scale)
    found.fit(logits, targets)
    assert found.temperature_ == pytest.approx(expected, rel=1e-4)
    assert found.summary_.nll_after == pytest.approx(slow_nll(logits, targets, expected), abs=1e-8)
    assert found.summary_.nll_before == pytest.approx(slow_nll(logits, targets, 1.0), abs=1e-9)


def test_scaling_and_shifting_logits(draw):
    logits, targets = draw()
    plain = TemperatureScaling(prior_scale=None).fit(logits, targets)
    moved = TemperatureScaling(prior_scale=None).fit(7.0 * logits + np.arange(len(logits))[:, None], targets)
    assert moved.temperature_ == pytest.approx(7.0 * plain.temperature_, rel=1e-9)


def test_every_precision_finds_the_same(draw):
    logits, targets = draw()
    exact = TemperatureScaling().fit(logits, targets).temperature_
    for tensor in (torch.tensor(logits), torch.tensor(logits).float(), torch.tensor(logits).bfloat16()):
        found = TemperatureScaling().fit(tensor, torch.tensor(targets)).temperature_
        assert found == pytest.approx(exact, rel={torch.bfloat16: 1e-2, torch.float32: 1e-5}.get(tensor.dtype, 1e-12))


def test_huge_logits_do_not_overflow(draw):
    logits, targets = draw()
    plain = TemperatureScaling(prior_scale=None).fit(logits, targets)
    found = TemperatureScaling(prior_scale=None).fit(logits * 1e6, targets)
    assert found.temperature_ == pytest.approx(1e6 * plain.temperature_, rel=1e-6)
    assert np.isfinite(found.transform(logits * 1e6)).all()


def test_predicted_class_is_kept(draw):
    logits, targets = draw()
    assert (TemperatureScaling().fit(logits, targets).transform(logits).argmax(axis=1) == logits.argmax(axis=1)).all()


def test_transform_is_softmax_of_scaled_logits(draw):
    logits, targets = draw(200)
    found = TemperatureScaling().fit(logits, targets)
    expected = torch.softmax(torch.tensor(logits) / found.temperature_, dim=1).numpy()
    np.testing.assert_allclose(found.transform(logits), expected, rtol=1e-13)
    np.testing.assert_allclose(np.exp(found.transform_logits(logits)), expected, rtol=1e-12)


def test_separable_cases_keep_one_and_say_so(draw):
    logits, _ = draw(300)
    with pytest.warns(CalibrantWarning, match="no optimum"):
        found = TemperatureScaling().fit(logits, logits.argmax(axis=1))
    assert found.temperature_ == 1.0
    assert found.identity_
    assert found.summary_.at_bound


def test_logits_that_mislead_go_to_the_upper_bound(draw):
    logits, targets = draw()
    with pytest.warns(CalibrantWarning, match="no temperature is best"):
        found = TemperatureScaling().fit(-logits, targets)
    assert found.temperature_ == pytest.approx(1e9)


def votes(n=3000, seed=0):
    """What a forest of 20 trees says: shares of votes, among them zeros, a few of these for the true class."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 4))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(20, row) for row in true])
    return Predictions.from_probabilities(counts / 20, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))


def test_a_true_class_with_probability_zero_does_not_rule_the_temperature():
    said = votes()
    possible = said.probabilities[np.arange(len(said)), said.targets] > 0
    assert 30 < (~possible).sum() < 300
    expected = TemperatureScaling().fit(said.subset(np.flatnonzero(possible)))
    with pytest.warns(CalibrantWarning, match=f"probability of 0 in {(~possible).sum()} of 3,000 cases"):
        found = TemperatureScaling().fit(said)
    assert found.temperature_ == expected.temperature_
    assert 0.5 < found.temperature_ < 2.0
    assert found.summary_.cases == possible.sum()
    assert not found.identity_


def test_few_cases_leave_the_temperature_close_to_one_and_many_do_not(draw):
    """Networks that are calibrated: 30 cases must not move them far. On another scale the data win."""
    logits, targets = draw(20_000, temperature=1.0)
    moved = {None: [], 0.25: []}
    for start in range(0, 3000, 30):
        some = slice(start, start + 30)
        for prior_scale, found in moved.items():
            fitted = TemperatureScaling(prior_scale=prior_scale).fit(logits[some], targets[some])
            found.append(abs(np.log(fitted.temperature_)))
    assert np.mean(moved[0.25]) < 0.7 * np.mean(moved[None])
    for factor in (0.1, 10.0):
        likelihood = TemperatureScaling(prior_scale=None).fit(factor * logits[:300], targets[:300]).temperature_
        found = TemperatureScaling().fit(factor * logits[:300], targets[:300]).temperature_
        assert found == pytest.approx(likelihood, rel=0.05)


@pytest.mark.parametrize("prior_scale", [0, -1.0, "wide", float("nan")])
def test_a_prior_has_a_width(prior_scale):
    with pytest.raises(InvalidInput, match="prior_scale must"):
        TemperatureScaling(prior_scale=prior_scale)


def test_an_impossible_truth_in_every_case_is_refused():
    said = Predictions.from_probabilities([[1.0, 0.0], [0.0, 1.0]], [1, 0])
    with pytest.raises(InvalidInput, match="probability above 0, got 0 in all 2 cases"):
        TemperatureScaling().fit(said)


@pytest.mark.parametrize("prior_scale", [None, 0.25])
def test_a_weight_of_two_is_a_case_that_occurs_twice(draw, prior_scale):
    logits, targets = draw(300)
    copies = np.random.default_rng(0).integers(0, 4, 300)
    repeated = TemperatureScaling(prior_scale=None).fit(np.repeat(logits, copies, 0), np.repeat(targets, copies))
    weighted = TemperatureScaling(prior_scale=None).fit(logits, targets, weights=copies)
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-7)
    assert weighted.summary_.nll_after == pytest.approx(repeated.summary_.nll_after, rel=1e-9)
    found = TemperatureScaling(prior_scale=prior_scale).fit(logits, targets, weights=np.full(300, 7.0))
    assert found.temperature_ == pytest.approx(
        TemperatureScaling(prior_scale=prior_scale).fit(logits, targets).temperature_, rel=1e-9
    )


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(60), np.zeros(60), np.full(60, np.nan), ["a"] * 60])
def test_bad_weights(draw, weights):
    with pytest.raises(InvalidInput, match="weights must"):
        TemperatureScaling().fit(*draw(60), weights=weights)
