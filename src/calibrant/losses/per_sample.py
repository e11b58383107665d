"""Losses that are a mean over samples: `sum_i w_i l_i / B`. Each class holds its formula.

B samples, K classes. Most losses read log-probabilities, so that a sum of losses pays for one softmax. None of them
looks at values on the host, so all can be compiled and captured in a CUDA graph.
"""

import torch
from torch import Tensor

from calibrant.checks import not_negative, number, positive, whole
from calibrant.errors import InvalidInput, invalid
from calibrant.losses.base import Batch, Loss, check_batch


class PerSampleLoss(Loss):
    """Base of the losses that give one value for each sample; a subclass only says which."""

    def per_sample(self, batch: Batch) -> Tensor:  # noqa: ARG002 (a subclass uses it)
        """The loss of each sample, `[B]`, before weighting."""
        raise InvalidInput(f"{type(self).__name__} must define per_sample(batch), the loss of each sample.")

    def local_sums(self, batch: Batch) -> Tensor:
        """Weighted sum over this rank's samples."""
        losses = self.per_sample(batch)
        # A mean would be divided by B again, a column multiplied by all weights.
        if losses.shape != batch.targets.shape:
            rule = f"return one value per sample, shape [{batch.size}]"
            raise invalid(f"per_sample of {type(self).__name__}", rule, f"shape {list(losses.shape)}")
        return batch.weighted_sum(losses)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002 (the base's signature)
        """Mean over the global batch."""
        return totals.squeeze(0) / count


class CrossEntropy(PerSampleLoss):
    """Negative log-likelihood: `-log p_y`, or with smoothing e the cross-entropy to `(1 - e) onehot + e / K`.

    Args:
        label_smoothing: e in [0, 1), spread over all K classes, the true one included. 0 is plain NLL; 0.05 is what
            the calibration literature mostly uses (Szegedy et al. 2016; Mueller et al. 2019). With smoothing, a class
            masked by a logit of minus infinity makes the loss infinite.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= number("label_smoothing", label_smoothing) < 1:
            raise invalid("label_smoothing", "lie in [0, 1)", label_smoothing)
        self.label_smoothing = float(label_smoothing)

    def per_sample(self, batch: Batch) -> Tensor:
        """`-(1 - e) log p_y - (e / K) sum_k log p_k`."""
        e = self.label_smoothing
        if e == 0.0:
            return -batch.true_log
        return -(1.0 - e) * batch.true_log - e * batch.log_probabilities.mean(dim=1)


class Brier(PerSampleLoss):
    """`sum_k (p_k - [k = y])^2`: summed over classes, in [0, 2] (Brier 1950)."""

    def per_sample(self, batch: Batch) -> Tensor:
        """The squared distance to the one-hot vector."""
        return brier_scores(batch.logits, batch.targets)


class Focal(PerSampleLoss):
    """`-(1 - p_y)^gamma log p_y` (Lin et al. 2017; for calibration Mukhoti et al. 2020).

    Args:
        gamma: At least 0; 0 is cross-entropy. 3 is Mukhoti's best fixed value.
    """

    def __init__(self, gamma: float = 3.0) -> None:
        super().__init__()
        self.gamma = not_negative("gamma", gamma)

    def per_sample(self, batch: Batch) -> Tensor:
        """The formula above."""
        return -_power(-torch.expm1(batch.true_log), self.gamma) * batch.true_log


class SampleDependentFocal(PerSampleLoss):
    """FLSD-53 (Mukhoti et al. 2020): focal loss with gamma 5 if p_y < 0.2 and gamma 3 otherwise.

    The choice of gamma is a constant for the gradient. At the threshold the value jumps, as it does in the original.

    Args:
        gamma_low: Exponent if p_y < 0.2.
        gamma_high: Exponent otherwise.
    """

    def __init__(self, *, gamma_low: float = 5.0, gamma_high: float = 3.0) -> None:
        super().__init__()
        self.gamma_low = not_negative("gamma_low", gamma_low)
        self.gamma_high = not_negative("gamma_high", gamma_high)

    def per_sample(self, batch: Batch) -> Tensor:
        """Focal loss with the exponent of each sample."""
        true_log = batch.true_log
        with torch.no_grad():
            below = true_log.exp() < 0.2
            low, high = torch.full_like(true_log, self.gamma_low), torch.full_like(true_log, self.gamma_high)
            gamma = torch.where(below, low, high)
        return -_power(-torch.expm1(true_log), gamma) * true_log


class DualFocal(PerSampleLoss):
    """`-(1 - p_y + p_j)^gamma log p_y`; p_j is the largest probability below p_y, 0 if there is none (Tao et al. 2023).

    Args:
        gamma: At least 0; the authors use 5 for ResNet-50 on both CIFARs and 2.3 on Tiny-ImageNet.
    """

    def __init__(self, gamma: float = 5.0) -> None:
        super().__init__()
        self.gamma = not_negative("gamma", gamma)

    def per_sample(self, batch: Batch) -> Tensor:
        """The formula above."""
        log_probabilities, targets = batch.log_probabilities, batch.targets
        with torch.no_grad():
            # How far each class lies below the true one. Those that beat or equal it are no rivals in this loss;
            # `threshold` puts them out of reach and is 20 times as fast on a CPU as a boolean mask.
            below = log_probabilities.gather(1, targets.unsqueeze(1)) - log_probabilities
            distance, rival = torch.threshold_(below, 0.0, torch.inf).min(dim=1)
        both = log_probabilities.gather(1, torch.stack((targets, rival), dim=1))
        true, other = both[:, 0], both[:, 1].exp()
        other = torch.where(distance < torch.inf, other, torch.zeros_like(other))
        return -_power(other - torch.expm1(true), self.gamma) * true


class BSCEGRA(PerSampleLoss):
    """BSCE-GRA (Lin et al. 2025): cross-entropy whose gradient is scaled by the Brier score of the sample.

    `-w log p_y` with `w = ||p - onehot||_2^gamma`. The weight is a constant for the gradient, which is therefore not
    the derivative of the value.

    Args:
        gamma: Exponent of the norm, at least 0. 2 is the Brier score, 0 is cross-entropy.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = not_negative("gamma", gamma)

    def per_sample(self, batch: Batch) -> Tensor:
        """The formula above."""
        with torch.no_grad():
            weight = brier_scores(batch.logits.detach(), batch.targets).pow(0.5 * self.gamma)
        return -weight * batch.true_log


class EntropyPenalty(PerSampleLoss):
    """Negative entropy `sum_k p_k log p_k`: *adding* it to a loss lowers confidence (Pereyra et al. 2017).

    A class masked by a logit of minus infinity adds nothing: 0 log 0 = 0.
    """

    def per_sample(self, batch: Batch) -> Tensor:
        """In [-log K, 0]."""
        # 0 times minus infinity would be NaN.
        finite = batch.log_probabilities.clamp_min(torch.finfo(batch.logits.dtype).min)
        return (batch.probabilities * finite).sum(dim=1)


class LogitMargin(PerSampleLoss):
    """`mean_k max(0, max_j z_j - z_k - margin)`: the penalty of MbLS, to be added to cross-entropy (Liu et al. 2022).

    Logits must be finite: a class masked by minus infinity lies infinitely far beyond any margin, and the loss
    is infinite.

    Args:
        margin: At least 0; the authors use 10.
    """

    def __init__(self, margin: float = 10.0) -> None:
        super().__init__()
        self.margin = not_negative("margin", margin)

    def per_sample(self, batch: Batch) -> Tensor:
        """No penalty inside the margin."""
        # Indexed by the largest, as `amax` would share the gradient between equals.
        largest = batch.logits.max(dim=1, keepdim=True).values
        return (largest - self.margin - batch.logits).relu().mean(dim=1)


class AdaFocal(PerSampleLoss):
    """AdaFocal (Ghosh et al. 2022): a focal exponent for each bin of confidence, which follows validation.

    A sample takes the exponent of the bin that holds its p_y. If it is positive the loss is the focal loss
    `-(1 - p_y)^gamma log p_y`; if it is negative the inverse focal loss `-(1 + p_y)^|gamma| log p_y`, which makes
    confidence grow. `after_validation` moves bins and exponents. They lie in buffers, and so in `state_dict`.

    Args:
        n_bins: Number of bins; each holds equally many of the validation cases.
        gamma: Exponent of every bin in the beginning.
        switch: Size of an exponent below which a bin changes from focal to inverse focal, or back; positive.
        lowest: No exponent falls below it; at most -switch.
        highest: None rises above it; at least switch.
    """

    gammas: Tensor
    edges: Tensor

    def __init__(
        self,
        n_bins: int = 15,
        *,
        gamma: float = 1.0,
        switch: float = 0.2,
        lowest: float = -2.0,
        highest: float = 20.0,
    ) -> None:
        super().__init__()
        self.n_bins = whole("n_bins", n_bins, 1)
        self.switch = positive("switch", switch)
        self.lowest, self.highest = number("lowest", lowest), number("highest", highest)
        ordered = self.lowest <= -self.switch and self.switch <= self.highest
        if not (ordered and self.lowest <= number("gamma", gamma) <= self.highest):
            rule = "satisfy lowest <= -switch, switch <= highest and lowest <= gamma <= highest"
            raise invalid("AdaFocal", rule, f"{lowest}, {switch}, {highest} and {gamma}")
        self.register_buffer("gammas", torch.full((self.n_bins,), float(gamma)))
        # Where one bin ends and the next begins. Equally wide until the first validation: all exponents are alike.
        self.register_buffer("edges", torch.arange(1, self.n_bins) / self.n_bins)

    def per_sample(self, batch: Batch) -> Tensor:
        """Focal or inverse focal loss, by the exponent of each sample's bin."""
        true_log = batch.true_log
        bins = _bin_numbers(true_log.detach().exp(), self.edges.to(true_log.dtype))
        gamma = self.gammas.to(true_log.dtype)[bins]
        base = torch.where(gamma < 0, 1.0 + true_log.exp(), -torch.expm1(true_log))
        return -_power(base, gamma.abs()) * true_log

    @property
    def follows_validation(self) -> bool:
        """Yes."""
        return True

    @torch.no_grad()
    def after_validation(self, logits: Tensor, targets: Tensor) -> None:
        """Move bins and exponents, in place: a captured CUDA graph reads the new ones.

        Each bin then holds equally many cases (as nearly as their number and equal confidences allow). With g the mean
        confidence less the accuracy of a bin, its exponent becomes `gamma * exp(g)` if it is positive, else
        `gamma * exp(-g)`; one that is then smaller than `switch` becomes `switch` with the other sign.
        """
        check_batch(logits.cpu(), targets.cpu(), None)
        if not bool(torch.isfinite(logits).all()):
            raise invalid("logits", "be finite", "NaN or infinity")
        confidence, predicted = torch.softmax(logits.detach().cpu().double(), dim=1).max(dim=1)
        correct = (predicted == targets.cpu()).double()
        n, n_bins, gammas = len(confidence), self.n_bins, self.gammas.cpu().double()
        ordered = confidence.sort().values
        cuts = torch.arange(1, n_bins) * n // n_bins
        edges = (ordered[(cuts - 1).clamp_min(0)] + ordered[cuts.clamp_max(n - 1)]) / 2
        bins = _bin_numbers(confidence, edges)
        count = torch.bincount(bins, minlength=n_bins).clamp_min(1)  # an empty bin has no gap and keeps its exponent
        gap = torch.bincount(bins, confidence - correct, minlength=n_bins) / count
        moved = gammas * torch.exp(torch.where(gammas > 0, gap, -gap))
        other_side = torch.where(moved > 0, -self.switch, self.switch)
        moved = torch.where(moved.abs() < self.switch, other_side, moved)
        self.edges.copy_(edges)
        self.gammas.copy_(moved.clamp(self.lowest, self.highest))


def _bin_numbers(values: Tensor, edges: Tensor) -> Tensor:
    """Which bin `(edge, next edge]` holds each value, `[B]`; the first and the last have no end."""
    return (values.unsqueeze(1) > edges).sum(dim=1)


def _power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """`base ** exponent` for base in [0, 1] with a finite gradient at 0 for every exponent >= 0, also below 1."""
    return base.clamp_min(torch.finfo(base.dtype).tiny).pow(exponent)


def brier_scores(logits: Tensor, targets: Tensor) -> Tensor:
    """`sum_k (p_k - [k = y])^2` of each sample, `[B]`."""
    # The one-hot vector is subtracted before squaring: `sum p^2 - 2 p_y + 1` would cancel for confident samples.
    minus_one = torch.full_like(logits[:, :1], -1.0)
    difference = torch.softmax(logits, dim=1).scatter_add(1, targets.unsqueeze(1), minus_one)
    return difference.square().sum(dim=1)
