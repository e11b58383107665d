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


def test_sums_are_flat_and_the_builtin_sum_works(batch):
    total = sum([Focal(), Brier(), DCA()])
    assert isinstance(total, LossSum)
    assert [type(part) for part in total.summands] == [Focal, Brier, DCA]
    torch.testing.assert_close(total(*batch), (Focal() + Brier() + DCA())(*batch))


def test_the_factor_is_a_float32_buffer_outside_the_state(batch):
    total = CrossEntropy() + 0.25 * DCA()
    ((name, factor),) = total.named_buffers()
    assert (name, factor.shape, factor.dtype) == ("summands.1.factor", torch.Size([]), torch.float32)
    assert total.state_dict() == {}
    before, address = total(*batch), factor.data_ptr()
    total.summands[1].set_factor(1.25)
    assert factor.data_ptr() == address
    torch.testing.assert_close(total(*batch) - before, DCA()(*batch))


def test_a_compiled_sum_follows_its_factor(batch):
    total = CrossEntropy() + 0.25 * DCA()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    compiled(*batch)
    total.summands[1].set_factor(4.0)
    torch.testing.assert_close(compiled(*batch), CrossEntropy()(*batch) + 4 * DCA()(*batch))


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


def test_each_class_has_its_own_forward_code():
    """torch.compile gives up after eight variants of one code object; shared, it would be used up by single losses."""
    criteria = (Focal(), Brier(), DCA(), MDCA(), 2 * Focal(), Focal() + Brier())
    assert len({id(type(criterion).forward.__code__) for criterion in criteria}) == len(criteria)


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.double()])
def test_a_cast_leaves_the_factor_as_it_is(batch, cast):
    total = cast(CrossEntropy() + 0.1 * DCA() + 1e-8 * Brier())
    expected = (CrossEntropy() + 0.1 * DCA() + 1e-8 * Brier()).terms(*batch)
    for name, value in total.terms(*batch).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[name])
    assert torch.equal(total.summands[1].factor, torch.tensor(0.1))
    assert total.to("meta").summands[1].factor.device.type == "meta"


def test_a_criterion_without_storage_gets_its_factor_on_the_new_device():
    penalty = (0.25 * DCA()).to_empty(device="cpu")
    assert float(penalty.factor) == 0.25


@pytest.mark.parametrize("factor", [-1, -1e-9, float("nan"), float("inf")])
def test_bad_factor(factor):
    with pytest.raises(InvalidInput, match=f"factor of a loss must be finite and not negative, got {factor}"):
        factor * DCA()
    with pytest.raises(ValueError, match="factor"):
        (2.0 * DCA()).set_factor(factor)


@pytest.mark.parametrize("factor", ["x", None, torch.tensor(2.0)])
def test_a_factor_that_is_no_number(factor):
    with pytest.raises(InvalidInput, match="factor of a loss must be a number, got"):
        (2.0 * DCA()).set_factor(factor)


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
    other.summands[1].set_factor(0.0)
    torch.testing.assert_close(other(*batch), CrossEntropy()(*batch))
    torch.testing.assert_close(total(*batch), CrossEntropy()(*batch) + 2 * DCA()(*batch))


def test_the_repr_shows_every_number():
    text = repr(SampleDependentFocal() + 25 * HuberCalibration(0.01, kind="smooth-l1"))
    for part in ("gamma_low=5, gamma_high=3", "factor=25", "alpha=0.01, kind='smooth-l1'"):
        assert part in text


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


def test_a_factor_survives_the_meta_device():
    with torch.device("meta"):
        loss = 0.3 * Focal()
    assert loss.factor.is_meta
    real = loss.to_empty(device="cpu")
    assert real.factor.item() == pytest.approx(0.3)
    assert real.factor.dtype == torch.float32
