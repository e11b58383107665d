"""For any training loop: `judge` a trained model by its predictions, without torch."""

from dataclasses import dataclass
from pathlib import Path

from calibrant.calibration.method_choice import warn_if_worse
from calibrant.calibration.temperature import temperature_share
from calibrant.checks import fraction
from calibrant.decisions import Policy, fit_policy
from calibrant.decisions.policy import FILE_NAME
from calibrant.files import as_path
from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.metric import label
from calibrant.predictions import Predictions, require_predictions
from calibrant.report import write_report
from calibrant.tables import Displayed, Table


@dataclass(frozen=True, repr=False)
class Judgement(Displayed):
    """What a trained model's confidence is worth."""

    policy: Policy  # its temperature was fitted on a part of the validation cases, its rule on the rest
    raw: Evaluation
    calibrated: Evaluation  # of the same cases
    page: Path  # the report

    def _overview(self) -> Table:
        calibrator = "nothing"
        if self.policy.calibrator is not None:
            calibrator = self.policy.calibrator.describe()
        rows = [
            ("calibrated by", "", calibrator),
            *(
                (label(name), f"{getattr(self.raw, name):.4f}", f"{getattr(self.calibrated, name):.4f}")
                for name in ("test_error", "nll", "ece")
            ),
            ("may be automated", "", f"{self.policy.routing.automation_rate:.1%}"),
        ]
        return Table(str(self.page), rows, ("", "raw", "calibrated"))


def judge(
    folder: str | Path,
    validation: Predictions,
    test: Predictions | None = None,
    *,
    target_accuracy: float = 0.99,
    confidence: float = 0.95,
    name: str = "model",
    seed: int = 0,
) -> Judgement:
    """Fit the temperature, choose a rule and write predictions, policy and page into a folder.

    The temperature gets a tenth of the validation cases, or 100 if that is more, but at most half; the rule is chosen
    on the calibrated rest. The page shows the test cases, which neither has seen. A warning says if the temperature
    makes their NLL larger by more than chance.

    Args:
        folder: Gets `predictions/val.npz`, `predictions/test.npz`, `policy.json` and `report.html`.
        validation: Labelled cases that the model was not trained on.
        test: Others; without them the page shows the validation cases that the temperature was not fitted on.
        target_accuracy: What the rule is to promise.
        confidence: Probability with which the promise holds.
        name: Of the model, on the page.
        seed: Of the random part for the temperature.
    """
    require_predictions(validation)
    fraction("target_accuracy", target_accuracy)
    share = temperature_share(len(validation))
    place = as_path(folder)
    policy = fit_policy(validation, target_accuracy, share=share, seed=seed, confidence=confidence)
    shown = test
    if shown is None:
        shown = validation.split(share, seed=seed)[1]
    calibrated = policy.calibrate(shown)  # refuses other classes before anything is written
    validation.save(place / "predictions" / "val.npz")
    if test is not None:
        test.save(place / "predictions" / "test.npz")
    policy.save(place / FILE_NAME)
    page = write_report({name: shown}, place / "report.html", policy=policy)
    warn_if_worse(shown, calibrated)
    return Judgement(policy, evaluate(shown), evaluate(calibrated), page)
