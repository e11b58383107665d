"""What a run ends with: its temperature, its warnings, and `summary.json`."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.calibration import TemperatureScaling
from calibrant.calibration.temperature import temperature_share
from calibrant.decisions import Policy, choose_threshold
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.metrics import evaluate, evaluate_classes, expected_calibration_error
from calibrant.predictions import Predictions
from calibrant.runs import Split
from calibrant.training.checkpoint import Line
from calibrant.training.network import FLOPS_PER_GRADIENT
from calibrant.training.recipe import Recipe
from calibrant.training.reproducibility import describe_environment
from calibrant.training.run import Run
from calibrant.training.setup import Setup


def calibrate_run(run: Run) -> dict[str, Any] | None:
    """Fit the temperature of a run whose predictions are written, and keep it in the run.

    The calibrator's file says which cases it was fitted on: a share and a seed of `Predictions.split`. Returns the
    entry of the summary; None if no temperature was fitted.
    """
    validation = run.predictions("val")
    if run.recipe.calibration.method == "none":
        return None
    share = temperature_share(len(validation), run.recipe.calibration.share)
    with warnings.catch_warnings():
        # Warnings of the fit are kept as notes in the summary.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            some, _ = validation.split(share, seed=run.recipe.data.split_seed)
            calibrator = TemperatureScaling().fit(some)
        except InvalidInput:  # one case, class or prediction: a run that failed must still end and say so
            return None
    Policy(validation.n_classes, calibrator, class_names=validation.class_names).save(run.policy_path)
    return {
        "method": calibrator.method,
        "temperature": calibrator.temperature_,
        "cases": calibrator.summary_.cases,
        "notes": list(calibrator.summary_.notes),
    }


CONCURRENT_RUNS = "CALIBRANT_CONCURRENT_RUNS"
"""The variable in which a study tells its runs how many of them share the machine."""
_FEW_UPDATES = 300
_NEARLY_ALL = 0.95
# An untrained network has the loss of a guess, and one that learns anything falls below it by more than this.
_FALLEN = 0.98
_PROMISED = 0.99
_BUDGET_SLACK = 0.01


def find_failures(
    run: Run, log: Sequence[Line], calibration: dict[str, Any] | None, *, compute_share: float
) -> list[str]:
    """Warnings about a run whose predictions and calibrator are written, the most serious first.

    `compute_share` is what the run took of the compute of all epochs on all samples at full size.
    """
    validation, recipe = run.predictions("val"), run.recipe
    found = _guesses(validation)
    guesses = bool(found)
    # Only if the first and the last epoch saw all samples: hard samples alone have a higher loss.
    if len(log) > 1 and log[-1]["kept_share"] == 1 and log[-1]["loss"] > _FALLEN * log[0]["loss"] > 0:
        found.append(
            f"The training loss has not fallen: {log[0]['loss']:.3g} in the first epoch and {log[-1]['loss']:.3g} in "
            "the last. Try a smaller learning rate."
        )
    updates = sum(-(-line["samples"] // recipe.optimiser.batch_size) for line in log)
    if updates < _FEW_UPDATES:
        found.append(
            f"The weights were updated only {updates} times; a network trained from scratch takes some hundred updates "
            "at the very least. Train for more epochs or with smaller batches."
        )
    # Plans that let samples rest once they are learned cannot know ahead whether enough of them will be.
    if recipe.budget < 1 and compute_share > recipe.budget + _BUDGET_SLACK:
        found.append(
            f"The run took {compute_share:.1%} of the compute, and its budget was {recipe.budget:.1%}: too few samples "
            "were learned well enough to rest. Compare it with a control of as much compute, or loosen what the plan "
            "asks for."
        )
    more = "Hold out more (--set data.validation=...) or label more."
    if calibration is None and recipe.calibration.method != "none":
        found.append(
            "No temperature was fitted, so confidence is as the network gives it: the "
            f"{len(validation)} validation cases or the predictions on them do not differ. {more}"
        )
    # A model that guesses can promise nothing: the sentences above say it better.
    if not guesses:
        found += _no_promise(run, validation, calibration, more)
    if "ls" in recipe.method.name.split("+"):
        found.append(
            "Label smoothing disturbs the order of confidences. In the recorded run on CIFAR-10 (resnet32, seed 0) "
            "nothing could be decided alone at 98 %, with nll 74 to 81 %. Use nll if a threshold is to be chosen."
        )
    return found


def _guesses(validation: Predictions) -> list[str]:
    found, cases = [], len(validation)
    predicted = np.bincount(validation.predicted, minlength=validation.n_classes)
    labels = np.bincount(validation.targets, minlength=validation.n_classes)
    favourite, frequent = int(predicted.argmax()), int(labels.max())
    name = validation.class_names[favourite] if validation.class_names else str(favourite)
    if predicted[favourite] >= _NEARLY_ALL * cases and labels[favourite] < 0.9 * predicted[favourite]:
        found.append(
            f"The model predicts {name} for {predicted[favourite] / cases:.0%} of the {cases} validation cases, of "
            f"which {labels[favourite] / cases:.0%} are {name}: it has not learned to tell the classes apart."
        )
    right = int(validation.correct.sum())
    if right <= frequent:
        found.append(
            f"The model is no better than always naming the most frequent class: {right} of {cases} validation cases "
            f"are right, and {frequent} would be. Train longer, or look at the labels and the learning rate."
        )
    return found


def _no_promise(run: Run, validation: Predictions, calibration: dict[str, Any] | None, more: str) -> list[str]:
    """Whether the validation cases that the calibrator has not seen are enough to promise anything."""
    cases = validation
    if calibration is not None:
        policy = Policy.load(run.policy_path)
        cases = policy.calibrate(policy.unseen(validation))
    rule = choose_threshold(cases, target_accuracy=_PROMISED)
    if rule.threshold is not None:
        return []
    if rule.evidence is None or rule.evidence.cases_needed is None:
        return [rule.note]
    return [f"{rule.note} {more}"]


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
    seen = sum(setup.pruner.kept_by_epoch)
    validated = [{"epoch": line["epoch"], **line["validation"]} for line in log if "validation" in line]
    full = setup.pruner.samples * recipe.epochs
    concurrent = os.environ.get(CONCURRENT_RUNS, "")
    return {
        "recipe": recipe.model_dump(mode="json"),
        "method": {"name": setup.plan.name, "settings": setup.plan.settings},
        **judged(predictions),
        "per_class": evaluate_classes(predictions["test"]).to_dict()["classes"],
        "calibration": calibration,
        "best_validation": max(validated, key=lambda line: line["accuracy"], default=None),
        "samples_seen": seen,
        "samples_full": full,
        # Forward passes that were made for scores alone, apart from what was trained on.
        "samples_scored": sum(line.get("samples_scored", 0) for line in log),
        "seen_share": seen / full,
        "flops": sum(line["flops"] for line in log),
        # Of the recipe without pruning and with every epoch at full size.
        "flops_full": full * FLOPS_PER_GRADIENT * setup.forward_flops[setup.full_size],
        "epochs": setup.recipe.epochs,
        "steps_mode": setup.mode,
        "data_path": setup.data_path,
        "timing": {
            "train_seconds": sum(line["train_seconds"] for line in log),
            "seconds": sum(line["seconds"] for line in log),
        },
        "environment": describe_environment(),
        # Times are compared only between runs that shared their machine with equally many.
        "concurrent_runs": int(concurrent) if concurrent.isdecimal() else None,
    }


def judged(predictions: Mapping[Split, Predictions]) -> dict[str, Any]:
    """The figures of both held-out parts, with 10 bins as in the paper's tables."""
    return {
        "test": evaluate(predictions["test"], n_bins=10).to_dict(),
        "test_ece_15_bins": expected_calibration_error(predictions["test"], n_bins=15),
        "validation": evaluate(predictions["val"], n_bins=10).to_dict(),
    }


def brief(predictions: Predictions) -> dict[str, float]:
    """The two figures that the log shows of the validation part."""
    return {"accuracy": float(predictions.correct.mean()), "ece": expected_calibration_error(predictions)}
