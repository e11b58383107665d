"""Temperature scaling of a run by its own validation predictions."""

import warnings

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.predictions import Predictions


def fit_temperature(validation: Predictions) -> tuple[float, tuple[str, ...]]:
    """Temperature of a run from its validation predictions, and what the fit had to say."""
    from calibrant.posthoc import TemperatureScaling

    with warnings.catch_warnings():
        # They are kept as notes; a small validation set that is all right is no reason to stop a study.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            scaling = TemperatureScaling().fit(validation.logits, validation.targets)
        except InvalidInput as error:
            # A single class, or a network that says the same of every image: the run is over and is told as it is.
            return 1.0, (f"not fitted, the temperature stays 1: {error}",)
    return float(scaling.temperature_), tuple(scaling.summary_.notes)


def scaled_by(predictions: Predictions, temperature: float) -> Predictions:
    """The same rows with logits divided by the temperature, in float64."""
    return Predictions.from_logits(
        predictions.logits.astype("float64") / temperature,
        predictions.targets,
        ids=predictions.ids,
        class_names=predictions.class_names,
    )
