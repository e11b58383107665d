"""What a finished run says about itself."""

from collections.abc import Sequence
from typing import Any

from calibrant.metrics import evaluate, evaluate_classes, expected_calibration_error
from calibrant.predictions import Predictions
from calibrant.runs import Split
from calibrant.training.environment import describe_environment
from calibrant.training.log import Line
from calibrant.training.recipe import Recipe
from calibrant.training.setup import Setup


def summarise(
    recipe: Recipe,
    setup: Setup,
    predictions: dict[Split, Predictions],
    log: Sequence[Line],
    calibration: dict[str, Any] | None,
) -> dict[str, Any]:
    """The content of `summary.json`; `recipe` is as it was given, that of the setup as its budget changed it.

    Everything but `timing` and `environment` follows from the recipe and the data alone: it is the same after any
    number of kills and resumes on the same machine.
    """
    pruning = setup.pruner.report(suspects=0)
    full = setup.pruner.samples * recipe.epochs
    return {
        "recipe": recipe.model_dump(mode="json"),
        "method": {"name": setup.plan.name, "settings": setup.plan.settings},
        "test": evaluate(predictions["test"], 10).to_dict(),
        "test_ece_15_bins": expected_calibration_error(predictions["test"], n_bins=15),
        "validation": evaluate(predictions["val"], 10).to_dict(),
        "per_class": evaluate_classes(predictions["test"]).to_dict()["classes"],
        "calibration": calibration,
        "best_validation": _best(log),
        "samples_seen": pruning.seen,
        "samples_full": full,
        # Forward passes that were made for scores alone, apart from what was trained on.
        "samples_scored": sum(line.get("samples_scored", 0) for line in log),
        "seen_share": pruning.seen / full,
        # How often the gradient of a sample was taken: what an update costs is not the same for every optimiser.
        "gradient_passes": pruning.seen * recipe.gradients_per_update,
        "epochs": setup.recipe.epochs,
        "policy": None if setup.plan.pruning is None else repr(setup.pruner.timetable.policy),
        "steps_mode": setup.mode,
        "data_path": setup.data_path,
        "timing": {
            "train_seconds": sum(line["train_seconds"] for line in log),
            "seconds": sum(line["seconds"] for line in log),
        },
        "environment": describe_environment(),
    }


def brief(predictions: Predictions) -> dict[str, float]:
    """The two figures that the log shows of the validation part."""
    return {
        "accuracy": float(predictions.correct.mean()),
        "ece": expected_calibration_error(predictions, n_bins=10),
    }


def _best(log: Sequence[Line]) -> dict[str, Any] | None:
    lines = [line for line in log if "validation" in line]
    if not lines:
        return None
    best = max(lines, key=lambda line: line["validation"]["accuracy"])
    return {"epoch": best["epoch"], **best["validation"]}
