"""Temperature scaling of a run by its own validation predictions."""

import warnings

import numpy as np

from calibrant.errors import CalibrantWarning
from calibrant.predictions import Predictions


def fit_temperature(validation: Predictions) -> tuple[float, tuple[str, ...]]:
    """Temperature of a run from its validation predictions, and what the fit had to say."""
    from calibrant.posthoc import TemperatureScaling

    if len(np.unique(validation.targets)) == 1:
        # Refused elsewhere; here a run is over, and a rare class that a few validation images miss must not undo it.
        return 1.0, ("every case is of one class: nothing to fit, the temperature stays 1",)
    with warnings.catch_warnings():
        # They are kept as notes; a small validation set that is all right is no reason to stop a study.
        warnings.simplefilter("ignore", CalibrantWarning)
        scaling = TemperatureScaling().fit(validation.logits, validation.targets)
    return float(scaling.temperature_), tuple(scaling.summary_.notes)


def scaled_by(predictions: Predictions, temperature: float) -> Predictions:
    """The same rows with logits divided by the temperature, in float64."""
    return Predictions.from_logits(
        predictions.logits.astype("float64") / temperature,
        predictions.targets,
        ids=predictions.ids,
        class_names=predictions.class_names,
    )
