"""Losses that are a statistic of the whole (global) batch. They ignore `weights`.

Importance weights make a mean *loss* unbiased when samples rest; a mean confidence or an accuracy of the batch at hand
is no such mean over the data set, and weighting it would compare a batch that is not the one trained on.
"""

from typing import Literal

import torch
from torch import Tensor

from calibrant.checks import positive, whole
from calibrant.errors import invalid
from calibrant.losses.base import Batch, Loss
from calibrant.losses.distributed import global_rows


class _GapLoss(Loss):
    """A function of one number: mean confidence minus accuracy of the batch."""

    def local_sums(self, batch: Batch) -> Tensor:
        """Sum of confidence minus correctness; the gradient flows through the confidences alone."""
        confidence, correct = batch.top
        return (confidence - correct).sum().reshape(1)


class HuberCalibration(_GapLoss):
    """The paper's term: Huber function of mean confidence minus accuracy (Patra et al., WACV 2023).

    `g = mean_i max_k p_ik - mean_i [argmax_k p_ik = y_i]`; `g^2 / 2` if |g| < alpha, else `alpha (|g| - alpha / 2)`.
    The paper prints the second branch as `alpha |g - alpha / 2|`, which is not even continuous at -alpha.

    Args:
        alpha: Where the quadratic part ends, positive. 0.005 is the paper's choice for every data set.
        kind: "huber" has slope alpha in its linear part; "smooth-l1" is Huber / alpha, slope 1: with the paper's alpha
            200 times as strong. The paper does not say which of the two its code used.
    """

    def __init__(self, alpha: float = 0.005, *, kind: Literal["huber", "smooth-l1"] = "huber") -> None:
        super().__init__()
        self.alpha = positive("alpha", alpha)
        if kind not in ("huber", "smooth-l1"):
            raise invalid("kind", "be 'huber' or 'smooth-l1'", repr(kind))
        self.kind = kind

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002 (the base's signature)
        """The Huber function of the gap."""
        gap = totals.squeeze(0) / count
        size = gap.abs()
        value = torch.where(size < self.alpha, 0.5 * gap * gap, self.alpha * (size - 0.5 * self.alpha))
        if self.kind == "smooth-l1":
            return value / self.alpha
        return value


class DCA(_GapLoss):
    """Absolute value of mean confidence minus accuracy (Liang et al. 2020)."""

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """`|g|`."""
        return totals.squeeze(0).abs() / count


class MDCA(Loss):
    """`(1/K) sum_k |mean_i p_ik - mean_i [y_i = k]|` (Hebbalaguppe et al. 2022): DCA for each class."""

    def local_sums(self, batch: Batch) -> Tensor:
        """`sum_i (p_ik - [y_i = k])` for each class k, shape `[K]`."""
        probabilities = batch.probabilities
        counts = probabilities.new_zeros(probabilities.shape[1])
        counts = counts.scatter_add(0, batch.targets, torch.ones_like(probabilities[:, 0]))
        return probabilities.sum(dim=0) - counts

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """Mean over classes of the absolute gap."""
        return totals.abs().mean() / count


class SoftECE(Loss):
    """Expected calibration error with soft bins (Karandikar et al. 2021): `sum_j |sum_i u_ij (r_i - c_i)| / B`.

    Args:
        n_bins: Number of equally wide bins.
        temperature: Softness of their borders, positive: membership is `softmax_j(-(r - m_j)^2 / temperature)`.
    """

    def __init__(self, n_bins: int = 15, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.n_bins = whole("n_bins", n_bins, 1)
        self.temperature = positive("temperature", temperature)

    def local_sums(self, batch: Batch) -> Tensor:
        """`sum_i u_ij (r_i - c_i)` for each bin j with middle `m_j = (j - 1/2) / n_bins`, shape `[n_bins]`."""
        confidence, correct = batch.top
        steps = torch.arange(self.n_bins, dtype=confidence.dtype, device=confidence.device)
        distance = confidence.unsqueeze(1) - (steps + 0.5) / self.n_bins
        membership = torch.softmax(-distance.square() / self.temperature, dim=1)
        return (membership * (confidence - correct).unsqueeze(1)).sum(dim=0)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """Sum over bins of the absolute gap, each bin weighted by its share of the samples."""
        return totals.abs().sum() / count


class MMCE(Loss):
    """Kernel calibration error over all pairs of samples (Kumar et al. 2018), normalised once as its paper defines it.

    Public implementations take a mean over pairs and then divide by the pair counts again, which makes the term about
    B times too small; this one does not.

    Args:
        width: Of the Laplacian kernel `exp(-|r_i - r_j| / width)`, positive. 0.4 is the authors'.
        weighted: Right and wrong predictions each count as one group of weight 1, and the root of the pair sum is taken
            (the form used for training); 0 with zero gradient for a batch that is all right or all wrong. False: every
            sample counts alike, and the sum is left as it is.
    """

    def __init__(self, width: float = 0.4, *, weighted: bool = True) -> None:
        super().__init__()
        self.width = positive("width", width)
        self.weighted = weighted

    def local_sums(self, batch: Batch) -> Tensor:
        """Nothing: pairs across ranks need the samples themselves."""
        return batch.logits.new_zeros(0)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """The kernel sum over all pairs of the global batch."""
        confidence, correct = batch.top
        rows = torch.stack((confidence, correct, torch.ones_like(correct)), dim=1)
        confidence, correct, present = global_rows(rows).unbind(dim=1)
        weights = self._signed_weights(confidence, correct, present)
        kernel = torch.exp((confidence.unsqueeze(1) - confidence).abs() / -self.width)
        # A squared norm, never negative but for rounding.
        square = weights @ (kernel @ weights)
        if self.weighted:
            return _safe_sqrt(square)
        return square

    def _signed_weights(self, confidence: Tensor, correct: Tensor, present: Tensor) -> Tensor:
        """Weight v_i of each sample, so that MMCE squared is `sum_ij v_i v_j k(r_i, r_j)`.

        Unweighted: `(c_i - r_i) / m`. Weighted: `(1 - r_i) / m_right` for right predictions, `-r_i / m_wrong` for wrong
        ones, and all zero if either group is empty: there is nothing to compare. `present` is 0 for padding.
        """
        if not self.weighted:
            return (correct - confidence) * present / present.sum()
        right, wrong = correct * present, (1.0 - correct) * present
        n_right, n_wrong = right.sum(), wrong.sum()
        both = (n_right * n_wrong).clamp(max=1.0)
        share = right / n_right.clamp_min(1.0) + wrong / n_wrong.clamp_min(1.0)
        return both * share * (correct - confidence)


def _safe_sqrt(square: Tensor) -> Tensor:
    """Square root with value 0 and gradient 0 if the argument is 0 but for rounding; NaN stays NaN."""
    nothing = square <= torch.finfo(square.dtype).eps ** 2
    root = torch.where(nothing, torch.ones_like(square), square).sqrt()
    return torch.where(nothing, torch.zeros_like(root), root)
