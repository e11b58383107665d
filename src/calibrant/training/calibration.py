"""The temperature that a run ends with, fitted on a small part of its validation cases."""

import warnings
from typing import Any

from calibrant.calibration import FEWEST_CASES, TemperatureScaling, temperature_share
from calibrant.decisions import Policy
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run


def calibration_share(recipe: Recipe, cases: int) -> float | None:
    """Which share of the validation cases the temperature gets; None where there are too few of them, or by request.

    >>> [calibration_share(Recipe(), cases) for cases in (5000, 99)]
    [0.1, None]
    """
    share = temperature_share(cases, recipe.calibration.share)
    return share if recipe.calibration.method != "none" and share * cases >= FEWEST_CASES else None


def calibrate_run(run: Run) -> dict[str, Any] | None:
    """Fit the temperature of a run whose predictions are written, and keep it in the run.

    The run's policy also says which cases it was fitted on: a share and a seed of `Predictions.split`.

    Returns:
        What the summary says about it; None where none was fitted.
    """
    validation = run.predictions("val")
    share = calibration_share(run.recipe, len(validation))
    if share is None:
        return None
    some, _ = validation.split(share, seed=run.recipe.data.split_seed)
    with warnings.catch_warnings():
        # What the fit says about itself is kept as notes: whoever reads the summary sees it, too.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            calibrator = TemperatureScaling().fit(some)
        except InvalidInput:  # one class in all cases, or one prediction: a run that failed must still end and say so
            return None
    Policy(validation.n_classes, calibrator, class_names=validation.class_names).save(run.policy_path)
    return {
        "method": calibrator.method,
        "temperature": calibrator.temperature_,
        "cases": calibrator.summary_.cases,
        "notes": list(calibrator.summary_.notes),
    }
