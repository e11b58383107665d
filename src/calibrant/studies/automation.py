"""How many test images a rule with a promised accuracy automates.

ECE and |S95| say how far confidence can be trusted at fixed thresholds. A person who lets a model decide asks the
opposite: for a given accuracy, how many cases can be left to the model?
"""

from calibrant.decisions import RoutingRule, choose_threshold
from calibrant.predictions import Predictions
from calibrant.studies.temperature import fit_temperature, scaled_by

TARGETS = (0.98, 0.99)
CONFIDENCE = 0.95


Automation = dict[str, float | None]
"""`share` of the test images that is automated, `accuracy` of that share (None: it is empty); both `scaled_` too."""


def automation(validation: Predictions, test: Predictions) -> dict[str, Automation]:
    """For each target: `calibrant route fit` on the validation set, `route check` on the test set.

    Scaled: a temperature from a random half of the validation set, the threshold from the other half, since a promise
    needs cases that nothing else was fitted on. `route fit --calibrate` leaves more to the threshold by now; records
    keep the half, so that they can be compared.
    """
    if len(validation) < 2:
        return {}
    first, second = validation.split(0.5, seed=0)
    temperature, _ = fit_temperature(first)
    made: dict[str, Automation] = {}
    for target in TARGETS:
        plain = choose_threshold(validation, target, confidence=CONFIDENCE)
        scaled = choose_threshold(scaled_by(second, temperature), target, confidence=CONFIDENCE)
        made[f"{target:g}"] = _automated(plain, test) | _automated(scaled, scaled_by(test, temperature), "scaled_")
    return made


def _automated(rule: RoutingRule, test: Predictions, prefix: str = "") -> Automation:
    chosen = rule.route(test).automate
    accuracy = float(test.correct[chosen].mean()) if chosen.any() else None
    return {f"{prefix}share": float(chosen.mean()), f"{prefix}accuracy": accuracy}
