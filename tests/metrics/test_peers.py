"""Agreement with installed peers on random data; docs/compatibility.md holds the cases where they differ."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant import metrics as m


def random_predictions(seed, rows=1500, classes=4):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * rng.uniform(1, 4)
    p = np.exp(logits * 0.6)
    p /= p.sum(axis=1, keepdims=True)
    targets = (rng.random(rows)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)
    return Predictions.from_logits(logits, targets)


SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_auroc_is_scikit_learns(seed):
    sklearn = pytest.importorskip("sklearn.metrics")
    p = random_predictions(seed)
    coarse = Predictions.from_probabilities(np.stack([c := p.confidence.round(1).clip(0.5), 1 - c], 1), p.targets % 2)
    for each in (p, coarse):
        assert m.auroc(each) == pytest.approx(sklearn.roc_auc_score(each.correct, each.confidence), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_smooth_ece_is_relplots(seed):
    relplot = pytest.importorskip("relplot")
    p = random_predictions(seed)
    found = m.smooth_calibration_error(p)
    right = p.correct.astype(float)
    # At our bandwidth (which equals the value) its integral is ours but for its 200-point mesh; its own search for the
    # bandwidth stops after ten halvings.
    assert relplot.smECE_sigma(p.confidence, right, sigma=found) == pytest.approx(found, abs=5e-4)
    assert relplot.smECE(p.confidence, right) == pytest.approx(found, abs=2e-3)


@pytest.mark.parametrize("n_bins", [5, 10, 15])
@pytest.mark.parametrize("seed", SEEDS)
def test_debiased_and_binned_errors_are_those_of_uncertainty_calibration(seed, n_bins):
    calibration = pytest.importorskip("calibration")
    p = random_predictions(seed)
    scores, labels = p.probabilities, p.targets
    debiased = calibration.lower_bound_scaling_ce(scores, labels, p=2, debias=True, num_bins=n_bins, mode="top-label")
    assert m.debiased_calibration_error(p, n_bins) == pytest.approx(debiased, abs=1e-9)
    equal_mass = calibration.get_ece_em(scores, labels, num_bins=n_bins)
    assert m.equal_mass_calibration_error(p, n_bins) == pytest.approx(equal_mass, abs=1e-12)
    equal_width = calibration.get_ece(scores, labels, num_bins=n_bins)
    assert m.expected_calibration_error(p, n_bins) == pytest.approx(equal_width, abs=1e-12)
    classwise = calibration.get_ece(scores, labels, num_bins=n_bins, mode="marginal")
    assert m.classwise_calibration_error(p, n_bins) == pytest.approx(classwise, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_ece_is_torchmetrics_where_it_is_right(seed):
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    p = random_predictions(seed)
    scores = torch.from_numpy(p.probabilities)
    for norm, ours in (("l1", m.expected_calibration_error), ("max", m.maximum_calibration_error)):
        theirs = multiclass_calibration_error(scores, torch.from_numpy(p.targets), num_classes=4, n_bins=15, norm=norm)
        assert ours(p, 15) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_ks_is_the_top_label_statistic_written_by_hand(seed):
    p = random_predictions(seed)
    order = np.argsort(p.confidence)
    cumulative = np.cumsum(p.confidence[order] - p.correct[order]) / len(p)
    assert m.ks_calibration_error(p) == pytest.approx(np.abs(cumulative).max(), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_and_nll_are_scikit_learns(seed):
    sklearn = pytest.importorskip("sklearn.metrics")
    p = random_predictions(seed)
    assert m.negative_log_likelihood(p) == pytest.approx(sklearn.log_loss(p.targets, p.probabilities), rel=1e-9)
    brier = sklearn.brier_score_loss(p.targets, p.probabilities, scale_by_half=False)
    assert m.brier_score(p) == pytest.approx(brier, rel=1e-9)
