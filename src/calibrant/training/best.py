"""The best epoch by a validation figure, beside the last one: some report the one, some the other.

A validation set that chooses the epoch is no longer untouched: its own figures at that epoch look better than they are.
"""

import warnings
from typing import Any

from torch import Tensor, nn

from calibrant.calibration import TemperatureScaling
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.metrics import evaluate, expected_calibration_error, negative_log_likelihood
from calibrant.predictions import Predictions
from calibrant.runs import Split


class BestEpoch:
    """The weights of the epoch whose validation figure is the lowest so far; of equal ones the first.

    Args:
        select: "best:error", "best:nll" or "best:scaled-nll".
    """

    def __init__(self, select: str) -> None:
        self.select = select
        self.epoch = 0
        self.figure = float("inf")
        self.weights: dict[str, Tensor] = {}

    def consider(self, epoch: int, validation: Predictions, network: nn.Module) -> float:
        """Keep the weights if the epoch is the best so far; returns its figure."""
        figure = selection_figure(self.select, validation)
        if not self.epoch or figure < self.figure:
            self.epoch, self.figure = epoch, figure
            # On the CPU: the copy is needed once, at the end, and the device may be full.
            self.weights = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
        return figure

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and plain values."""
        return self.weights, {"epoch": self.epoch, "figure": self.figure}

    def load_state_dict(self, weights: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Go on from there."""
        self.weights, self.epoch, self.figure = weights, int(values["epoch"]), float(values["figure"])

    def summary(self, predictions: dict[Split, Predictions]) -> dict[str, Any]:
        """What `summary.json` says about it."""
        return {
            "select": self.select,
            "epoch": self.epoch,
            "figure": self.figure,
            "test": evaluate(predictions["test"], 10).to_dict(),
            "test_ece_15_bins": expected_calibration_error(predictions["test"], n_bins=15),
            "validation": evaluate(predictions["val"], 10).to_dict(),
        }


def selection_figure(select: str, validation: Predictions) -> float:
    """Lower is better: the error, the NLL, or the NLL with the temperature that suits these very cases best.

    >>> import numpy as np
    >>> selection_figure("best:error", Predictions.from_logits(np.eye(4), [0, 1, 2, 0]))
    0.25
    """
    if select == "best:error":
        return float(1 - validation.correct.mean())
    if select == "best:scaled-nll":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)
            try:
                scaling = TemperatureScaling().fit(validation.logits, validation.targets)
            except InvalidInput:  # a network that gives every image the same scores has no temperature
                return negative_log_likelihood(validation)
        validation = validation.with_logits(validation.logits.astype("float64") / scaling.temperature_)
    return negative_log_likelihood(validation)
