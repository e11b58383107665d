"""The maths of every loss, once, as pure functions on tensors.

B samples, K classes. Most functions read log-probabilities (the output of `log_softmax`), so that a sum of losses
pays for one softmax. Per-sample functions return `[B]`; functions of a batch statistic return a scalar. None of them
looks at values on the host, so all can be compiled and captured in a CUDA graph.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

HuberKind = Literal["huber", "smooth-l1"]


def _under_functorch() -> bool:
    """Whether `torch.func` (grad, vmap, ...) is at work, which wants autograd's own operations.

    A `Function` with `setup_context` would do too, but costs 30 microseconds in every call, also outside `torch.func`.
    """
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()  # noqa: SLF001


def _differentiated_again() -> bool:
    """Whether a backward pass must itself be followed (`create_graph=True`): a closed form would be a constant."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _plain_gradient(plain: Callable[[Tensor], Tensor], gradient: Tensor, logits: Tensor) -> Tensor:
    """Gradient by autograd, through the plain formula: a function of `logits` and `gradient` that can be followed."""
    return torch.autograd.grad(plain(logits), logits, gradient, create_graph=True)[0]


def pick(rows: Tensor, columns: Tensor) -> Tensor:
    """One entry of each row: `rows[i, columns[i]]`, shape `[B]`."""
    return rows.gather(1, columns.unsqueeze(1)).squeeze(1)


def cross_entropy(log_probabilities: Tensor, true_log: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """`-(1 - e) log p_y - (e / K) sum_k log p_k`: smoothing e is spread over all K classes, the true one included.

    Args:
        log_probabilities: `[B, K]`.
        true_log: `log p_y`, `[B]`.
        label_smoothing: e, in [0, 1).
    """
    if label_smoothing == 0.0:
        return -true_log
    return -(1.0 - label_smoothing) * true_log - label_smoothing * log_probabilities.mean(dim=1)


class _Brier(torch.autograd.Function):
    """Gradient in closed form, `2 p_k (d_k - sum_j p_j d_j)` with d = p - onehot: one B x K matrix instead of four."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        column = targets.unsqueeze(1)
        # The one-hot vector is subtracted before squaring: `sum p^2 - 2 p_y + 1` would cancel for confident samples.
        difference = torch.softmax(logits, dim=1)
        difference.scatter_add_(1, column, torch.full_like(difference[:, :1], -1.0))
        value: Tensor = torch.linalg.vecdot(difference, difference)
        ctx.save_for_backward(difference, column, value, logits)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        difference, column, value, logits = ctx.saved_tensors
        if _differentiated_again():
            return _plain_gradient(lambda z: _plain_brier(z, column), gradients[0], logits), None
        at_target = difference.gather(1, column)
        mean = value.unsqueeze(1) + at_target
        # p is d but for the target, where it is d + 1.
        gradient: Tensor = (difference - mean).mul_(difference).scatter_add_(1, column, at_target - mean)
        return gradient.mul_(2.0 * gradients[0].unsqueeze(1)), None


def _plain_brier(logits: Tensor, column: Tensor) -> Tensor:
    difference = torch.softmax(logits, dim=1).scatter_add(1, column, torch.full_like(logits[:, :1], -1.0))
    return difference.square().sum(dim=1)


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """`sum_k (p_k - [k = y])^2`, in [0, 2] (Brier 1950)."""
    if _under_functorch():
        return _plain_brier(logits, targets.unsqueeze(1))
    result: Tensor = _Brier.apply(logits, targets)  # type: ignore[no-untyped-call]
    return result


def focal(true_log: Tensor, *, gamma: float | Tensor) -> Tensor:
    """`-(1 - p_y)^gamma log p_y` (Lin et al. 2017).

    Args:
        true_log: `log p_y`, `[B]`.
        gamma: One exponent, or one for each sample.
    """
    return -_power(-torch.expm1(true_log), gamma) * true_log


def flsd_gamma(true_log: Tensor, *, low: float, high: float, threshold: float) -> Tensor:
    """Exponent of FLSD for each sample: `low` where p_y < threshold, else `high`; a constant for the gradient."""
    with torch.no_grad():
        below = true_log.exp() < threshold
        return torch.where(below, torch.full_like(true_log, low), torch.full_like(true_log, high))


def dual_focal(log_probabilities: Tensor, targets: Tensor, *, gamma: float) -> Tensor:
    """`-(1 - p_y + p_j)^gamma log p_y`; p_j is the largest probability below p_y, 0 where none is (Tao et al. 2023)."""
    with torch.no_grad():
        # How far each class lies below the true one. Those that beat or equal it are no rivals in this loss;
        # `threshold` puts them out of reach and is 20 times as fast on a CPU as a boolean mask.
        below = log_probabilities.gather(1, targets.unsqueeze(1)) - log_probabilities
        distance, rival = torch.threshold_(below, 0.0, torch.inf).min(dim=1)
    both = log_probabilities.gather(1, torch.stack((targets, rival), dim=1))
    true, other = both[:, 0], both[:, 1].exp()
    other = torch.where(distance < torch.inf, other, torch.zeros_like(other))
    return -_power(other - torch.expm1(true), gamma) * true


def brier_weighted(logits: Tensor, targets: Tensor, true_log: Tensor, *, gamma: float) -> Tensor:
    """`-w log p_y` with `w = ||p - onehot||_2^gamma`, a constant for the gradient (BSCE-GRA, Lin et al. 2025).

    Args:
        logits: `[B, K]`.
        targets: `[B]`.
        true_log: `log p_y`, `[B]`; the gradient flows through it alone.
        gamma: Exponent of the norm: 2 makes w the Brier score, 0 makes w 1.
    """
    with torch.no_grad():
        weight = brier(logits.detach(), targets).pow(0.5 * gamma)
    return -weight * true_log


def adaptive_focal(true_log: Tensor, *, gamma: Tensor) -> Tensor:
    """Focal loss where gamma is not negative, inverse focal loss `-(1 + p_y)^|gamma| log p_y` where it is.

    Args:
        true_log: `log p_y`, `[B]`.
        gamma: One exponent for each sample, `[B]`.
    """
    base = torch.where(gamma < 0, 1.0 + true_log.exp(), -torch.expm1(true_log))
    return -_power(base, gamma.abs()) * true_log


def bin_numbers(values: Tensor, edges: Tensor) -> Tensor:
    """Which bin `(edge, next edge]` holds each value, `[B]`; the first and the last have no end."""
    return (values.unsqueeze(1) > edges).sum(dim=1)


def adapted_exponents(
    gammas: Tensor, confidence: Tensor, correct: Tensor, *, switch: float, bounds: tuple[float, float], rate: float
) -> tuple[Tensor, Tensor]:
    """New edges `[n_bins - 1]` and exponents `[n_bins]` of AdaFocal, from the validation cases (Ghosh et al. 2022).

    Each bin holds equally many cases (as nearly as their number and equal confidences allow). With g the mean
    confidence less the accuracy of a bin, its exponent becomes `gamma * exp(rate * g)` where it is positive, else
    `gamma * exp(-rate * g)`; one that is then smaller than `switch` becomes `switch` with the other sign.

    Args:
        gammas: The exponents so far, `[n_bins]`.
        confidence: Of each validation case, `[N]`.
        correct: 1 or 0 for each, `[N]`.
        switch: Size at which a bin changes sides.
        bounds: Smallest and largest exponent.
        rate: How strongly a gap counts.
    """
    n, n_bins = len(confidence), len(gammas)
    ordered = confidence.sort().values
    cuts = torch.arange(1, n_bins) * n // n_bins
    edges = (ordered[(cuts - 1).clamp_min(0)] + ordered[cuts.clamp_max(n - 1)]) / 2
    bins = bin_numbers(confidence, edges)
    count = torch.bincount(bins, minlength=n_bins).clamp_min(1)  # an empty bin has no gap and keeps its exponent
    gap = torch.bincount(bins, confidence - correct, minlength=n_bins) / count
    moved = gammas * torch.exp(torch.where(gammas > 0, rate, -rate) * gap)
    other_side = torch.where(moved > 0, -switch, switch)
    return edges, torch.where(moved.abs() < switch, other_side, moved).clamp(*bounds)


def _power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """`base ** exponent` for base in [0, 1] with a finite gradient at 0 for every exponent >= 0, also below 1."""
    return base.clamp_min(torch.finfo(base.dtype).tiny).pow(exponent)


class _NegativeEntropy(torch.autograd.Function):
    """Gradient in closed form, `p_k (log p_k + H)`: autograd would walk through four more B x K matrices."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        log_probabilities = torch.log_softmax(logits, dim=1)
        probabilities = log_probabilities.exp()
        # 0 log 0 is 0, and 0 times minus infinity would be NaN: a logit of minus infinity masks its class.
        log_probabilities.clamp_min_(torch.finfo(logits.dtype).min)
        value: Tensor = torch.linalg.vecdot(probabilities, log_probabilities)
        ctx.save_for_backward(log_probabilities, probabilities, value, logits)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        log_probabilities, probabilities, value, logits = ctx.saved_tensors
        if _differentiated_again():
            return _plain_gradient(_plain_negative_entropy, gradients[0], logits)
        gradient: Tensor = log_probabilities - value.unsqueeze(1)
        return gradient.mul_(probabilities).mul_(gradients[0].unsqueeze(1))


def _plain_negative_entropy(logits: Tensor) -> Tensor:
    log_probabilities = torch.log_softmax(logits, dim=1)
    return (log_probabilities.exp() * log_probabilities.clamp_min(torch.finfo(logits.dtype).min)).sum(dim=1)


def negative_entropy(logits: Tensor) -> Tensor:
    """`sum_k p_k log p_k`, in [-log K, 0]. Minimising it makes a prediction less confident (Pereyra et al. 2017)."""
    if _under_functorch():
        return _plain_negative_entropy(logits)
    result: Tensor = _NegativeEntropy.apply(logits)  # type: ignore[no-untyped-call]
    return result


class _LogitMargin(torch.autograd.Function):
    """Gradient in closed form: -1/K where a logit lies beyond the margin, and the sum of those on the largest one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, margin: float) -> Tensor:
        largest, top = logits.max(dim=1, keepdim=True)
        excess = (largest - margin - logits).relu_()
        ctx.save_for_backward(excess, top)
        return excess.mean(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Piecewise linear: these are constants also where the backward pass is itself followed.
        excess, top = ctx.saved_tensors
        beyond = excess.sign()
        count = beyond.sum(dim=1, keepdim=True)
        gradient: Tensor = beyond.neg_().scatter_add_(1, top, count)
        return gradient.mul_(gradients[0].unsqueeze(1) / excess.shape[1]), None


def logit_margin(logits: Tensor, *, margin: float) -> Tensor:
    """`mean_k max(0, max_j z_j - z_k - margin)` (MbLS, Liu et al. 2022): no penalty inside the margin."""
    if _under_functorch():
        # Indexed by the largest, as `amax` would share the gradient between equals.
        return (logits.max(dim=1, keepdim=True).values - margin - logits).relu().mean(dim=1)
    result: Tensor = _LogitMargin.apply(logits, margin)  # type: ignore[no-untyped-call]
    return result


def huber(gap: Tensor, *, alpha: float, kind: HuberKind = "huber") -> Tensor:
    """Huber function of a gap: `g^2 / 2` up to alpha, `alpha (|g| - alpha / 2)` beyond.

    The paper prints the second branch as `alpha |g - alpha / 2|`, which is not even continuous at -alpha.
    `kind="smooth-l1"` divides by alpha: slope 1 instead of alpha.
    """
    size = gap.abs()
    value = torch.where(size < alpha, 0.5 * gap * gap, alpha * (size - 0.5 * alpha))
    return value / alpha if kind == "smooth-l1" else value


def class_gap_sums(probabilities: Tensor, targets: Tensor) -> Tensor:
    """`sum_i (p_ik - [y_i = k])` for each class k, shape `[K]`."""
    counts = probabilities.new_zeros(probabilities.shape[1])
    counts = counts.scatter_add(0, targets, torch.ones_like(probabilities[:, 0]))
    return probabilities.sum(dim=0) - counts


def soft_bin_sums(confidence: Tensor, correct: Tensor, *, n_bins: int, temperature: float) -> Tensor:
    """`sum_i u_ij (r_i - c_i)` for each bin j, shape `[n_bins]`.

    The membership `u_i = softmax_j(-(r_i - m_j)^2 / temperature)` shares a sample between bins with middles
    `m_j = (j - 1/2) / n_bins` (Karandikar et al. 2021).
    """
    steps = torch.arange(n_bins, dtype=confidence.dtype, device=confidence.device)
    distance = confidence.unsqueeze(1) - (steps + 0.5) / n_bins
    membership = torch.softmax(-distance.square() / temperature, dim=1)
    return (membership * (confidence - correct).unsqueeze(1)).sum(dim=0)


def mmce_weights(confidence: Tensor, correct: Tensor, present: Tensor, *, weighted: bool) -> Tensor:
    """Signed weight v_i of each sample, so that MMCE squared is `sum_ij v_i v_j k(r_i, r_j)`.

    Unweighted: `(c_i - r_i) / m`. Weighted: `(1 - r_i) / m_right` for right predictions, `-r_i / m_wrong` for wrong
    ones, and all zero where either group is empty: there is nothing to hold against each other.

    Args:
        confidence: r, `[M]`.
        correct: c, 1 or 0, `[M]`.
        present: 0 for rows that only pad the batch, else 1, `[M]`.
        weighted: Which of the two.
    """
    if not weighted:
        return (correct - confidence) * present / present.sum()
    right, wrong = correct * present, (1.0 - correct) * present
    n_right, n_wrong = right.sum(), wrong.sum()
    both = (n_right * n_wrong).clamp(max=1.0)
    share = right / n_right.clamp_min(1.0) + wrong / n_wrong.clamp_min(1.0)
    return both * share * (correct - confidence)


class _KernelSquare(torch.autograd.Function):
    """Gradient in closed form: autograd would keep and walk through half a dozen B x B matrices."""

    @staticmethod
    def forward(ctx: Any, confidence: Tensor, weights: Tensor, width: float) -> Tensor:
        difference = confidence.unsqueeze(1) - confidence
        kernel = difference.abs().mul_(-1.0 / width).exp_()
        smoothed = kernel @ weights
        # sign(0) = 0: two equal confidences do not push each other apart.
        slope = kernel.mul_(difference.sign_()) @ weights
        ctx.save_for_backward(2.0 * smoothed, (-2.0 / width) * weights * slope, confidence, weights)
        ctx.width = width
        return weights @ smoothed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        by_weights, by_confidence, confidence, weights = ctx.saved_tensors
        if _differentiated_again():
            # Not by autograd: the weights are themselves made of confidences, and it would count them twice.
            difference = confidence.unsqueeze(1) - confidence
            kernel = torch.exp(difference.abs() / -ctx.width)
            by_weights = 2.0 * (kernel @ weights)
            by_confidence = (-2.0 / ctx.width) * weights * ((kernel * difference.sign()) @ weights)
        return gradients[0] * by_confidence, gradients[0] * by_weights, None


def _plain_kernel_square(confidence: Tensor, weights: Tensor, width: float) -> Tensor:
    kernel = torch.exp((confidence.unsqueeze(1) - confidence).abs() / -width)
    return weights @ (kernel @ weights)


def kernel_square(confidence: Tensor, weights: Tensor, *, width: float) -> Tensor:
    """`sum_ij v_i v_j exp(-|r_i - r_j| / width)`: a squared norm, never negative but for rounding."""
    if _under_functorch():
        return _plain_kernel_square(confidence, weights, width)
    result: Tensor = _KernelSquare.apply(confidence, weights, width)  # type: ignore[no-untyped-call]
    return result


def safe_sqrt(square: Tensor) -> Tensor:
    """Square root with value 0 and gradient 0 where the argument is 0 but for rounding; NaN stays NaN."""
    nothing = square <= torch.finfo(square.dtype).eps ** 2
    root = torch.where(nothing, torch.ones_like(square), square).sqrt()
    return torch.where(nothing, torch.zeros_like(root), root)
