"""What is particular to each per-sample loss."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from calibrant.errors import InvalidInput
from calibrant.losses import (
    BSCEGRA,
    Brier,
    CrossEntropy,
    DualFocal,
    EntropyPenalty,
    Focal,
    LogitMargin,
    PerSampleLoss,
    SampleDependentFocal,
)


def logits_for(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log().requires_grad_()


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3])
def test_cross_entropy_is_torchs(cases, smoothing):
    logits, targets, _ = cases.make_batch(32, 10)
    expected = cross_entropy(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(CrossEntropy(smoothing)(logits, targets), expected)


def test_smoothing_pulls_a_certain_prediction_back():
    logits = torch.tensor([[12.0, 0.0, 0.0]], requires_grad=True)
    CrossEntropy(0.1)(logits, torch.tensor([0])).backward()
    assert logits.grad[0, 0] > 0


def test_brier_is_summed_over_classes():
    assert float(Brier()(logits_for(0.5, 0.3, 0.2), torch.tensor([0]))) == pytest.approx(0.25 + 0.09 + 0.04)
    assert float(Brier()(torch.tensor([[-100.0, 100.0]]), torch.tensor([0]))) == pytest.approx(2.0)


def test_brier_of_a_confident_sample_does_not_cancel():
    """`sum p^2 - 2 p_y + 1` in float32 would give 0 or a negative number here."""
    logits = torch.tensor([[9.0, 0.0, 0.0]])
    expected = float(Brier()(logits.double(), torch.tensor([0])))
    assert expected < 1e-6
    assert float(Brier()(logits, torch.tensor([0]))) == pytest.approx(expected, rel=1e-3)


def test_focal_with_gamma_zero_is_cross_entropy(cases):
    logits, targets, weights = cases.make_batch(32, 10)
    torch.testing.assert_close(Focal(0.0)(logits, targets, weights), CrossEntropy()(logits, targets, weights))
    torch.testing.assert_close(DualFocal(0.0)(logits, targets, weights), CrossEntropy()(logits, targets, weights))


def test_focal_is_positive_and_falls_with_the_true_probability():
    values = [float(Focal()(logits_for(p, 1 - p), torch.tensor([0]))) for p in (0.1, 0.5, 0.9)]
    assert values[0] > values[1] > values[2] > 0


@pytest.mark.parametrize(("p", "gamma"), [(0.05, 5), (0.19, 5), (0.21, 3), (0.49, 3), (0.51, 3), (0.9, 3)])
def test_flsd_takes_gamma_5_below_a_fifth_and_3_above(p, gamma):
    logits, targets = logits_for(p, 1 - p), torch.tensor([0])
    value = SampleDependentFocal()(logits, targets)
    assert float(value) == pytest.approx(-((1 - p) ** gamma) * math.log(p))
    # The choice is a constant: the gradient is that of the focal loss with this gamma.
    (chosen,) = torch.autograd.grad(value, logits)
    (fixed,) = torch.autograd.grad(Focal(gamma)(logits, targets), logits)
    torch.testing.assert_close(chosen, fixed)


def test_flsd_settings():
    loss = SampleDependentFocal(gamma_low=2.0, gamma_high=1.0)
    assert float(loss(logits_for(0.1, 0.9), torch.tensor([0]))) == pytest.approx(0.81 * math.log(10))
    assert float(loss(logits_for(0.5, 0.5), torch.tensor([0]))) == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize(
    ("probabilities", "rival"),
    [
        ((0.5, 0.3, 0.2), 0.3),  # the target leads: the second
        ((0.3, 0.5, 0.2), 0.2),  # the target is second: the third, not the leader
        ((0.2, 0.5, 0.3), 0.0),  # the target is last: nobody is below
        ((0.25, 0.25, 0.5), 0.0),  # an equal is not below
        ((0.4, 0.4, 0.2), 0.2),
    ],
)
def test_dual_focal_rival_is_the_largest_below_the_target(probabilities, rival):
    expected = -((1 - probabilities[0] + rival) ** 5) * math.log(probabilities[0])
    assert float(DualFocal()(logits_for(*probabilities), torch.tensor([0]))) == pytest.approx(expected)


def test_entropy_penalty_has_the_right_sign_and_range():
    """Adding the penalty lowers confidence: it is highest for the most certain prediction."""
    certain, even = torch.tensor([[50.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 4)
    targets = torch.tensor([0])
    assert float(EntropyPenalty()(certain, targets)) == pytest.approx(0.0, abs=1e-6)
    assert float(EntropyPenalty()(even, targets)) == pytest.approx(-math.log(4))
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]], requires_grad=True)
    EntropyPenalty()(logits, targets).backward()
    step = (logits - 0.1 * logits.grad).detach()
    assert step.softmax(1).max() < logits.softmax(1).max()


def test_netcal_has_the_wrong_sign_and_we_do_not(cases):
    """netcal's penalty for torch is plus the entropy over N and K: adding it makes a network more confident."""
    netcal = pytest.importorskip("netcal.regularization")

    logits, targets, _ = cases.make_batch(16, 10)
    mean_entropy = float(torch.distributions.Categorical(logits=logits).entropy().mean())
    assert float(EntropyPenalty()(logits, targets)) == pytest.approx(-mean_entropy, rel=1e-5)
    assert float(netcal.ConfidencePenalty()(logits)) == pytest.approx(mean_entropy / 10, rel=1e-5)
    # Its NumPy twin has the right sign, as its documentation says.
    assert netcal.confidence_penalty(logits.softmax(1).numpy(), 1.0) == pytest.approx(-mean_entropy, rel=1e-4)


def test_margin_is_free_inside_and_linear_outside():
    targets = torch.tensor([0])
    assert float(LogitMargin(10.0)(torch.tensor([[9.9, 0.0, 5.0]]), targets)) == 0.0
    assert float(LogitMargin(10.0)(torch.tensor([[13.0, 0.0, 2.0]]), targets)) == pytest.approx((3 + 1) / 3)
    logits = torch.tensor([[13.0, 0.0, 5.0]], requires_grad=True)
    LogitMargin(10.0)(logits, targets).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[1 / 3, -1 / 3, 0.0]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CrossEntropy(-0.1), r"label_smoothing must lie in \[0, 1\), got -0.1"),
        (lambda: CrossEntropy(1.0), "label_smoothing must lie in"),
        (lambda: Focal(-1), "gamma must be finite and not negative, got -1"),
        (lambda: Focal(float("nan")), "gamma must be finite"),
        (lambda: DualFocal(-0.5), "gamma must be finite and not negative, got -0.5"),
        (lambda: SampleDependentFocal(gamma_low=-1), "gamma_low must be finite and not negative, got -1"),
        (lambda: SampleDependentFocal(gamma_high=-1), "gamma_high must be"),
        (lambda: Focal(gamma="x"), "gamma must be a number, got 'x'"),
        (lambda: Focal(gamma=None), "gamma must be a number, got None"),
        (lambda: Focal(gamma=torch.tensor(2.0)), "gamma must be a number, got tensor"),
        (lambda: CrossEntropy("x"), "label_smoothing must be a number, got 'x'"),
        (lambda: LogitMargin(-1), "margin must be finite and not negative, got -1"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 4.5])
def test_bsce_gra_scales_the_gradient_of_cross_entropy(cases, gamma):
    """Row by row: `w (p - onehot) / B`, with the weight of the formula and nothing from its own derivative."""
    logits, targets, weights = cases.make_batch(11, 5, dtype=torch.float64)
    logits.requires_grad_()
    BSCEGRA(gamma)(logits, targets, weights).backward()
    for row, y, w, found in zip(logits.tolist(), targets.tolist(), weights.tolist(), logits.grad.tolist(), strict=True):
        p = cases.softmax(row)
        size = math.sqrt(sum((q - (k == y)) ** 2 for k, q in enumerate(p)))
        expected = [w * size**gamma * (q - (k == y)) / 11 for k, q in enumerate(p)]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_bsce_gra_with_gamma_zero_is_cross_entropy(cases):
    logits, targets, weights = cases.make_batch(32, 10)
    torch.testing.assert_close(BSCEGRA(0.0)(logits, targets, weights), CrossEntropy()(logits, targets, weights))


def test_a_certain_and_right_sample_has_no_weight_in_bsce_gra():
    assert float(BSCEGRA()(torch.tensor([[200.0, 0.0]]), torch.tensor([0]))) == 0.0
    with pytest.raises(InvalidInput, match="gamma must"):
        BSCEGRA(-1.0)


@pytest.mark.parametrize("shape", [(), (8, 1), (8, 3)])
def test_a_loss_of_ones_own_gives_one_value_per_sample(shape):
    """A mean would be divided by B a second time; a column would be multiplied by the weights of all samples."""

    class Wrong(PerSampleLoss):
        def per_sample(self, batch):
            return -batch.true_log.mean().expand(shape)

    with pytest.raises(InvalidInput, match=r"per_sample of Wrong must return one value per sample, shape \[8\]"):
        Wrong()(torch.zeros(8, 3), torch.zeros(8, dtype=torch.long))
