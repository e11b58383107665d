"""What is particular to each loss over the whole batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.losses import DCA, MDCA, MMCE, HuberCalibration, SoftECE


def batch_with(confidences, correct):
    """Two classes, class 0 predicted with the given confidences (above one half)."""
    p = torch.tensor(confidences, dtype=torch.float64)
    logits = torch.stack((p.log(), (1 - p).log()), dim=1)
    return logits.requires_grad_(), torch.tensor([0 if right else 1 for right in correct])


@pytest.mark.parametrize("alpha", [0.005, 0.1])
@pytest.mark.parametrize("gap", [-0.24, -0.101, -0.1, -0.0049, -0.001, 0.0, 0.002, 0.005, 0.0051, 0.09, 0.2])
def test_huber_on_both_sides_and_in_both_branches(alpha, gap):
    """Mean confidence 0.75 + gap against an accuracy of 0.75."""
    logits, targets = batch_with([0.75 + gap] * 4, [True, True, True, False])
    expected = gap**2 / 2 if abs(gap) < alpha else alpha * (abs(gap) - alpha / 2)
    assert HuberCalibration(alpha)(logits, targets).item() == pytest.approx(expected, rel=1e-9, abs=1e-15)
    smooth = HuberCalibration(alpha, kind="smooth-l1")(logits, targets)
    assert smooth.item() == pytest.approx(expected / alpha, rel=1e-9, abs=1e-13)


@given(gap=st.floats(-1, 1), alpha=st.floats(1e-4, 1))
def test_huber_is_torchs_and_smooth_l1_is_torchs(gap, alpha):
    value, zero = torch.tensor(gap, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    ours = HuberCalibration(alpha).value(value.reshape(1), 1, None)
    torch.testing.assert_close(ours, torch.nn.functional.huber_loss(value, zero, delta=alpha))
    smooth = HuberCalibration(alpha, kind="smooth-l1").value(value.reshape(1), 1, None)
    torch.testing.assert_close(smooth, torch.nn.functional.smooth_l1_loss(value, zero, beta=alpha))


@pytest.mark.parametrize("loss", [HuberCalibration(), DCA(), SoftECE(n_bins=1)])
@pytest.mark.parametrize(("correct", "direction"), [([False] * 4, "down"), ([True] * 4, "up")])
def test_a_step_moves_confidence_to_accuracy(loss, correct, direction):
    logits, targets = batch_with([0.8, 0.7, 0.9, 0.6], correct)
    loss(logits, targets).backward()
    before = logits.detach().softmax(1).amax(1)
    after = (logits - logits.grad).detach().softmax(1)[:, 0]
    assert (after < before).all() if direction == "down" else (after > before).all()


def test_huber_is_bounded_by_alpha_where_dca_is_not():
    logits, targets = batch_with([0.9] * 8, [False] * 8)
    (huber,) = torch.autograd.grad(HuberCalibration()(logits, targets), logits)
    (dca,) = torch.autograd.grad(DCA()(logits, targets), logits)
    torch.testing.assert_close(huber, 0.005 * dca)


def test_netcal_dca_ignores_its_weight_and_we_do_not(cases):
    DCAPenalty = pytest.importorskip("netcal.regularization").DCAPenalty

    logits, targets, _ = cases.make_batch(64, 10)
    assert float(DCAPenalty(weight=5.0)(logits, targets)) == float(DCAPenalty(weight=1.0)(logits, targets))
    assert float(DCA()(logits, targets)) == pytest.approx(float(DCAPenalty()(logits, targets)), rel=1e-6)
    assert float((5.0 * DCA())(logits, targets)) == pytest.approx(5 * float(DCA()(logits, targets)))


def test_mdca_of_perfect_class_shares_is_zero_whoever_is_right():
    logits = 1e3 * torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert float(MDCA()(logits, torch.tensor([1, 2, 0]))) == pytest.approx(0.0, abs=1e-7)
    assert float(MDCA()(logits, torch.tensor([0, 0, 0]))) == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)


@pytest.mark.parametrize("loss", [MMCE(), MMCE(weighted=False)])
def test_mmce_is_normalised_once(loss, cases):
    """A batch that holds every sample twice has the same calibration error; divided twice it would have half of it."""
    logits, targets, _ = cases.make_batch(20, 5, dtype=torch.float64)
    once = loss(logits, targets)
    torch.testing.assert_close(loss(logits.repeat(4, 1), targets.repeat(4)), once, rtol=1e-12, atol=0)
    assert once > 0.01


def test_mmce_is_netcals(cases):
    """netcal's weighted MMCE is one of the few public ones that divide once."""
    MMCEPenalty = pytest.importorskip("netcal.regularization").MMCEPenalty

    logits, targets, _ = cases.make_batch(40, 5)
    assert float(MMCE()(logits, targets)) == pytest.approx(float(MMCEPenalty()(logits, targets)), rel=1e-5)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("n", [1, 5])
def test_weighted_mmce_of_one_sided_batches_is_zero_with_zero_gradient(right, n):
    logits, targets = batch_with(np.linspace(0.6, 0.9, n).tolist(), [right] * n)
    value = MMCE()(logits, targets)
    value.backward()
    assert value.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_unweighted_mmce_of_one_sample_is_its_squared_gap():
    logits, targets = batch_with([0.8], [False])
    assert MMCE(weighted=False)(logits, targets).item() == pytest.approx(0.64)


def test_mmce_of_two_samples_by_hand():
    logits, targets = batch_with([0.9, 0.7], [True, False])
    kernel = math.exp(-0.2 / 0.4)
    expected = math.sqrt(0.1**2 + 0.7**2 - 2 * 0.1 * 0.7 * kernel)
    assert float(MMCE()(logits, targets)) == pytest.approx(expected, rel=1e-9)


def test_mmce_treats_equal_samples_alike():
    logits, targets = batch_with([0.8, 0.8, 0.6, 0.6], [True, True, False, False])
    MMCE()(logits, targets).backward()
    torch.testing.assert_close(logits.grad[0], logits.grad[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(logits.grad[2], logits.grad[3], rtol=1e-12, atol=0)


def test_soft_ece_with_hard_borders_is_ece(cases):
    logits, targets, _ = cases.make_batch(500, 4, dtype=torch.float64)
    confidence, predicted = (values.numpy() for values in logits.softmax(1).max(1))
    edges = np.linspace(0, 1, 11)
    # Away from the borders, where a soft bin equals a hard one.
    inside = np.abs(confidence[:, None] - edges).min(axis=1) > 0.005
    bins = np.digitize(confidence[inside], edges)
    wrong = confidence[inside] - (predicted[inside] == targets.numpy()[inside])
    ece = sum(abs(wrong[bins == b].sum()) for b in np.unique(bins)) / inside.sum()
    soft = SoftECE(10, temperature=1e-5)(logits[inside], targets[inside])
    assert float(soft) == pytest.approx(ece, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HuberCalibration(-0.1), "alpha must be finite and positive, got -0.1"),
        (lambda: HuberCalibration(0), "alpha must be finite and positive, got 0"),
        (
            lambda: HuberCalibration(kind="smooth_l1"),
            "kind must be 'huber' or 'smooth-l1', got 'smooth_l1'",
        ),
        (lambda: MMCE(0), "width must be finite and positive, got 0"),
        (lambda: SoftECE(0), "n_bins must"),
        (lambda: HuberCalibration("x"), "alpha must be a number, got 'x'"),
        (lambda: SoftECE(2.5), "n_bins must"),
        (lambda: SoftECE(temperature=-1), "temperature must be finite and positive, got -1"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
