"""Applies policies to sources: calibrated and raw predictions, and what is promised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from calibrant.decisions import (
    Policy,
    PolicyLike,
    RoutingRule,
    Shortlist,
    check_promise,
    check_shortlist,
    choose_threshold,
)
from calibrant.decisions.policy import as_policy
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.clusters import Sample
from calibrant.metrics.intervals import exact_interval
from calibrant.predictions import Predictions
from calibrant.report.entries import ReportEntry
from calibrant.report.summaries import Automated, class_names, has_free_answers
from calibrant.report.wording import confidence, decided, percent
from calibrant.runs import RunFolder
from calibrant.tables import FEW

Policies: TypeAlias = PolicyLike | Mapping[str, PolicyLike] | None
Promised: TypeAlias = dict[float, tuple[float, tuple[float, float] | None]]
"""Per promised accuracy: the share of the cases that is automated and its 95 % interval; None if nothing is, or if the
cases come in clusters that are not known."""

# At a fixed confidence an overconfident model automates more than others, and is wrong in more. A promise is the same
# for all methods, so the page compares what each may automate at these.
TARGETS = (0.98, 0.99)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Shown:
    """One method of the page.

    `calibration` says what calibrated its scores, `promise` what its rule promises and whether that holds here, as
    paragraphs, and `never` which classes the rule never decides alone. `threshold` is the rule's, if it has one that
    the slider can show. `promises_nothing` means that there is a rule and it sends every case to a person. `promised`
    is what it may automate at the same promised accuracies as the other methods. `raw_name` is the name of the same
    method without calibration.
    """

    entry: ReportEntry
    calibration: str = ""
    promise: tuple[str, ...] = ()
    threshold: float | None = None
    promises_nothing: bool = False
    never: str = ""
    promised: Promised = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    raw_name: str | None = None


def judged(entries: Sequence[ReportEntry], *, policy: Policies = None, raw: bool = False) -> list[Shown]:
    """Apply policies: those that are passed, otherwise those of the runs; arguments as in `write_report`."""
    if policy is not None and len(entries) > 1 and not isinstance(policy, Mapping):
        hint = "Put it into each run, or pass a mapping from the names of the sources."
        raise invalid("policy", "be given for one source", f"{len(entries)} sources", hint)
    policies: Mapping[str, PolicyLike | None]
    if isinstance(policy, Mapping):
        policies = policy
    else:
        policies = dict.fromkeys((entry.name for entry in entries), policy)
    return [shown for entry in entries for shown in _shown(entry, policies.get(entry.name), raw)]


def _shown(entry: ReportEntry, passed: PolicyLike | None, raw: bool) -> list[Shown]:
    """The calibrated and the raw scores of one source, the calibrated ones first."""
    scores = entry.predictions
    run = entry.run
    if not _written_by_run(entry):
        run = None  # its policy and validation cases belong to other scores
    notes = []
    if run is not None and run.finished:
        notes = [f"Warning: {text}" for text in run.summary.get("warnings", ())]
    policy = None
    if passed is not None:
        policy = as_policy(passed)
    elif run is not None and not raw:
        policy = run.policy()
        if policy is not None:
            notes.append(f"Found in the run and used: {run.policy_path.name}.")
    policy = policy or Policy(scores.n_classes, class_names=scores.class_names)
    if policy.calibrator is not None and (in_sample := policy.calibrator.provenance_.in_sample(scores.origin)):
        notes.append(in_sample)
    shown = _with_policy(entry, run, policy)
    return [replace(shown[0], notes=tuple(notes)), *shown[1:]]


def _with_policy(entry: ReportEntry, run: RunFolder | None, policy: Policy) -> list[Shown]:
    """The calibrated scores, if there is a calibrator, and the raw ones."""
    scores = entry.predictions
    if scores.kind == "score" and policy.calibrator is None:
        hint = "Fit a calibrator first (calibrant calibrate) and pass its policy."
        raise invalid(f"scores of {entry.name!r}", "be confidences in 0..1 or be calibrated", "plain scores", hint)
    clusters = None
    if isinstance(policy.rule, RoutingRule):
        clusters = policy.rule.cluster_column
    raw_validation = _validation(run, scores, replace(policy, calibrator=None))
    first = Shown(entry, promised=_promised(scores, raw_validation, clusters))
    others = []
    judged_scores = policy.calibrate(scores)
    if policy.calibrator is not None:
        raw_name = None
        if scores.kind != "score":  # plain scores are no confidences: only the calibrated ones are shown
            raw_name = f"{entry.name} (raw)"
            others = [replace(first, entry=entry._replace(name=raw_name))]
        first = Shown(
            entry._replace(name=f"{entry.name} (calibrated)", predictions=judged_scores),
            policy.calibrator.describe(),
            promised=_promised(judged_scores, _validation(run, scores, policy), clusters),
            raw_name=raw_name,
        )
    if policy.rule is not None:
        rule = policy.routing
        first = replace(
            first,
            promise=_promise(rule, judged_scores, policy.shortlist),
            threshold=_confidence_threshold(rule),
            promises_nothing=not rule.automates,
            never=_never(rule, judged_scores),
        )
    return [first, *others]


def _written_by_run(entry: ReportEntry) -> bool:
    """Whether the predictions are a file that the run's network wrote. Others may be calibrated already."""
    path = entry.predictions.origin.path
    if entry.run is None or path is None:
        return False
    return path.resolve() in {entry.run.predictions_path(split).resolve() for split in ("val", "test")}


def _validation(run: RunFolder | None, shown: Predictions, policy: Policy) -> Predictions | None:
    """Validation cases of a run that a rule may be fitted on, calibrated as those shown; None if there are none."""
    if run is None or not run.predictions_path("val").is_file():
        return None
    validation = run.predictions("val")
    if validation.origin.sha256 == shown.origin.sha256:
        return None  # a rule that was fitted on the cases shown says nothing about them
    if policy.calibrator is not None and policy.calibrator.provenance_.fitted_on is None:
        return None  # it may have been fitted on any of them
    try:
        return policy.calibrate(policy.unseen(validation))
    except InvalidInput:  # it was fitted on all of them
        return None


def _promised(shown: Predictions, validation: Predictions | None, clusters: str | None) -> Promised:
    """What may be automated at each of `TARGETS` with a rule fitted on validation cases; empty without these.

    If cases of one cluster depend on each other, a rule needs the column that names their clusters.
    """
    if validation is None or (clusters is not None and clusters not in validation.extras):
        return {}
    promised = {}
    for target in TARGETS:
        rule = choose_threshold(validation, target, confidence=CONFIDENCE, clusters=clusters)
        promised[target] = _share(rule, shown)
    return promised


def _share(rule: RoutingRule, shown: Predictions) -> tuple[float, tuple[float, float] | None]:
    if not rule.automates:
        return 0.0, None
    automate = rule.route(shown).automate
    share = float(automate.mean())
    if rule.cluster_column is None:
        low, high = exact_interval(int(automate.sum()), len(shown))
        return share, (float(low), float(high))
    if rule.cluster_column not in shown.extras:
        return share, None
    _, clusters = np.unique(shown.extras[rule.cluster_column], return_inverse=True)
    everyone = np.ones(len(shown), dtype=np.bool_)
    sample = Sample(np.ones(len(shown)), clusters, n_resamples=0, seed=0, level=0.95)
    return share, sample.share(automate, everyone)


def _promise(rule: RoutingRule, predictions: Predictions, shortlist: Shortlist | None) -> tuple[str, ...]:
    """The rule's own words, what it does on the cases shown, and whether that keeps the promise."""
    ordered = rule.in_own_order(predictions)
    routed = rule.route(ordered)
    right = int((routed.automate & (routed.predicted == ordered.targets)).sum())
    result = Automated(rule.threshold or 0.0, len(ordered), int(routed.automate.sum()), right, None)
    name = "the rule"
    threshold = _confidence_threshold(rule)
    if threshold is not None:
        name = f"the rule (threshold {confidence(threshold)})"
    sentences = [f"On these {result.cases:,} cases {name} {decided(result)}"]
    if predictions.origin.is_file(rule.fitted_on):
        sentences.append("The rule was chosen on these very cases, so they are no test of its promise.")
    elif rule.target_accuracy is not None and rule.automates:
        sentences += _verdict(rule, ordered)
    if rule.score != "probability" or rule.group_thresholds is not None or rule.class_thresholds is not None:
        sentences.append("The slider below differs: it compares the largest probability of all cases with one number.")
    # The first sentence is the headline. A number such as 0.95 has no blank after its point.
    first, point, more = rule.note.partition(". ")
    paragraphs = [first + point.strip(), " ".join(sentences)]
    if shortlist is not None:
        paragraphs.append(_listed(shortlist, rule, ordered))
    paragraphs.append(more)
    return tuple(paragraph for paragraph in paragraphs if paragraph)


def _confidence_threshold(rule: RoutingRule) -> float | None:
    """The threshold of a rule that compares the largest probability with one; None for other rules."""
    if rule.score != "probability":
        return None
    return rule.threshold


def _verdict(rule: RoutingRule, predictions: Predictions) -> list[str]:
    """Whether the promise holds on the cases shown."""
    if rule.cluster_column is not None and rule.cluster_column not in predictions.extras:
        return [f"These cases have no column {rule.cluster_column!r}, so the promise cannot be checked here."]
    check = check_promise(rule, predictions)
    if not check.tested:
        return ["So these cases say nothing about the promise."]
    verdict = "The promise is BROKEN here: the cases contradict it."
    if check.held and check.reached:
        verdict = "The promise holds here."
    elif check.held:
        verdict = "That is below the promise, but by no more than chance."
    return [verdict, f"At most {percent(1 - check.confidence, 0)} of rules chosen in this way break their promise."]


def _never(rule: RoutingRule, predictions: Predictions) -> str:
    """The classes that are never the answer of an automatic decision, although they occur or are predicted."""
    ordered = rule.in_own_order(predictions)
    routed = rule.route(ordered)
    if not routed.automate.any() or has_free_answers(ordered):
        return ""  # the page says that all cases go to a person, or no list of answers is of use
    size = np.bincount(ordered.targets, minlength=ordered.n_classes)
    occurs = size + np.bincount(routed.predicted, minlength=ordered.n_classes) > 0
    alone = np.bincount(routed.predicted[routed.automate], minlength=ordered.n_classes) > 0
    if rule.class_thresholds is not None:
        occurs[: rule.n_classes] |= ~np.isfinite(rule.thresholds)
    never = np.flatnonzero(occurs & ~alone)
    if not len(never):
        return ""
    names = class_names(ordered)
    listed = ", ".join(f"{names[k]} ({size[k]:,})" for k in never[:FEW])
    if len(never) > FEW:
        listed += f" and {len(never) - FEW} more"
    return (
        f"Never decided alone, with their numbers of cases here: {listed}. "
        "Such a case goes to a person or is taken for another class."
    )


def _listed(shortlist: Shortlist, rule: RoutingRule, predictions: Predictions) -> str:
    if rule.cluster_column is not None and rule.cluster_column not in predictions.extras:
        return f"Shortlist: {shortlist.note}"
    check = check_shortlist(shortlist, predictions, rule=rule)
    if check.covered is None:
        return f"Shortlist: {shortlist.note}"
    covered = f"Here it holds the true class of {percent(check.covered)} of {check.cases:,} cases."
    if not check.held:
        covered += " That promise is BROKEN here."
    return f"Shortlist: {shortlist.note} {covered}"
