"""Columns of predictions that an argument names: weights, clusters and groups."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import did_you_mean, invalid
from calibrant.metrics.binning import Floats
from calibrant.predictions import Predictions, require_predictions

Weights = str | Sequence[float] | NDArray[Any]
"""Importance weights: the name of an extra column, or one number per row."""
Groups = str | Sequence[Any] | NDArray[Any]
"""The name of an extra column, or one value per row."""


def column_of(predictions: Predictions, column: Groups, argument: str) -> NDArray[Any]:
    """One value for each row: an extra column by its name, or the values themselves."""
    if isinstance(column, str):
        if column not in predictions.extras:
            known = list(predictions.extras)
            way_out = did_you_mean(column, known) if known else "There are no other columns."
            raise invalid(argument, "be a column of the predictions", repr(column), way_out)
        return predictions.extras[column]
    values = as_array(argument, column)
    if values.shape != (len(predictions),):
        raise invalid(argument, f"hold {len(predictions)} values, one per row", f"shape {values.shape}")
    return values


def check_weights(predictions: Predictions, weights: Weights) -> Floats:
    """One weight per row, scaled to a mean of 1, so that only ratios matter and equal weights change nothing."""
    require_predictions(predictions)
    values = column_of(predictions, weights, "weights")
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise invalid("weights", "be numbers", str(error)) from error
    if not np.isfinite(numbers).all() or (numbers < 0).any() or not (numbers > 0).any():
        raise invalid("weights", "be finite, not negative, and not all 0", f"{numbers.min()} to {numbers.max()}")
    return np.asarray(numbers / numbers.mean())


def check_clusters(predictions: Predictions, clusters: Weights | None) -> NDArray[np.int64]:
    """The number of each row's cluster, from 0 on; without clusters each row is its own."""
    if clusters is None:
        return np.arange(len(predictions))
    names = [str(value) for value in column_of(predictions, clusters, "clusters").tolist()]
    return np.unique(names, return_inverse=True)[1]


def weighted_sum(values: NDArray[Any], weights: Floats | None) -> float:
    """Sum of one value per row; rows without weight do not count, even if their value is infinite."""
    if weights is None:
        return float(values.sum())
    return float((weights * np.where(weights > 0.0, values, 0.0)).sum())
