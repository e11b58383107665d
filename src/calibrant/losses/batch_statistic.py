"""Losses that are a statistic of the whole (global) batch. They ignore `weights`.

Importance weights make a mean *loss* unbiased when samples rest; a mean confidence or an accuracy of the batch at hand
is no such mean over the data set, and weighting it would compare a batch that is not the one trained on.
"""

from typing import get_args

import torch
from torch import Tensor

from calibrant.checks import positive, whole
from calibrant.errors import did_you_mean, invalid
from calibrant.losses import functional
from calibrant.losses.base import Loss
from calibrant.losses.batch import Batch
from calibrant.losses.distributed import global_rows


class _GapLoss(Loss):
    """A function of one number: mean confidence minus accuracy of the batch."""

    def local_sums(self, batch: Batch) -> Tensor:
        """Sum of confidence minus correctness; the gradient flows through the confidences alone."""
        confidence, correct = batch.top
        return (confidence - correct).sum().reshape(1)


class HuberCalibration(_GapLoss):
    """The paper's term: Huber function of mean confidence minus accuracy (Patra et al., WACV 2023).

    `g = mean_i max_k p_ik - mean_i [argmax_k p_ik = y_i]`; `g^2 / 2` where |g| < alpha, else `alpha (|g| - alpha / 2)`.

    Args:
        alpha: Where the quadratic part ends, positive. 0.005 is the paper's choice for every data set.
        kind: "huber" has slope alpha in its linear part; "smooth-l1" is Huber / alpha, slope 1: with the paper's alpha
            200 times as strong. The paper does not say which of the two its code used.
    """

    def __init__(self, alpha: float = 0.005, *, kind: functional.HuberKind = "huber") -> None:
        super().__init__()
        self.alpha = positive("alpha", alpha)
        if kind not in get_args(functional.HuberKind):
            choices = get_args(functional.HuberKind)
            raise invalid("kind", f"be one of {', '.join(choices)}", repr(kind), did_you_mean(str(kind), choices))
        self.kind = kind

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002 (the base's signature)
        """See `functional.huber`."""
        return functional.huber(totals.squeeze(0) / count, alpha=self.alpha, kind=self.kind)


class DCA(_GapLoss):
    """Absolute value of mean confidence minus accuracy (Liang et al. 2020)."""

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """`|g|`."""
        return totals.squeeze(0).abs() / count


class MDCA(Loss):
    """`(1/K) sum_k |mean_i p_ik - mean_i [y_i = k]|` (Hebbalaguppe et al. 2022): DCA for each class."""

    def local_sums(self, batch: Batch) -> Tensor:
        """See `functional.class_gap_sums`."""
        return functional.class_gap_sums(batch.probabilities, batch.targets)

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
        """See `functional.soft_bin_sums`."""
        return functional.soft_bin_sums(*batch.top, n_bins=self.n_bins, temperature=self.temperature)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """Sum over bins of the absolute gap, each bin weighted by its share of the samples."""
        return totals.abs().sum() / count


class MMCE(Loss):
    """Kernel calibration error over all pairs of samples (Kumar et al. 2018), normalised once as its paper defines it.

    Public implementations take a mean over pairs and then divide by the pair counts again, which makes the term about
    B times too small; this one does not.

    Args:
        width: Of the Laplacian kernel `exp(-|r_i - r_j| / width)`, positive. 0.4 is the authors'.
        weighted: Right and wrong predictions each count as one group of weight 1 (the form used for training); 0 with
            zero gradient for a batch that is all right or all wrong. False: every sample counts alike.
        root: Take the square root of the pair sum. None: as published, with it where weighted, without where not.
        capacity: Largest batch of any rank. Only for ranks on accelerators: without it the ranks exchange their batch
            sizes and the host waits for that, which cannot be captured in a CUDA graph.
    """

    def __init__(
        self,
        width: float = 0.4,
        *,
        weighted: bool = True,
        root: bool | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__()
        self.width = positive("width", width)
        self.weighted = bool(weighted)
        self.root = self.weighted if root is None else bool(root)
        self.capacity = None if capacity is None else whole("capacity", capacity, 1)

    def local_sums(self, batch: Batch) -> Tensor:
        """Nothing: pairs across ranks need the samples themselves."""
        return batch.logits.new_zeros(0)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002
        """See `functional.mmce_weights` and `functional.kernel_square`."""
        confidence, correct = batch.top
        rows = torch.stack((confidence, correct, torch.ones_like(correct)), dim=1)
        confidence, correct, present = global_rows(rows, capacity=self.capacity).unbind(dim=1)
        weights = functional.mmce_weights(confidence, correct, present, weighted=self.weighted)
        square = functional.kernel_square(confidence, weights, width=self.width)
        return functional.safe_sqrt(square) if self.root else square
