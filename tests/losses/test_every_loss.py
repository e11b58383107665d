"""What holds for every loss: value, gradient, weights, extremes, mixed precision, compilation."""

import copy

import pytest
import torch

from calibrant.errors import InvalidInput

SHAPES = [(n, k) for n in (1, 7, 1024) for k in (2, 10, 1000)]
EXTREME = 1e4


def gradient(loss, logits, *arguments):
    logits = logits.detach().clone().requires_grad_()
    loss(logits, *arguments).backward()
    return logits.grad


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_value_equals_the_formula_in_float64(case, cases, n, k):
    logits, targets, weights = cases.make_batch(n, k)
    expected = case.reference(logits.double().tolist(), targets.tolist(), weights.double().tolist())
    value = case.loss(logits, targets, weights)
    assert value.dtype == torch.float32
    assert value.shape == ()
    assert float(value) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_without_weights_each_sample_weighs_one(case, cases):
    logits, targets, _ = cases.make_batch(7, 10)
    expected = case.reference(logits.double().tolist(), targets.tolist())
    assert float(case.loss(logits, targets)) == pytest.approx(expected, rel=1e-6)


def test_float64_stays_float64(case, cases):
    logits, targets, weights = cases.make_batch(7, 10, dtype=torch.float64)
    value = case.loss(logits, targets, weights)
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(case.reference(logits.tolist(), targets.tolist(), weights.tolist()), rel=1e-12)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_equals_finite_differences(derived_case, cases, k, seed):
    logits, targets, weights = cases.make_batch(9, k, seed=seed, scale=1.5, dtype=torch.float64)
    loss = derived_case.loss
    assert torch.autograd.gradcheck(lambda z: loss(z, targets, weights), logits.requires_grad_(), atol=1e-7)


@pytest.mark.parametrize("seed", [0, 1])
def test_second_derivative_equals_finite_differences(derived_case, cases, seed):
    """A gradient penalty differentiates the gradient: a closed form must not be a constant there."""
    logits, targets, weights = cases.make_batch(7, 4, seed=seed, scale=1.5, dtype=torch.float64)
    loss = derived_case.loss
    assert torch.autograd.gradgradcheck(lambda z: loss(z, targets, weights), logits.requires_grad_(), atol=1e-7)


def test_torch_func_gives_the_same_gradient(case, cases):
    logits, targets, weights = cases.make_batch(9, 5, dtype=torch.float64)
    found, value = torch.func.grad_and_value(case.loss)(logits, targets, weights)
    torch.testing.assert_close(value, case.loss(logits, targets, weights))
    torch.testing.assert_close(found, gradient(case.loss, logits, targets, weights))


def test_vmap_over_batches_is_a_loop_over_batches(case, cases):
    """Per-sample gradients and ensembles: values cannot be looked at inside, shapes are."""
    batches = [cases.make_batch(4, 5, seed=seed, dtype=torch.float64) for seed in range(3)]
    logits, targets, weights = (torch.stack(parts) for parts in zip(*batches, strict=True))
    found = torch.func.vmap(torch.func.grad(case.loss))(logits, targets, weights)
    torch.testing.assert_close(found, torch.stack([gradient(case.loss, *batch) for batch in batches]))
    with pytest.raises(InvalidInput, match="targets must"):
        torch.func.vmap(case.loss)(logits, targets[:, :3], weights)


def test_float32_gradient_equals_float64_gradient(case, cases):
    logits, targets, weights = cases.make_batch(64, 10)
    exact = gradient(case.loss, logits.double(), targets, weights.double())
    torch.testing.assert_close(
        gradient(case.loss, logits, targets, weights).double(), exact, rtol=1e-4, atol=2e-6 * float(exact.abs().max())
    )


def test_weights_multiply_per_sample_losses_only(case, cases):
    """Divided by the batch size, not by the sum of weights; a batch statistic does not see them."""
    logits, targets, _ = cases.make_batch(16, 10)
    plain = case.loss.terms(logits, targets)
    tripled = case.loss.terms(logits, targets, torch.full((16,), 3.0))
    per_sample = {
        "cross_entropy",
        "brier",
        "focal",
        "sample_dependent_focal",
        "dual_focal",
        "bscegra",
        "ada_focal",
        "entropy_penalty",
        "logit_margin",
    }
    for name, value in tripled.items():
        assert float(value) == pytest.approx(float(plain[name]) * (3 if name in per_sample else 1), rel=1e-6)


def test_importance_weights_keep_the_expected_gradient(per_sample_case, cases):
    """Half of the samples rest and the others weigh 2: the mean over both halves is the gradient of all."""
    loss = per_sample_case.loss
    logits, targets, _ = cases.make_batch(8, 5, dtype=torch.float64)
    even = torch.tensor([2.0, 0.0] * 4, dtype=torch.float64)
    mean = (gradient(loss, logits, targets, even) + gradient(loss, logits, targets, 2 - even)) / 2
    torch.testing.assert_close(mean, gradient(loss, logits, targets), rtol=1e-12, atol=0)


def extreme_batches():
    k = 4
    eye = EXTREME * (2 * torch.eye(k) - 1)
    targets = torch.arange(k)
    return {
        "all right": (eye, targets),
        "all wrong": (eye, (targets + 1) % k),
        "half right": (eye, torch.tensor([0, 1, 3, 2])),
        "all equal": (torch.full((k, k), EXTREME), targets),
        "two equal tops": (torch.tensor([[EXTREME, EXTREME, -EXTREME, -EXTREME]] * k), targets),
        "zeros": (torch.zeros(k, k), targets),
        "one right": (eye[:1], targets[:1]),
        "one wrong": (eye[:1], targets[1:2]),
        "two classes": (torch.tensor([[EXTREME, -EXTREME], [-EXTREME, EXTREME]]), torch.tensor([0, 0])),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_extreme_logits_give_finite_value_and_gradient(case, dtype):
    for batch, (extreme, targets) in extreme_batches().items():
        logits = extreme.to(dtype).requires_grad_()
        value = case.loss(logits, targets, torch.ones(len(targets)))
        value.backward()
        assert torch.isfinite(value), batch
        assert torch.isfinite(logits.grad).all(), batch


def test_probability_that_rounds_to_one_has_a_finite_gradient(case):
    """p_y rounds to exactly 1 in float32: (1 - p)^gamma is 0 and its derivative may be infinite."""
    logits = torch.tensor([[40.0, 0.0, 0.0]], requires_grad=True)
    case.loss(logits, torch.tensor([0])).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_logit_breaks_the_value_too(case, cases, broken):
    """A finite loss whose gradient is not would hide a diverged training from everybody who watches the loss."""
    logits, targets, weights = cases.make_batch(7, 10)
    logits[3, 4] = broken
    assert torch.isnan(case.loss(logits, targets, weights))
    assert torch.isnan(case.loss(logits[3:4], targets[3:4]))


def test_a_masked_class_is_as_one_that_lies_far_below(case, cases):
    logits, targets, weights = cases.make_batch(7, 10)
    targets[targets == 4] = 5
    logits[:, 4] = -1e4
    expected, slope = case.loss(logits, targets, weights), gradient(case.loss, logits, targets, weights)
    logits[:, 4] = -torch.inf
    if case.name in {"smoothed", "margin", "margin_1"}:  # whose formula is infinite there, as the docstring says
        assert case.loss(logits, targets, weights) == torch.inf
        return
    torch.testing.assert_close(case.loss(logits, targets, weights), expected)
    torch.testing.assert_close(gradient(case.loss, logits, targets, weights), slope)


def test_autocast_computes_in_float32(case, cases):
    """Under bf16 autocast the value is that of the bf16 logits, computed in float32: no bf16 arithmetic inside."""
    logits, targets, weights = cases.make_batch(32, 10)
    rounded = logits.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = case.loss(rounded, targets, weights)
        low = gradient(case.loss, rounded, targets, weights)
    assert value.dtype == torch.float32
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(value, case.loss(rounded.float(), targets, weights), rtol=0, atol=0)
    exact = gradient(case.loss, rounded.float(), targets, weights)
    torch.testing.assert_close(low, exact.bfloat16(), rtol=1e-2, atol=1e-6)


def test_any_integer_type_of_targets(case, cases):
    logits, targets, _ = cases.make_batch(7, 10)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        assert torch.equal(case.loss(logits, targets.to(dtype)), case.loss(logits, targets))


def test_inputs_are_left_alone(case, cases):
    logits, targets, weights = cases.make_batch(7, 10)
    before = copy.deepcopy((logits, targets, weights))
    case.loss(logits, targets, weights)
    for now, then in zip((logits, targets, weights), before, strict=True):
        assert torch.equal(now, then)


def test_rows_may_be_permuted(case, cases):
    logits, targets, weights = cases.make_batch(17, 6, dtype=torch.float64)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(0))
    swapped = case.loss(logits[order], targets[order], weights[order])
    torch.testing.assert_close(case.loss(logits, targets, weights), swapped, rtol=1e-12, atol=1e-14)


def test_a_constant_added_to_all_logits_changes_nothing(case, cases):
    logits, targets, weights = cases.make_batch(17, 6, dtype=torch.float64)
    torch.testing.assert_close(
        case.loss(logits, targets, weights), case.loss(logits + 7, targets, weights), rtol=1e-11, atol=1e-13
    )


def test_compiles_to_one_graph(case, cases):
    torch.compiler.reset()  # all classes share one code object, which the compiler compiles eight times at most
    compiled = torch.compile(case.loss, fullgraph=True, backend="aot_eager")
    for n in (8, 12):
        logits, targets, weights = cases.make_batch(n, 10)
        torch.testing.assert_close(compiled(logits, targets, weights), case.loss(logits, targets, weights))
        expected = gradient(case.loss, logits, targets, weights)
        torch.testing.assert_close(gradient(compiled, logits, targets, weights), expected)


def test_no_host_synchronisation(case, cases):
    """A meta tensor has no values: whatever looks at one on the host fails, as it would wait on a GPU."""
    logits, targets, weights = (tensor.to("meta") for tensor in cases.make_batch(8, 10))
    loss = copy.deepcopy(case.loss).to("meta")
    assert gradient(loss, logits, targets, weights).shape == (8, 10)
    assert all(value.shape == () for value in loss.terms(logits, targets, weights).values())
