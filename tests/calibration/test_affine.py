import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from calibrant.calibration import DirichletScaling, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.calibration.method_choice import cross_validated_nll
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.integrations.on_device import CalibrationModule


def skewed(draw, n=600, classes=3, seed=1):
    """Classes that need their own weights and biases."""
    logits, targets = draw(n, classes, seed=seed)
    return logits * np.linspace(0.5, 1.5, classes) + np.linspace(-1, 1, classes), targets


def slow_objective(features, targets, reg_lambda, reg_mu, *, diagonal):
    """The printed objective, term by term, without a gradient."""
    classes = features.shape[1]

    def objective(flat):
        weight = np.diag(flat[:classes]) if diagonal else flat[: classes * classes].reshape(classes, classes)
        bias = flat[-classes:]
        scores = features @ weight.T + bias
        nll = float(np.sum(logsumexp(scores, axis=1) - scores[np.arange(len(targets)), targets]))
        if diagonal:
            pull = np.mean((flat[:classes] - flat[:classes].mean()) ** 2)
        else:
            pull = sum(weight[i, j] ** 2 for i in range(classes) for j in range(classes) if i != j)
            pull /= classes * (classes - 1)
        return nll / len(targets) + reg_lambda * pull + reg_mu * np.sum(bias**2) / classes

    return objective


KINDS = [(VectorScaling, True), (MatrixScaling, False), (DirichletScaling, False)]


@pytest.mark.parametrize(("kind", "diagonal"), KINDS)
@pytest.mark.parametrize(("reg_lambda", "reg_mu"), [(0.1, 0.01), (5.0, 5.0)])
def test_finds_the_optimum_of_the_printed_objective(draw, kind, diagonal, reg_lambda, reg_mu):
    logits, targets = skewed(draw, n=120)
    features = logits - logsumexp(logits, axis=1, keepdims=True) if kind is DirichletScaling else logits
    objective = slow_objective(features, targets, reg_lambda, reg_mu, diagonal=diagonal)
    start = np.concatenate([np.ones(3) if diagonal else np.eye(3).ravel(), np.zeros(3)])
    expected = minimize(objective, start, method="BFGS", options={"gtol": 1e-4, "maxiter": 60})
    found = kind(reg_lambda=reg_lambda, reg_mu=reg_mu).fit(logits, targets)
    mine = np.concatenate([found.weight_.ravel(), found.bias_])
    assert objective(mine) <= expected.fun + 1e-6
    scores = (features * expected.x[:3] if diagonal else features @ expected.x[:9].reshape(3, 3).T) + expected.x[-3:]
    slow_nll = np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(targets)), targets])
    assert found.summary_.nll_after == pytest.approx(slow_nll, abs=1e-3)


@pytest.mark.parametrize(("kind", "diagonal"), KINDS)
def test_transform_is_the_affine_map(draw, kind, diagonal):
    logits, targets = skewed(draw)
    found = kind(reg_lambda=0.1).fit(logits, targets)
    features = logits - logsumexp(logits, axis=1, keepdims=True) if kind is DirichletScaling else logits
    scores = (features * found.weight_ if diagonal else features @ found.weight_.T) + found.bias_
    expected = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    np.testing.assert_allclose(found.transform(logits), expected, rtol=1e-10)


@pytest.mark.parametrize("classes", [38, 39])
def test_both_minimisers_reach_the_optimum(draw, classes):
    """Up to 38 classes second derivatives are used. At an optimum the objective is flat in every direction."""
    logits, targets = draw(1500, classes, temperature=2.0)
    found = MatrixScaling(reg_lambda=10.0, reg_mu=5.0).fit(logits, targets)
    objective = slow_objective(logits, targets, 10.0, 5.0, diagonal=False)
    best = np.concatenate([found.weight_.ravel(), found.bias_])
    rng = np.random.default_rng(0)
    for _ in range(5):
        step = 1e-4 * rng.normal(size=len(best))
        assert abs(objective(best + step) - objective(best - step)) < 1e-8
        assert objective(best + step) > objective(best)


def test_strong_regularisation_is_temperature_scaling(draw):
    logits, targets = draw(classes=3)
    vector = VectorScaling(reg_lambda=1e9).fit(logits, targets)
    temperature = TemperatureScaling(prior_scale=None).fit(logits, targets)
    np.testing.assert_allclose(vector.weight_, 1.0 / temperature.temperature_, rtol=1e-4)
    np.testing.assert_allclose(vector.bias_, 0.0, atol=1e-6)


@pytest.mark.parametrize(("kind", "diagonal"), KINDS)
def test_probabilities_of_0_and_1_do_not_stop_the_search(draw, kind, diagonal):
    # As naive Bayes says them: the softmax of 200 times the logits is flat in double precision.
    logits, targets = draw(400, 5, temperature=200.0)
    found = kind(reg_lambda=0.001).fit(logits, targets)
    assert found.summary_.converged
    assert found.summary_.nll_before > 20
    assert found.summary_.nll_after < TemperatureScaling().fit(logits, targets).summary_.nll_after < 1


def test_beats_temperature_where_classes_differ(draw):
    logits, targets = skewed(draw, n=2000)
    nll = {kind: kind().fit(logits, targets).summary_.nll_after for kind, _ in KINDS}
    assert max(nll.values()) < TemperatureScaling().fit(logits, targets).summary_.nll_after - 0.01


def test_dirichlet_does_not_see_the_level_of_a_row(draw):
    logits, targets = skewed(draw)
    one = DirichletScaling(reg_lambda=0.1).fit(logits, targets)
    two = DirichletScaling(reg_lambda=0.1).fit(logits + np.arange(len(logits))[:, None], targets)
    np.testing.assert_allclose(one.weight_, two.weight_, atol=1e-4)


def test_regularisation_is_chosen_by_held_out_nll(draw):
    logits, targets = draw(300, 5)
    found = VectorScaling(reg_lambda="cv", folds=3, seed=4).fit(logits, targets)
    assert found.reg_lambda_ == min(found.cv_nll_, key=found.cv_nll_.get)
    assert found.reg_mu_ == found.reg_lambda_
    for reg, value in found.cv_nll_.items():
        by_hand = cross_validated_nll(lambda reg=reg: VectorScaling(reg_lambda=reg), logits, targets, folds=3, seed=4)
        assert value == pytest.approx(by_hand.mean(), abs=1e-5)


@pytest.mark.parametrize(("kind", "diagonal"), KINDS)
@pytest.mark.parametrize("reg_lambda", ["cv", 0.1])
def test_a_class_without_a_case_keeps_its_probability(draw, kind, diagonal, reg_lambda):
    logits, targets = draw(1000, 4)
    fit = targets != 1
    with pytest.warns(CalibrantWarning, match=r"1 of 4 classes \(first: 1\) without a case in the fit set"):
        found = kind(reg_lambda=reg_lambda).fit(logits[fit], targets[fit])
    assert not found.identity_
    assert len(found.summary_.notes) == 1
    before = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
    after = found.transform(logits)
    np.testing.assert_allclose(after[:, 1], before[:, 1], rtol=1e-12)
    np.testing.assert_allclose(after.sum(axis=1), 1.0, rtol=1e-12)
    # Among themselves the others are what a fit without that class makes of them.
    seen = [0, 2, 3]
    alone = kind(reg_lambda=found.reg_lambda_).fit(logits[fit][:, seen], np.searchsorted(seen, targets[fit]))
    assert found.weight_.shape == ((3,) if diagonal else (3, 3))
    np.testing.assert_allclose(
        after[:, seen] / after[:, seen].sum(axis=1, keepdims=True), alone.transform(logits[:, seen])
    )
    far = found.transform_logits(300 * logits)
    assert np.isfinite(far).all()
    mapped = CalibrationModule(found)(torch.from_numpy(300 * logits)).numpy()
    np.testing.assert_allclose(mapped, far, rtol=1e-11, atol=1e-11)
    again = type(found).from_dict(json.loads(json.dumps(found.to_dict())))
    np.testing.assert_array_equal(again.transform(logits), after)


def hardly_overlapping(n=120, classes=10, seed=0):
    """Cases that a free diagonal separates, although some are wrong as they come; new draws have errors again."""
    rng = np.random.default_rng(seed)
    targets = np.arange(n) % classes
    return 4.0 * np.eye(classes)[targets] + 1.4 * rng.normal(size=(n, classes)), targets


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletScaling])
def test_a_map_that_held_out_cases_would_pay_for_is_not_handed_out(kind):
    logits, targets = hardly_overlapping()
    assert (logits.argmax(axis=1) != targets).any()
    with pytest.warns(CalibrantWarning, match="on held-out folds the best map has .*: none is kept. Fit on more cases"):
        found = kind().fit(logits, targets)
    assert found.identity_
    assert found.summary_.at_bound
    assert min(found.cv_nll_.values()) > found.summary_.nll_before
    fresh, _ = hardly_overlapping(seed=1)
    expected = np.exp(fresh - logsumexp(fresh, axis=1, keepdims=True))
    np.testing.assert_allclose(found.transform(fresh), expected, rtol=1e-12)
    np.testing.assert_array_equal(found.weight_, np.eye(10))


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletScaling])
def test_a_separating_map_of_a_fixed_strength_is_said(kind):
    logits, targets = hardly_overlapping()
    with pytest.warns(CalibrantWarning, match="separable.*use TemperatureScaling"):
        found = kind(reg_lambda=1e-3).fit(logits, targets)
    assert (found.transform(logits).argmax(axis=1) == targets).all()
    assert found.summary_.at_bound


@pytest.mark.parametrize("reg_lambda", ["cv", 1.0])
@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_cases_that_are_all_right_keep_their_probabilities(draw, kind, reg_lambda):
    logits, _ = draw(200)
    with pytest.warns(CalibrantWarning, match="every case is classified correctly"):
        found = kind(reg_lambda=reg_lambda).fit(logits, logits.argmax(axis=1))
    assert found.identity_
    assert found.summary_.nll_after == found.summary_.nll_before


@pytest.mark.parametrize(
    "parameters",
    [{"reg_lambda": -1.0}, {"reg_lambda": "best"}, {"reg_mu": float("nan")}, {"folds": 1}, {"seed": -1}],
)
def test_parameters_out_of_range(parameters):
    with pytest.raises(InvalidInput, match=f"{next(iter(parameters))} must"):
        DirichletScaling(**parameters)


def test_too_few_cases_for_folds():
    with pytest.raises(InvalidInput, match=r"2 folds, got 2 cases\. .*temperature"):
        VectorScaling(folds=2).fit([[0.0, 1.0], [2.0, 0.0]], [0, 1])
