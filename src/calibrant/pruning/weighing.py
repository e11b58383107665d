"""How the samples that stay make up for those that rest."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import did_you_mean, invalid

Weighting = Literal["full", "mean", "none"]
"""`full`: every sample's expected weight is 1. `mean`: the same, scaled so that the samples of an epoch have the mean
weight 1, as if the learning rate were multiplied by kept / n. `none`: all weigh 1."""


def check_weighting(weights: object) -> None:
    """Refuse another name."""
    known = get_args(Weighting)
    if weights not in known:
        raise invalid("weights", "be full, mean or none", repr(weights), did_you_mean(str(weights), known))


def weigh(weights: NDArray[np.float32], how: Weighting) -> NDArray[np.float32] | None:
    """The weights that make up in full (0 for a sample that rests), changed as asked; None where all weigh 1."""
    if how == "none":
        return None
    if how == "full":
        return weights
    scaled: NDArray[np.float32] = weights * np.float32(np.count_nonzero(weights) / weights.sum(dtype=np.float64))
    return scaled
