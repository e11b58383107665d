"""What each method may automate at the same promised accuracy.

At a fixed confidence an overconfident model automates more than others, and is wrong in more. A promise is the same for
all: each method gets the rule that its own validation cases allow.
"""

from calibrant.calibration import Calibrator
from calibrant.decisions import RoutingRule, choose_threshold, unseen
from calibrant.errors import InvalidInput
from calibrant.metrics import wilson
from calibrant.predictions import Predictions
from calibrant.training import Run

TARGETS = (0.98, 0.99)
CONFIDENCE = 0.95

Promised = dict[float, tuple[float, tuple[float, float] | None]]
"""For a promised accuracy the share of the cases that is automated, and its 95 % interval; None where none can be."""


def validation_of(run: Run | None, shown: Predictions, calibrator: Calibrator | None) -> Predictions | None:
    """Validation cases of a run that a rule may be chosen on; None where there are none that nothing else has seen.

    Args:
        run: The run; None for none.
        shown: The predictions on the page: a rule that was chosen on these says nothing about them.
        calibrator: What made the scores on the page; None for raw ones.
    """
    if run is None or not run.predictions_path("val").is_file():
        return None
    found = run.predictions("val")
    if found.origin.sha256 == shown.origin.sha256:
        return None
    if calibrator is None:
        return found
    if calibrator.provenance_.fitted_on is None:
        return None  # it may have been fitted on any of them
    try:
        return calibrator(unseen(calibrator, found))
    except InvalidInput:  # it was fitted on all of them
        return None


def promised(shown: Predictions, validation: Predictions | None) -> Promised:
    """What may be automated at each of `TARGETS` by the rule that the validation cases allow; empty without these."""
    if validation is None:
        return {}
    return {t: _share(choose_threshold(validation, t, confidence=CONFIDENCE), shown) for t in TARGETS}


def promised_by(rule: RoutingRule, shown: Predictions) -> Promised:
    """The same by a rule that is there already, where it makes one of these promises, about new cases and no more."""
    same = rule.target_accuracy in TARGETS and rule.confidence == CONFIDENCE
    more = rule.class_thresholds is not None or rule.groups is not None or rule.costs is not None
    seen = rule.fitted_on is not None and rule.fitted_on == shown.origin.sha256
    if rule.target_accuracy is None or not same or more or seen:
        return {}
    return {rule.target_accuracy: _share(rule, shown)}


def _share(rule: RoutingRule, shown: Predictions) -> tuple[float, tuple[float, float] | None]:
    if not rule.automates:
        return 0.0, None
    automated = int(rule.route(shown).automate.sum())
    low, high = wilson(automated, len(shown))
    return automated / len(shown), (float(low), float(high))
