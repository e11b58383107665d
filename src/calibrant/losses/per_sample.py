"""Losses that are a mean over samples: `sum_i w_i l_i / B`."""

from torch import Tensor

from calibrant.checks import not_negative, number
from calibrant.errors import invalid
from calibrant.losses import functional
from calibrant.losses.base import Loss
from calibrant.losses.batch import Batch


class PerSampleLoss(Loss):
    """Base of the losses that give one value for each sample; a subclass only says which."""

    def per_sample(self, batch: Batch) -> Tensor:
        """The loss of each sample, `[B]`, before weighting."""
        raise NotImplementedError

    def local_sums(self, batch: Batch) -> Tensor:
        """Weighted sum over this rank's samples."""
        losses = self.per_sample(batch)
        if (
            losses.shape != batch.targets.shape
        ):  # a mean would be divided by B again, a column multiplied by all weights
            rule = f"return one value per sample, shape [{batch.size}]"
            raise invalid(f"per_sample of {type(self).__name__}", rule, f"shape {list(losses.shape)}")
        return batch.weighted_sum(losses)

    def value(self, totals: Tensor, count: Tensor | int, batch: Batch) -> Tensor:  # noqa: ARG002 (the base's signature)
        """Mean over the global batch."""
        return totals.squeeze(0) / count


class CrossEntropy(PerSampleLoss):
    """Negative log-likelihood: `-log p_y`, or with smoothing e the cross-entropy to `(1 - e) onehot + e / K`.

    Args:
        label_smoothing: e in [0, 1). 0 is plain NLL; 0.05 is what the calibration literature mostly uses
            (Szegedy et al. 2016; Mueller et al. 2019). With smoothing, a class masked by a logit of minus infinity
            makes the loss infinite.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= number("label_smoothing", label_smoothing) < 1:
            raise invalid("label_smoothing", "lie in [0, 1)", label_smoothing)
        self.label_smoothing = float(label_smoothing)

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.cross_entropy`."""
        return functional.cross_entropy(batch.log_probabilities, batch.true_log, label_smoothing=self.label_smoothing)


class Brier(PerSampleLoss):
    """`sum_k (p_k - [k = y])^2`: summed over classes, in [0, 2] (Brier 1950)."""

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.brier`."""
        return functional.brier(batch.logits, batch.targets)


class Focal(PerSampleLoss):
    """`-(1 - p_y)^gamma log p_y` (Lin et al. 2017; for calibration Mukhoti et al. 2020).

    Args:
        gamma: At least 0; 0 is cross-entropy. 3 is Mukhoti's best fixed value.
    """

    def __init__(self, gamma: float = 3.0) -> None:
        super().__init__()
        self.gamma = not_negative("gamma", gamma)

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.focal`."""
        return functional.focal(batch.true_log, gamma=self.gamma)


class SampleDependentFocal(PerSampleLoss):
    """FLSD-53 (Mukhoti et al. 2020): focal loss with gamma 5 where p_y < 0.2 and gamma 3 elsewhere.

    The choice of gamma is a constant for the gradient. At the threshold the value jumps, as it does in the original.

    Args:
        gamma_low: Exponent where p_y < threshold.
        gamma_high: Exponent elsewhere.
        threshold: In [0, 1].
    """

    def __init__(self, *, gamma_low: float = 5.0, gamma_high: float = 3.0, threshold: float = 0.2) -> None:
        super().__init__()
        self.gamma_low = not_negative("gamma_low", gamma_low)
        self.gamma_high = not_negative("gamma_high", gamma_high)
        if not 0 <= number("threshold", threshold) <= 1:
            raise invalid("threshold", "lie in [0, 1]", threshold)
        self.threshold = float(threshold)

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.flsd_gamma` and `functional.focal`."""
        low, high = self.gamma_low, self.gamma_high
        gamma = functional.flsd_gamma(batch.true_log, low=low, high=high, threshold=self.threshold)
        return functional.focal(batch.true_log, gamma=gamma)


class DualFocal(PerSampleLoss):
    """`-(1 - p_y + p_j)^gamma log p_y`, p_j the largest probability below p_y (Tao et al. 2023).

    Args:
        gamma: At least 0; the authors use 5 for ResNet-50 on both CIFARs and 2.3 on Tiny-ImageNet.
    """

    def __init__(self, gamma: float = 5.0) -> None:
        super().__init__()
        self.gamma = not_negative("gamma", gamma)

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.dual_focal`."""
        return functional.dual_focal(batch.log_probabilities, batch.targets, gamma=self.gamma)


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
        """See `functional.brier_weighted`."""
        return functional.brier_weighted(batch.logits, batch.targets, batch.true_log, gamma=self.gamma)


class EntropyPenalty(PerSampleLoss):
    """Negative entropy `sum_k p_k log p_k`: *adding* it to a loss lowers confidence (Pereyra et al. 2017).

    A class masked by a logit of minus infinity adds nothing: 0 log 0 = 0.
    """

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.negative_entropy`."""
        return functional.negative_entropy(batch.logits)


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
        """See `functional.logit_margin`."""
        return functional.logit_margin(batch.logits, margin=self.margin)
