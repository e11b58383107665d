"""Adding, scaling and taking apart."""

import copy

import numpy as np
import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.losses import (
    DCA,
    MDCA,
    MMCE,
    Brier,
    CrossEntropy,
    Focal,
    HuberCalibration,
    Loss,
    PerSampleLoss,
    SampleDependentFocal,
)
from calibrant.losses.base import LossSum


@pytest.fixture
def batch(cases):
    logits, targets, _ = cases.make_batch(16, 5)
    return logits, targets


def test_a_sum_is_the_sum(batch):
    total = Focal() + 2.0 * Brier() + HuberCalibration() * 10
    expected = Focal()(*batch) + 2 * Brier()(*batch) + 10 * HuberCalibration()(*batch)
    torch.testing.assert_close(total(*batch), expected)


def test_terms_are_weighted_as_they_enter_and_add_up(batch):
    total = CrossEntropy() + 0.5 * (2.0 * DCA() + 3 * (MDCA() * 4))
    terms = total.terms(*batch)
    expected = {"cross_entropy": CrossEntropy()(*batch), "dca": DCA()(*batch), "mdca": 6 * MDCA()(*batch)}
    assert list(terms) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value)
    torch.testing.assert_close(sum(terms.values()), total(*batch))


def test_terms_of_a_single_loss(batch):
    assert list(MMCE().terms(*batch)) == ["mmce"]
    assert list((3 * SampleDependentFocal()).terms(*batch)) == ["sample_dependent_focal"]


def test_names_of_equal_parts_are_unique(batch):
    terms = (Focal(1.0) + Focal(2.0) + 2 * Focal(3.0)).terms(*batch)
    assert list(terms) == ["focal", "focal_2", "focal_3"]
    torch.testing.assert_close(terms["focal_3"], 2 * Focal(3.0)(*batch))


def test_sums_are_flat():
    total = Focal() + (Brier() + DCA())
    assert isinstance(total, LossSum)
    assert [type(part) for part in total.summands] == [Focal, Brier, DCA]


def test_the_default_compiler_gives_the_same(batch):
    """The others use a quick backend; this one generates code."""
    total = SampleDependentFocal() + 10 * HuberCalibration() + 2 * MMCE()
    logits, targets = batch[0].clone().requires_grad_(), batch[1]
    torch.compile(total, fullgraph=True)(logits, targets).backward()
    expected = batch[0].clone().requires_grad_()
    total(expected, targets).backward()
    torch.testing.assert_close(logits.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_common_devices_are_not_asked_for_autocast_in_every_call(batch, monkeypatch):
    # torch 2.11 cannot compile that question: a step would fall back to uncompiled code there.
    monkeypatch.setattr(torch.amp, "is_autocast_available", None)
    logits, targets = batch
    assert torch.isfinite(CrossEntropy()(logits, targets))


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.double()])
def test_a_cast_leaves_the_factor_as_it_is(batch, cast):
    total = cast(CrossEntropy() + 0.1 * DCA() + 1e-8 * Brier())
    expected = (CrossEntropy() + 0.1 * DCA() + 1e-8 * Brier()).terms(*batch)
    for name, value in total.terms(*batch).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize("factor", [-1, -1e-9, float("nan"), float("inf")])
def test_bad_factor(factor):
    with pytest.raises(InvalidInput, match=f"factor of a loss must be finite and not negative, got {factor}"):
        factor * DCA()


@pytest.mark.parametrize("other", [torch.tensor(2.0), "2", None, DCA()])
def test_only_numbers_scale(other):
    with pytest.raises(TypeError):
        DCA() * other


@pytest.mark.parametrize("other", [1, 1.0, "a", None, torch.nn.CrossEntropyLoss()])
def test_only_losses_add(other):
    with pytest.raises(TypeError):
        DCA() + other
    with pytest.raises(TypeError):
        other + DCA()


def test_numpy_numbers_scale(batch):
    torch.testing.assert_close((np.float32(2) * DCA())(*batch), 2 * DCA()(*batch))
    torch.testing.assert_close((DCA() * np.int64(2))(*batch), 2 * DCA()(*batch))


def test_copies_are_independent(batch):
    total = CrossEntropy() + 2.0 * DCA()
    other = copy.deepcopy(total)
    other.factors[1] = 0.0
    torch.testing.assert_close(other(*batch), CrossEntropy()(*batch))
    torch.testing.assert_close(total(*batch), CrossEntropy()(*batch) + 2 * DCA()(*batch))


def test_a_loss_of_ones_own_joins_in(batch):
    class FirstLogit(Loss):
        """Mean of the first logit; only the two methods of the contract."""

        def local_sums(self, batch):
            return batch.logits[:, 0].sum().reshape(1)

        def value(self, totals, count, batch):
            return totals.squeeze(0) / count

    class Doubled(FirstLogit):
        def forward(self, *arguments, **options):
            return 2 * super().forward(*arguments, **options)

    class Child(Doubled):
        pass

    mean = batch[0][:, 0].mean()
    torch.testing.assert_close((Focal() + 3 * FirstLogit()).terms(*batch)["first_logit"], 3 * mean)
    torch.testing.assert_close(Child()(*batch), 2 * mean)


def test_a_loss_that_is_not_complete_says_what_it_lacks():
    class Mine(Loss):
        pass

    class Single(PerSampleLoss):
        pass

    logits, targets = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(InvalidInput, match="Mine must define local_sums and value"):
        Mine()(logits, targets)
    with pytest.raises(InvalidInput, match="Single must define per_sample"):
        Single()(logits, targets)
