"""`calibrant calibrate`: fit on validation predictions, apply to test predictions, say what it changed."""

import warnings
from dataclasses import asdict
from pathlib import Path

from calibrant.cli._shared import Json, Out, Reading, answer, steps
from calibrant.errors import CalibrantWarning


def calibrate(
    source: Path,
    /,
    *,
    apply: Path | None = None,
    out: Out = None,
    method: str = "temperature",
    share: float | None = None,
    folds: int = 5,
    seed: int = 0,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Fit a calibrator on validation predictions and apply it to test predictions.

    Args:
        source: Predictions to fit on, or a run folder (its validation predictions).
        apply: Predictions to calibrate; by default the test predictions of the run.
        out: Calibrated predictions (.npz). Default: NAME.calibrated.npz beside what they come from. The policy is
            written beside them as NAME.policy.json, or by default into the run as policy.json.
        method: The calibrator, for example temperature, vector or isotonic; a wrong name lists all of them. "best"
            compares them by cross-validated NLL.
        share: Fit on this random share; "route fit" then chooses a rule on the others. Default: on all of them.
        folds: Folds of the comparison.
        seed: Seed of the random share and of the folds.
    """
    from calibrant.calibration import fit_calibrator
    from calibrant.calibration.base import warn_if_in_sample
    from calibrant.calibration.method_choice import warn_if_worse
    from calibrant.decisions import Policy
    from calibrant.metrics import evaluate
    from calibrant.metrics.evaluation import evaluations_table
    from calibrant.runs import calibrated_paths, calibration_sources, load_predictions

    fitted_on, applied_to = calibration_sources(source, apply)
    predictions_path, policy_path = calibrated_paths(fitted_on, applied_to, out)
    cases = load_predictions(fitted_on, **reading.options())
    test = load_predictions(applied_to, **reading.options(), known_classes=cases.class_names)
    if share is not None:
        cases, _ = cases.split(share, seed=seed)
    with steps() as progress:
        selection = fit_calibrator(cases, method, folds=folds, seed=seed, progress=progress)
    calibrator = selection.calibrator
    calibrated = calibrator(test)
    warn_if_in_sample(calibrator.provenance_, test.origin)
    warn_if_worse(test, calibrated)
    before, after = evaluate(test, thresholds=(0.95,)), evaluate(calibrated, thresholds=(0.95,))
    calibrated.save(predictions_path)
    stated = cases.as_right_or_wrong()
    policy = Policy(stated.n_classes, calibrator, class_names=stated.class_names)
    if policy_path.is_file():
        old = Policy.load(policy_path)
        if old.n_classes == policy.n_classes:
            policy = old.with_calibrator(calibrator)
            if old.rule is not None and policy.rule is None:
                text = "had a rule for another calibrator, which was removed. Fit a new one: calibrant route fit."
                warnings.warn(f"{policy_path} {text}", CalibrantWarning, stacklevel=2)
    policy.save(policy_path)
    table = evaluations_table({"before": before, "after": after})
    content = {
        "method": selection.name,
        "parameters": calibrator.get_params(),
        "fit": asdict(calibrator.summary_),
        "before": before.to_dict(),
        "after": after.to_dict(),
        "selection": selection.to_dict(),
        "predictions": str(predictions_path),
        "policy": str(policy_path),
    }
    written = f"Wrote {predictions_path} and {policy_path}"
    answer(f"{selection.describe()}\n{table}\n{written}", content, as_json=as_json)
