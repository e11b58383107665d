"""What a rule was chosen on: whether a calibrator belongs to it, and whether cases are new to it."""

import warnings
from collections.abc import Iterable
from pathlib import Path

from calibrant.calibration import Calibrator, TemperatureScaling, temperature_share
from calibrant.decisions.rule import RoutingRule
from calibrant.decisions.shortlist import Shortlist
from calibrant.errors import CalibrantWarning, InvalidInput, invalid
from calibrant.predictions import Origin, Predictions, in_order_of

_SEEN = "this is no test of the rule's promise, and no base for a shortlist's. Use cases that neither has seen."


def with_temperature(
    predictions: Predictions, *, share: float | None = None, seed: int = 0
) -> tuple[Predictions, float]:
    """Split cases between a temperature and a threshold: the cases for the threshold, and the temperature.

    The promise of a rule needs cases that nothing else was fitted on, also no temperature.

    Args:
        predictions: Labelled cases that were used for nothing else.
        share: Share of them for the temperature; None for `posthoc.temperature_share`, which is small.
        seed: Seed of the random split.
    """
    some, rest = predictions.split(temperature_share(len(predictions)) if share is None else share, seed=seed)
    return rest, TemperatureScaling().fit(some).temperature_


def unseen(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """The cases that the calibrator was not fitted on: all, or the rest of a split; refused where there are none."""
    known, origin = calibrator.provenance_, predictions.origin
    if known.fitted_on is None or known.fitted_on != origin.sha256:
        return predictions
    if known.part is None:
        way_out = "Fit the calibrator on a share of them (calibrant calibrate --share 0.2), or use other cases."
        raise invalid("predictions", "hold cases that the calibrator was not fitted on", "those of its fit", way_out)
    return predictions.split(known.part.share, seed=known.part.seed)[1 - known.part.index]


def chosen_behind(rule: RoutingRule, calibrator: Calibrator) -> bool:
    """Whether the rule was chosen on what this calibrator made."""
    if rule.calibrated_by is not None:
        return rule.calibrated_by == calibrator.digest
    made = calibrator.provenance_.made
    return made is not None and made == rule.fitted_on


def calibrator_for(
    rule: RoutingRule, given: Calibrator | str | Path | None, origin: Origin, *, near: Iterable[Path] = ()
) -> Calibrator | None:
    """The calibrator to apply before a rule decides; one that does not belong to the rule is refused.

    Args:
        rule: The rule.
        given: A calibrator or its file; None for none.
        origin: Where the scores come from. A warning says where they are not new to the rule or to the calibrator.
        near: Files of calibrators to look at where none is given: a warning says where the rule was chosen behind one
            of them and the scores are raw, or the other way round.
    """
    if given is None:
        _warn_if_mixed(rule, origin, near)
        return None
    calibrator = given if isinstance(given, Calibrator) else Calibrator.load(given)
    name = "another" if isinstance(given, Calibrator) else str(given)
    if (rule.fitted_on is not None or rule.calibrated_by is not None) and not chosen_behind(rule, calibrator):
        way_out = "Leave it out, or fit the rule on what it made."
        raise invalid("calibrator", "have made the predictions that the rule was fitted on", name, way_out)
    if calibrator.n_classes_ != rule.n_classes:
        wanted = f"be made for the rule's {rule.n_classes} classes"
        raise invalid("calibrator", wanted, f"{calibrator.n_classes_} classes")
    known, digest = calibrator.provenance_, origin.sha256
    if digest is not None and digest == known.made:
        raise invalid("calibrator", f"be left out: it made {origin.path}, which is calibrated already", name)
    # A rule that was fitted on the file that the calibrator made has seen the cases that this was made from.
    seen = known.applied_to if known.made == rule.fitted_on else rule.fitted_on
    if rule.fitted_on is not None and digest in (seen, rule.fitted_on):
        _warn(f"the rule was fitted on what the calibrator made of {origin.path}: {_SEEN}")
    if digest is not None and digest == known.fitted_on:
        _warn(f"the calibrator was fitted on {origin.path}: {_SEEN}")
    return calibrator


def _warn_if_mixed(rule: RoutingRule, origin: Origin, near: Iterable[Path]) -> None:
    """Warn where raw scores come to a rule of calibrated ones, or the other way round, as far as files tell."""
    for path in near:
        calibrator = Calibrator.load(path)
        made = calibrator.provenance_.made
        is_from = origin.calibrated_by == calibrator.digest or (made is not None and origin.sha256 == made)
        behind = chosen_behind(rule, calibrator)
        if behind and not is_from:
            advice = f"If {origin.path} holds raw scores, add --calibrator {path}"
            _warn(f"the rule was fitted on what {path} made. {advice}")
        elif is_from and not behind and (rule.fitted_on is not None or rule.of_arrays):
            advice = "If it was fitted on raw scores, give it raw scores here too."
            _warn(f"{path} made {origin.path}, but the rule does not say that it was fitted on its scores. {advice}")
        if behind or is_from:
            return
    if rule.calibrated_by not in (None, origin.calibrated_by):
        advice = f"If {origin.path or 'this'} holds raw scores, name it with --calibrator"
        _warn(f"the rule was fitted on what a calibrator made, and none is given. {advice}")


def as_seen_by(rule: RoutingRule, predictions: Predictions, calibrator: Calibrator | None) -> Predictions:
    """Predictions as the rule sees them: behind the calibrator, where there is one."""
    if calibrator is None:
        return predictions
    # A calibrator of 0.1.0 knows its classes by their order alone, which is the rule's.
    return calibrator(in_order_of(rule.class_names, predictions, where="predictions"))


def warn_if_lost(rule: RoutingRule, path: Path) -> None:
    """Warn where a rule that automates nothing is about to replace one that automates something."""
    try:
        lost = not rule.automates and RoutingRule.load(path).automates
    except InvalidInput:  # nothing there, or nothing that can be read
        return
    if lost:
        _warn(f"{path} automated some cases; the new rule, which replaces it, sends every case to a person.")


def warn_if_apart(rule: RoutingRule, path: Path | None) -> None:
    """Warn where a rule was not chosen behind the calibrator in `path`: the two cannot be exported together."""
    if path is None or not rule.automates or rule.temperature is not None:
        return
    if not chosen_behind(rule, Calibrator.load(path)):
        _warn(
            f"{path} did not make these predictions, so the rule cannot be exported with it. "
            f"Add --calibrator {path}, or --calibrate for a rule with a temperature of its own."
        )


def warn_if_seen(chosen: RoutingRule | Shortlist, predictions: Predictions) -> None:
    """Warn where a rule or a shortlist was chosen on these very cases: they are no test of its promise."""
    if chosen.fitted_on is not None and chosen.fitted_on == predictions.origin.sha256:
        what = "rule" if isinstance(chosen, RoutingRule) else "shortlist"
        path = predictions.origin.path
        _warn(f"the {what} was fitted on {path}: this is no test of its promise. Use cases that it has not seen.")


def _warn(text: str) -> None:
    warnings.warn(text, CalibrantWarning, stacklevel=3)
