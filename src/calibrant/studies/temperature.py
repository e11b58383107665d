"""Temperature scaling of a run by its own validation predictions."""

import warnings

from calibrant.calibration import TemperatureScaling
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.predictions import Predictions


def fit_temperature(validation: Predictions) -> tuple[float, tuple[str, ...]]:
    """Temperature of a run from its validation predictions, and the notes of the fit."""
    with warnings.catch_warnings():
        # Warnings are kept as notes: a small validation set without mistakes is no reason to stop a study.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            scaling = TemperatureScaling().fit(validation.logits, validation.targets)
        except InvalidInput as error:
            # A single class, or a network that gives every image the same scores: the run is recorded as it is.
            return 1.0, (f"not fitted, the temperature stays 1: {error}",)
    return float(scaling.temperature_), tuple(scaling.summary_.notes)


def scaled_by(predictions: Predictions, temperature: float) -> Predictions:
    """The same rows with logits divided by the temperature, in float64."""
    return predictions.with_logits(predictions.logits.astype("float64") / temperature)
