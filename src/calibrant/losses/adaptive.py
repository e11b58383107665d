"""Losses that change between epochs by what validation shows; their state lies in buffers, and so in `state_dict`."""

import torch
from torch import Tensor

from calibrant.checks import number, positive, whole
from calibrant.errors import invalid
from calibrant.losses import functional
from calibrant.losses.batch import Batch, check
from calibrant.losses.per_sample import PerSampleLoss


class AdaFocal(PerSampleLoss):
    """AdaFocal (Ghosh et al. 2022): a focal exponent for each bin of confidence, which follows validation.

    A sample takes the exponent of the bin that holds its p_y. Where that is positive the loss is the focal loss
    `-(1 - p_y)^gamma log p_y`, where it is negative the inverse focal loss `-(1 + p_y)^|gamma| log p_y`, which makes
    confidence grow. `after_validation` moves bins and exponents; see `functional.adapted_exponents`.

    Args:
        n_bins: Number of bins; each holds equally many of the validation cases.
        gamma: Exponent of every bin in the beginning.
        switch: Size of an exponent below which a bin changes from focal to inverse focal, or back; positive.
        lowest: No exponent falls below it; at most -switch.
        highest: None rises above it; at least switch.
        rate: How strongly a gap moves an exponent, positive; lambda in the paper.
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
        rate: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_bins = whole("n_bins", n_bins, 1)
        self.switch, self.rate = positive("switch", switch), positive("rate", rate)
        self.lowest, self.highest = number("lowest", lowest), number("highest", highest)
        if not self.lowest <= -self.switch:
            raise invalid("lowest", f"be at most -switch ({-self.switch:g})", lowest)
        if not self.highest >= self.switch:
            raise invalid("highest", f"be at least switch ({self.switch:g})", highest)
        if not self.lowest <= number("gamma", gamma) <= self.highest:
            raise invalid("gamma", f"lie in [{self.lowest:g}, {self.highest:g}]", gamma)
        self.register_buffer("gammas", torch.full((self.n_bins,), float(gamma)))
        # Where one bin ends and the next begins. Equally wide until the first validation: all exponents are alike.
        self.register_buffer("edges", torch.arange(1, self.n_bins) / self.n_bins)

    def per_sample(self, batch: Batch) -> Tensor:
        """See `functional.bin_numbers` and `functional.adaptive_focal`."""
        true_log = batch.true_log
        bins = functional.bin_numbers(true_log.detach().exp(), self.edges.to(true_log.dtype))
        return functional.adaptive_focal(true_log, gamma=self.gammas.to(true_log.dtype)[bins])

    @property
    def follows_validation(self) -> bool:
        """Yes."""
        return True

    @torch.no_grad()
    def after_validation(self, logits: Tensor, targets: Tensor) -> None:
        """Move bins and exponents, in place: a captured CUDA graph reads the new ones."""
        check(logits, targets, None, validate=True)
        if not bool(torch.isfinite(logits).all()):
            raise invalid("logits", "be finite", "NaN or infinity")
        confidence, predicted = torch.softmax(logits.detach().cpu().double(), dim=1).max(dim=1)
        edges, gammas = functional.adapted_exponents(
            self.gammas.cpu().double(),
            confidence,
            (predicted == targets.cpu()).double(),
            switch=self.switch,
            bounds=(self.lowest, self.highest),
            rate=self.rate,
        )
        self.edges.copy_(edges)
        self.gammas.copy_(gammas)
