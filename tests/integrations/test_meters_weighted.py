"""Meters with weights against the functions on all rows at once."""

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InvalidInput
from calibrant.integrations.meters import (
    BrierScore,
    CalibrationError,
    ClasswiseCalibrationError,
    ConfidentSetMeter,
    NegativeLogLikelihood,
    read_batch,
)
from calibrant.integrations.on_device import add_by_product
from calibrant.metrics import (
    brier_score,
    classwise_calibration_error,
    confident_set,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
)

METERS = {
    "ece": (CalibrationError, expected_calibration_error),
    "mce": (lambda **own: CalibrationError(norm="maximum", **own), maximum_calibration_error),
    "share": (
        lambda **own: ConfidentSetMeter(0.8, **own),
        lambda p, weights: confident_set(p, 0.8, weights=weights).share,
    ),
    "accuracy": (
        lambda **own: ConfidentSetMeter(0.8, "accuracy", **own),
        lambda p, weights: confident_set(p, 0.8, weights=weights).accuracy,
    ),
    "ece of the set": (
        lambda **own: ConfidentSetMeter(0.8, "ece", **own),
        lambda p, weights: confident_set(p, 0.8, weights=weights).ece,
    ),
    "classwise": (lambda **own: ClasswiseCalibrationError(3, **own), classwise_calibration_error),
    "nll": (NegativeLogLikelihood, negative_log_likelihood),
    "brier": (BrierScore, brier_score),
}


def rows(n=240):
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 3, generator=generator)
    return z, torch.randint(3, (n,), generator=generator), torch.rand(n, generator=generator) + 0.1


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("name", METERS)
def test_weighted_meters_are_the_weighted_metrics(name, kind):
    make, metric = METERS[name]
    z, targets, weights = rows()
    scores = z if kind == "logits" else z.softmax(dim=1)
    meter = make(kind=kind, weighted=True)
    for part in (slice(0, 100), slice(100, 101), slice(101, None)):
        meter.update(scores[part], targets[part], 4 * weights[part])
    expected = metric(getattr(Predictions, f"from_{kind}")(scores, targets), weights=weights.numpy())
    assert meter.compute().item() == pytest.approx(expected, abs=1e-12)


def test_weighted_sums_on_a_device_are_those_on_the_processor():
    """The product that a GPU takes, computed here."""
    z, targets, weights = rows()
    confidence, correct = read_batch(z, targets, "logits")
    wide, w = confidence.double(), weights.double()
    index = torch.bucketize(wide, torch.arange(1, 15) / 15)
    terms = (index, w, w * wide, w * correct, 15)
    for found, added in zip(add_by_product(*terms), terms[1:4], strict=True):
        np.testing.assert_allclose(found, np.bincount(index, added, 15), rtol=1e-12)


@pytest.mark.parametrize("name", METERS)
def test_equal_weights_are_none(name):
    make, _ = METERS[name]
    z, targets, _ = rows()
    plain, weighted = make(kind="logits"), make(kind="logits", weighted=True)
    plain.update(z, targets)
    weighted.update(z, targets, torch.ones(240))
    assert weighted.compute().item() == pytest.approx(plain.compute().item(), abs=1e-12)


def test_a_row_without_weight_does_not_make_the_nll_infinite():
    meter = NegativeLogLikelihood(kind="probabilities", weighted=True)
    meter.update(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0]), torch.tensor([0.0, 2.0]))
    assert meter.compute().item() == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("weighted", "weights", "message"),
    [
        (True, None, "be given to every update"),
        (False, torch.ones(4), "to no other"),
        (True, torch.ones(3), r"have shape \(4,\)"),
        (True, torch.tensor([1.0, -1.0, 1.0, 1.0]), "not negative"),
        (True, torch.full((4,), torch.nan), "be finite"),
        (True, [1.0] * 4, "weights"),
    ],
)
def test_bad_weights_are_refused_and_nothing_is_added(weighted, weights, message):
    z, targets, _ = rows(4)
    meter = BrierScore(kind="logits", weighted=weighted)
    with pytest.raises(InvalidInput, match=message):
        meter.update(z, targets, weights)
    assert meter.rows == 0
