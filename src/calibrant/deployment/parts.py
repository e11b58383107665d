"""What goes into one file with a run's network: which calibrator, which rule, and whether the two fit together."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from calibrant.calibration import Calibrator, TemperatureScaling
from calibrant.decisions import RoutingRule, Shortlist, chosen_behind
from calibrant.errors import CalibrantWarning, InvalidInput, invalid
from calibrant.training import Run

CalibratorLike = Calibrator | str | Path | None
RuleLike = RoutingRule | str | Path | None
ShortlistLike = Shortlist | str | Path | None


class LoadedParts(TypedDict):
    """A calibrator, a rule and a shortlist, each of them or none."""

    calibrator: Calibrator | None
    rule: RoutingRule | None
    shortlist: Shortlist | None


def load_parts(calibrator: CalibratorLike, rule: RuleLike, shortlist: ShortlistLike) -> LoadedParts:
    """Read those that are given as files."""
    return {
        "calibrator": Calibrator.load(calibrator) if isinstance(calibrator, str | Path) else calibrator,
        "rule": RoutingRule.load(rule) if isinstance(rule, str | Path) else rule,
        "shortlist": Shortlist.load(shortlist) if isinstance(shortlist, str | Path) else shortlist,
    }


@dataclass(frozen=True)
class Parts:
    """What is exported with a network.

    Attributes:
        calibrator: Applied to the logits first; None for none.
        rule: Its own temperature comes next, then its thresholds; None where nothing is automated.
        calibrator_path: The file of the calibrator, where it was read from one.
        rule_path: The file of the rule, where it was read from one.
        left_out: The run's calibrator, where the rule's own temperature stands in its place.
        shortlist: For what goes to a person; None for none.
    """

    calibrator: Calibrator | None = None
    rule: RoutingRule | None = None
    shortlist: Shortlist | None = None
    calibrator_path: Path | None = None
    rule_path: Path | None = None
    left_out: Path | None = None

    @property
    def calibrated(self) -> bool:
        """Whether anything is done to the network's own probabilities."""
        return self.calibrator is not None or self._own is not None

    @property
    def automates(self) -> bool:
        """Whether any case can be automated."""
        return self.rule is not None and self.rule.automates

    @property
    def _own(self) -> float | None:
        return None if self.rule is None else self.rule.temperature

    def describe(self) -> str:
        """Two sentences for a person: how probabilities are calibrated, and what is automated."""
        own = None if self._own is None else f"the rule's temperature, {self._own:.4f}"
        if self.calibrator is not None:
            where = "" if self.calibrator_path is None else f" of {self.calibrator_path}"
            then = "" if own is None else f", then by {own}"
            calibration = f"Probabilities are calibrated by {_words(self.calibrator)}{where}{then}."
        elif own is None:
            calibration = "Probabilities are NOT calibrated, they are the network's own: see calibrant calibrate."
        else:
            without = "" if self.left_out is None else f" {self.left_out} is left out."
            calibration = f"Probabilities are calibrated by {own}.{without}"
        if self.rule is None:
            return f"{calibration}\nIt has no routing rule, so it automates nothing: see calibrant route fit."
        rule = "the rule" if self.rule_path is None else str(self.rule_path)
        if self.automates:
            listed = "" if self.shortlist is None else " It lists classes for what goes to a person."
            return f"{calibration}\nRouting is by {rule}.{listed}"
        return (
            f"{calibration}\nThe rule {self.rule_path or 'that was given'} promises nothing, so it automates nothing."
        )


def parts_for(
    run: Run,
    *,
    n_classes: int,
    calibrator: CalibratorLike = None,
    rule: RuleLike = None,
    shortlist: ShortlistLike = None,
    uncalibrated: bool = False,
) -> Parts:
    """Choose what is exported with a run, by default what lies in it; what does not fit together is refused.

    Args:
        run: The run.
        n_classes: Number of classes of its network.
        calibrator: A calibrator or its file; None for the run's own, where there is one and the rule needs it.
        rule: A rule or its file; None for the run's own, where there is one.
        shortlist: A shortlist or its file; None for the run's own, where there is one. One of another rule is refused.
        uncalibrated: Leave the run's calibrator out.
    """
    if calibrator is not None and uncalibrated:
        raise invalid("uncalibrated", "be left out where a calibrator is given", "both")
    given = calibrator is not None
    routing, rule_path = _rule(rule, run)
    if routing is not None:
        routing.check_classes(n_classes)
    mapping, path = _calibrator(calibrator, run)
    joined = routing is not None and mapping is not None and chosen_behind(routing, mapping)
    parts = Parts(rule=routing, rule_path=rule_path, shortlist=_shortlist(shortlist, run, routing))
    if mapping is not None and uncalibrated and joined:
        raise invalid("uncalibrated", f"be left out: the rule was chosen behind {path}", "both")
    if mapping is not None and not uncalibrated:
        if routing is not None and routing.temperature is not None and not joined:
            if given:
                raise invalid("calibrator", "be left out, the rule has its own temperature", path or "one")
            parts = replace(parts, left_out=path)
        else:
            _check_calibrator(mapping, path, n_classes, run)
            if not joined and not mapping.identity_:
                _refuse_stranger(routing, path, run)
            parts = replace(parts, calibrator=mapping, calibrator_path=path)
    _check_rule(parts, run)
    return parts


def _rule(given: RuleLike, run: Run) -> tuple[RoutingRule | None, Path | None]:
    if isinstance(given, RoutingRule):
        return given, None
    path = Path(given) if given is not None else run.rule_path if run.rule_path.is_file() else None
    return (None, None) if path is None else (RoutingRule.load(path), path)


def _shortlist(given: ShortlistLike, run: Run, rule: RoutingRule | None) -> Shortlist | None:
    if isinstance(given, Shortlist):
        return given
    path = Path(given) if given is not None else run.shortlist_path if run.shortlist_path.is_file() else None
    if path is None or (given is None and rule is None):
        return None
    found = Shortlist.load(path)
    if rule is not None:
        try:
            found.check_fits(rule)
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error} Or move it away.") from error
    return found


def _calibrator(given: CalibratorLike, run: Run) -> tuple[Calibrator | None, Path | None]:
    if isinstance(given, Calibrator):
        return given, None
    path = Path(given) if given is not None else run.calibrator_path if run.calibrator_path.is_file() else None
    return (None, None) if path is None else (Calibrator.load(path), path)


def _check_calibrator(calibrator: Calibrator, path: Path | None, n_classes: int, run: Run) -> None:
    name = "calibrator" if path is None else f"calibrator {path}"
    if calibrator.n_classes_ != n_classes:
        raise invalid(name, f"be made for the {n_classes} classes of the run", f"{calibrator.n_classes_} classes")
    calibrator.refuse_other_kind("logits")
    if path is not None:
        _refuse_stale(run, path, calibrator.provenance_.fitted_on, command="calibrate")


def _check_rule(parts: Parts, run: Run) -> None:
    rule, calibrator = parts.rule, parts.calibrator
    if rule is None:
        return
    if rule.calibrated_by is not None and (calibrator is None or not chosen_behind(rule, calibrator)):
        way_out = "Give that calibrator, or fit a rule without one."
        raise invalid("rule", "be exported with the calibrator that it was chosen behind", "another or none", way_out)
    behind = calibrator is not None and chosen_behind(rule, calibrator)
    if parts.rule_path is not None and not behind:
        _refuse_stale(run, parts.rule_path, rule.fitted_on, command="route fit")


def _refuse_stale(run: Run, path: Path, fitted_on: str | None, *, command: str) -> None:
    """Refuse what lies in a run and was fitted on predictions that are not the run's (any more)."""
    if fitted_on is None or path.resolve().parent != run.path.resolve() or run.made(fitted_on):
        return
    got = "others: of an earlier training, or calibrated by what is not here"
    way_out = f"Fit it again (calibrant {command} {run.path}), or move it away."
    raise invalid(str(path), "be fitted on predictions of its run", got, way_out)


def _refuse_stranger(rule: RoutingRule | None, path: Path | None, run: Run) -> None:
    """A rule without a temperature holds for the confidences it was fitted on, not for those of any calibrator."""
    if rule is None or not rule.automates:
        return
    calibrator = "the calibrator" if path is None else str(path)
    if rule.fitted_on is not None or rule.calibrated_by is not None:
        raise InvalidInput(
            f"the rule was fitted on predictions that {calibrator} did not make: its promise does not hold behind it. "
            f"Fit one with its own temperature (calibrant route fit {run.path} --calibrate), or export uncalibrated."
        )
    warnings.warn(
        "the rule does not say what it was fitted on; its promise holds only if that was made by " + calibrator + ".",
        CalibrantWarning,
        stacklevel=4,
    )


def _words(calibrator: Calibrator) -> str:
    if calibrator.identity_:
        return "the map (the identity)"
    if isinstance(calibrator, TemperatureScaling):
        return f"the temperature {calibrator.temperature_:.4f}"
    return f"the {calibrator.method} map"
