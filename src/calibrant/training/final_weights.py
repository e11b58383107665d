"""The weights that a run ends with: the mean over the last epochs, and those of the best epoch.

At a constant learning rate the weights move around a minimum, and their mean lies nearer to it than any one of them
(stochastic weight averaging, Izmailov et al. 2018): the error is lower for the same number of sample updates. None of
the averaged networks has batch statistics that fit the mean weights, so these are measured on the training data.

A validation set that chooses the best epoch is no longer untouched: its own figures at that epoch look too good.
"""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from calibrant.calibration import TemperatureScaling
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.metrics import negative_log_likelihood
from calibrant.predictions import Predictions


@torch.no_grad()
def take_mean(network: nn.Module, average: AveragedModel, images: Iterable[Tensor]) -> None:
    """Give the network the mean weights, in place, and batch statistics that are plain means over these batches.

    Parts that rest are in evaluation mode and keep theirs. torch's `update_bn` would put them into training mode.
    """
    for parameter, mean in zip(network.parameters(), average.module.parameters(), strict=True):
        parameter.copy_(mean)
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # a plain mean
    if norms:
        for batch in images:
            network(batch)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum


class BestEpoch:
    """The weights of the epoch whose validation figure is the lowest so far; of equal ones the first."""

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

    def state_dict(self) -> dict[str, Tensor]:
        """Everything as tensors."""
        state = {f"weights.{name}": value for name, value in self.weights.items()}
        return {**state, "epoch": torch.tensor(self.epoch), "figure": torch.tensor(self.figure, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        self.epoch, self.figure = int(state.pop("epoch")), float(state.pop("figure"))
        self.weights = {name.removeprefix("weights."): value for name, value in state.items()}


def selection_figure(select: str, validation: Predictions) -> float:
    """Lower is better: the error, the NLL, or the NLL with the temperature that suits these very cases best.

    >>> import numpy as np
    >>> selection_figure("best:error", Predictions.from_logits(np.eye(4), [0, 1, 2, 0]))
    0.25
    """
    if select == "best:error":
        return float(1 - validation.correct.mean())
    if select == "best:scaled-nll":
        temperature, _ = fit_temperature(validation)
        validation = scaled_by(validation, temperature)
    return negative_log_likelihood(validation)


def fit_temperature(validation: Predictions) -> tuple[float, tuple[str, ...]]:
    """Return the temperature of a run from its validation predictions, and the notes of the fit."""
    with warnings.catch_warnings():
        # Warnings become notes: a small validation set without mistakes must not stop a study.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            scaling = TemperatureScaling(prior_scale=None).fit(validation.logits, validation.targets)
        except InvalidInput as error:
            # A single class, or a network with the same scores for every image: the run is recorded without scaling.
            return 1.0, (f"not fitted, the temperature stays 1: {error}",)
    return float(scaling.temperature_), tuple(scaling.summary_.notes)


def scaled_by(predictions: Predictions, temperature: float) -> Predictions:
    """Return the same rows with logits divided by the temperature, in float64."""
    return predictions.with_logits(predictions.logits.astype("float64") / temperature)
