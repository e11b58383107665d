"""What is shown of each source: its predictions as a calibrator made them, the raw ones, and what a rule promises."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibrant.calibration import Calibrator, TemperatureScaling
from calibrant.decisions import RoutingRule, Shortlist, as_seen_by, check_promise, check_shortlist, chosen_behind
from calibrant.errors import invalid
from calibrant.predictions import Predictions
from calibrant.report.entries import ReportEntry
from calibrant.report.exported import exported
from calibrant.report.promised import Promised, promised, promised_by, validation_of
from calibrant.report.statistics import Automated
from calibrant.report.tables import class_names
from calibrant.report.wording import confidence, decided, percent
from calibrant.training import Run

CalibratorLike = Calibrator | str | Path | None
RuleLike = RoutingRule | str | Path | None
ShortlistLike = Shortlist | str | Path | None
_Kept = TypeVar("_Kept", Calibrator, RoutingRule, Shortlist)
_Given = TypeVar("_Given", CalibratorLike, RuleLike)


@dataclass(frozen=True)
class Shown:
    """One method of the page.

    Attributes:
        entry: Its name and predictions.
        calibration: What was done to its scores, as the beginning of a sentence; empty where nothing was.
        promise: What its rule promises, whether that holds here, and the same about its shortlist, as paragraphs.
        threshold: The rule's threshold; None without a rule or where each class has its own.
        never: The classes that its rule never decides alone on these cases, as a sentence; empty where there are none.
        promised: What it may automate at the same promised accuracies as the other methods, where that is known.
        notes: What was found in the run and used, as sentences.
        raw_name: The name of the same method without calibration; None where this is all there is of it.
    """

    entry: ReportEntry
    calibration: str = ""
    promise: tuple[str, ...] = ()
    threshold: float | None = None
    never: str = ""
    promised: Promised = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    raw_name: str | None = None


def judged(
    entries: Sequence[ReportEntry],
    *,
    calibrator: CalibratorLike | Mapping[str, CalibratorLike] = None,
    rule: RuleLike | Mapping[str, RuleLike] = None,
    shortlist: ShortlistLike = None,
    raw: bool = False,
) -> list[Shown]:
    """Apply calibrators and rules: those that are given, else those that lie in a run.

    Args:
        entries: Sources as they were read.
        calibrator: For the one source that there is, or by the names of several.
        rule: For the one source that there is, or by the names of several.
        shortlist: For the one source that there is.
        raw: Leave out what lies in the runs.
    """
    for name, value in {"calibrator": calibrator, "rule": rule, "shortlist": shortlist}.items():
        if value is not None and len(entries) > 1 and not isinstance(value, Mapping):
            way_out = "Put it into each run, or give a mapping from the names of the sources."
            raise invalid(name, "be given for one source", f"{len(entries)} sources", way_out)
    return [
        shown
        for entry in entries
        for shown in _shown(_Parts.of(entry, _named(calibrator, entry.name), _named(rule, entry.name), shortlist, raw))
    ]


def _named(given: _Given | Mapping[str, _Given], name: str) -> _Given | None:
    return given.get(name) if isinstance(given, Mapping) else given


@dataclass(frozen=True)
class _Parts:
    """A source, what is applied to it, the files of its run that are used by themselves, and that run."""

    entry: ReportEntry
    calibrator: Calibrator | None
    rule: RoutingRule | None
    shortlist: Shortlist | None
    own: tuple[str, ...]
    run: Run | None

    @classmethod
    def of(
        cls, entry: ReportEntry, calibrator: CalibratorLike, rule: RuleLike, shortlist: ShortlistLike, raw: bool
    ) -> "_Parts":
        run, own = None if raw or not _of_network(entry) else entry.run, list[str]()

        def found(
            given: _Kept | str | Path | None, load: Callable[[str | Path], _Kept], path: Path | None
        ) -> _Kept | None:
            if given is None and path is not None and path.exists():
                own.append(path.name)
                return load(path)
            return load(given) if isinstance(given, str | Path) else given

        mapping = found(calibrator, Calibrator.load, None if run is None else run.calibrator_path)
        routing = found(rule, RoutingRule.load, None if run is None else run.rule_path)
        # The run's shortlist belongs to the run's rule and to no other.
        listed = found(shortlist, Shortlist.load, None if run is None or rule is not None else run.shortlist_path)
        return cls(entry, mapping, routing, listed if routing is not None else None, tuple(own), run)


def _of_network(entry: ReportEntry) -> bool:
    """Whether the predictions are the file that the run's network wrote: a calibrator must not be applied twice."""
    where = entry.predictions.origin.path
    if entry.run is None or where is None:
        return False
    return where.resolve() in {entry.run.predictions_path(split).resolve() for split in ("val", "test")}


def _shown(parts: _Parts) -> list[Shown]:
    """The calibrated and the raw scores of one source; what the rule decides by comes first."""
    entry, calibrator, rule = parts.entry, parts.calibrator, parts.rule
    behind = calibrator is not None and rule is not None and _fits(rule, calibrator)
    notes = _run_notes(parts)
    if calibrator is not None and rule is not None and rule.temperature is not None and not behind:
        notes.append("The rule's own temperature takes the place of the calibrator.")
        calibrator = None
    if rule is not None and rule.calibrated_by is not None and not behind:
        way_out = "Give that calibrator, or a rule that was fitted without one."
        raise invalid("rule", "come with the calibrator that it was chosen behind", "another or none", way_out)
    raw = entry.predictions
    if calibrator is not None and (in_sample := calibrator.provenance_.in_sample(raw.origin)):
        notes.append(in_sample)
    mapped = raw if calibrator is None else calibrator(raw)
    sees = as_seen_by(rule, raw, calibrator) if rule is not None and behind else raw
    scaled = mapped
    words = [] if calibrator is None else [_words(calibrator)]
    if rule is not None and rule.temperature is not None:
        scaled = sees.with_logits(sees.as_logits() / rule.temperature)
        words.append(f"the rule's temperature {rule.temperature:.4g}")
    run = entry.run if _of_network(entry) else None
    shown = [Shown(entry, promised=promised(raw, validation_of(run, raw, None)))]
    if words:
        plain = replace(shown[0], entry=entry._replace(name=f"{entry.name} (raw)"))
        better = Shown(
            entry._replace(name=f"{entry.name} (calibrated)", predictions=scaled),
            " and ".join(words),
            # Which cases the temperature of a rule was fitted on is not known.
            promised=promised(scaled, None if scaled is not mapped else validation_of(run, raw, calibrator)),
            raw_name=plain.entry.name,
        )
        shown = [better, plain]
        if rule is not None and not behind and rule.temperature is None:
            notes.append("The rule was fitted on raw scores, so it decides by these and not by the calibrated ones.")
            shown.reverse()
    first, *others = shown
    if rule is not None:
        promise, never = _promise(rule, sees, parts.shortlist), _never(rule, sees)
        decided_by = first.promised | promised_by(rule, sees)
        first = replace(first, promise=promise, threshold=rule.threshold, never=never, promised=decided_by)
    return [replace(first, notes=tuple(notes)), *others]


def _run_notes(parts: _Parts) -> list[str]:
    """What the run said about itself at its end, what was found in it, and what it was exported to."""
    notes = _warnings(parts.entry)
    if parts.own:
        notes.append(f"Found in the run and used: {', '.join(parts.own)}.")
    if parts.run is not None and (export := exported(parts.run, parts.rule)):
        notes.append(export)
    return notes


def _warnings(entry: ReportEntry) -> list[str]:
    """What the run said about itself at its end."""
    if entry.run is None or not entry.run.finished or not _of_network(entry):
        return []
    return [f"Warning: {text}" for text in entry.run.summary.get("warnings", ())]


def _fits(rule: RoutingRule, calibrator: Calibrator) -> bool:
    """Whether the rule decides behind the calibrator: it was chosen so, or neither says anything else."""
    unknown = rule.calibrated_by is None and rule.fitted_on is None and rule.temperature is None
    return chosen_behind(rule, calibrator) or unknown


def _promise(rule: RoutingRule, predictions: Predictions, shortlist: Shortlist | None) -> tuple[str, ...]:
    """The rule's own words, what it does on the cases shown, and whether that keeps the promise."""
    own = rule.in_own_order(predictions)
    routed = rule.route(own)
    right = int((routed.automate & (routed.predicted == own.targets)).sum())
    result = Automated(rule.threshold or 0.0, len(own), int(routed.automate.sum()), right, None)
    at = "" if rule.threshold is None else f" (threshold {confidence(rule.threshold)})"
    sentences = [f"On these {result.cases:,} cases the rule{at} {decided(result)}"]
    if rule.target_accuracy is not None and rule.automates:
        check = check_promise(rule, own)
        sentences.append("The promise is BROKEN here: the cases contradict it.")
        if not check.tested:
            sentences[-1] = "So these cases say nothing about the promise."
        elif check.held:
            below = "That is below the promise, but by no more than chance."
            sentences[-1] = "The promise holds here." if check.reached else below
        if check.tested:
            wrong = percent(1 - check.confidence, 0)
            sentences.append(f"At most {wrong} of rules chosen in this way break their promise.")
    if rule.class_thresholds is not None:
        sentences.append("Each class has a threshold of its own; the slider below has one for all of them.")
    if rule.fitted_on is not None and rule.fitted_on == predictions.origin.sha256:
        sentences.append("The rule was chosen on these very cases, so they are no test of its promise.")
    paragraphs = [rule.note, " ".join(sentences)]
    if shortlist is not None:
        paragraphs.append(_listed(shortlist, rule, own))
    return tuple(paragraph for paragraph in paragraphs if paragraph)


# More names than this are a list that nobody reads.
_NAMED = 20


def _never(rule: RoutingRule, predictions: Predictions) -> str:
    """The classes that are no answer of an automatic decision, though they are the truth or the answer somewhere."""
    own = rule.in_own_order(predictions)
    routed = rule.route(own)
    if not routed.automate.any():
        return ""  # the page says that all cases go to a person
    size = np.bincount(own.targets, minlength=own.n_classes)
    met = size + np.bincount(routed.predicted, minlength=own.n_classes) > 0
    alone = np.bincount(routed.predicted[routed.automate], minlength=own.n_classes) > 0
    left = np.flatnonzero((met | ~np.isfinite(rule.thresholds)) & ~alone)
    if not len(left):
        return ""
    names = class_names(own)
    told = ", ".join(f"{names[k]} ({size[k]:,})" for k in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return (
        f"Never decided alone, with their numbers of cases here: {told}{more}. "
        "Such a case goes to a person or is taken for another class."
    )


def _listed(shortlist: Shortlist, rule: RoutingRule, predictions: Predictions) -> str:
    check = check_shortlist(shortlist, predictions, rule=rule)
    if check.covered is None:
        return f"Shortlist: {shortlist.note}"
    held = "" if check.held else " That promise is BROKEN here."
    found = f"Here it holds the true class of {percent(check.covered)} of {check.cases:,} cases.{held}"
    return f"Shortlist: {shortlist.note} {found}"


def _words(calibrator: Calibrator) -> str:
    if calibrator.identity_:
        return "a calibrator that changes nothing"
    if isinstance(calibrator, TemperatureScaling):
        return f"temperature scaling, T = {calibrator.temperature_:.4g}"
    return f"the {calibrator.method} map"
