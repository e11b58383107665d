"""`calibrant route`: choose a rule, apply it, and check whether its promise held."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from calibrant.cli._flags import KindFlag
from calibrant.cli._places import CALIBRATOR, RULE, SHORTLIST, Origin, made_by, run_of
from calibrant.cli._route_tables import percent, print_check, print_fit, print_shortlist, print_shortlist_check
from calibrant.cli._say import say_json
from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import refuse_overwriting, sha256_of
from calibrant.posthoc import Calibrator, TemperatureScaling
from calibrant.predictions import Predictions, in_order_of
from calibrant.routing import (
    PromiseCheck,
    RoutingRule,
    Shortlist,
    ShortlistCheck,
    cheapest_threshold,
    check_promise,
    check_shortlist,
    choose_shortlist,
    choose_threshold,
    risk_coverage,
    route_file,
)
from calibrant.training import source_path

app = App(name="route", help="Choose what to automate and what to send to a person.")
_SEEN = "this is no test of the rule's promise, and no base for a shortlist's. Use cases that neither has seen."
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for machines.")]
_CALIBRATOR_HELP = "Calibrate the scores first: for raw scores and a rule that was fitted on what this calibrator made."
CalibratorFile = Annotated[Path | None, Parameter(help=_CALIBRATOR_HELP)]
Out = Annotated[Path | None, Parameter(name=["--out", "-o"])]


@app.command
def fit(
    source: Path,
    /,
    *,
    target_accuracy: float = 0.99,
    confidence: float = 0.95,
    per_class: Annotated[bool, Parameter(negative="")] = False,
    cost_error: float | None = None,
    cost_review: float | None = None,
    no_promise: Annotated[bool, Parameter(negative="")] = False,
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    seed: int = 0,
    out: Out = None,
    kind: KindFlag = None,
    as_json: Json = False,
) -> None:
    """Choose the lowest threshold at which an accuracy can be promised, and write the rule.

    Parameters
    ----------
    source:
        Labelled predictions that were used for nothing else, or a run folder (its validation predictions).
    target_accuracy:
        Accuracy to promise for what is automated.
    confidence:
        Probability with which the promise holds.
    per_class:
        A threshold for each predicted class, and the promise for each.
    cost_error:
        Cost of an automated error; with --cost-review the cheapest threshold that keeps the promise.
    cost_review:
        Cost of one review.
    no_promise:
        With costs: the cheapest threshold on these cases, without a promise.
    calibrate:
        Fit a temperature on a random half of the cases first and choose the threshold on the other half, so that the
        promise stays exact. The rule keeps the temperature.
    seed:
        Of that random half.
    out:
        Where to write the rule. Default: rule.json in the run folder that the predictions belong to, or beside them.
    """
    path = source_path(source, "val")
    run = run_of(source)
    target = out or (path.parent if run is None else run) / RULE
    refuse_overwriting([target], [path])
    predictions = Predictions.load(path, kind=kind)
    temperature = None
    if calibrate:
        predictions, temperature = _half_calibrated(predictions, seed)
    if no_promise:
        if cost_error is None or cost_review is None:
            raise invalid("--no-promise", "come with --cost-error and --cost-review", "no costs")
        rule = cheapest_threshold(predictions, cost_error=cost_error, cost_review=cost_review, temperature=temperature)
    else:
        rule = choose_threshold(
            predictions,
            target_accuracy,
            confidence=confidence,
            per_class=per_class,
            cost_error=cost_error,
            cost_review=cost_review,
            temperature=temperature,
        )
    rule = replace(rule, fitted_on=sha256_of(path))
    lost = not rule.automates and _automates(target)
    rule.save(target)
    if lost:
        _warn(f"{target} automated some cases; the new rule, which replaced it, sends every case to a person.")
    if run is not None and not calibrate:
        _warn_if_uncalibrated(rule, run)
    rows = risk_coverage(predictions, cost_error=cost_error, cost_review=cost_review, temperature=temperature)
    if as_json:
        _write_json({"rule": _rule_json(rule), "risk_coverage": [asdict(row) for row in rows], "path": str(target)})
    else:
        print_fit(rule, rows, target)


@app.command(name="apply")
def apply_(
    rule: Path,
    source: Path,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    shortlist: Path | None = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    as_json: Json = False,
) -> None:
    """Decide for each case of a file: auto or review.

    Parameters
    ----------
    rule:
        A rule written by "calibrant route fit".
    source:
        Predictions without or with targets: .csv, .parquet or .npz, of any length; or a run folder (its test
        predictions).
    out:
        Decisions: .csv or .parquet with columns id, decision, predicted, class, confidence.
    shortlist:
        Written by "calibrant route shortlist" with this rule: adds a column, the classes to look at first.
    """
    path = source_path(source, "test")
    refuse_overwriting([out], [rule, path, *(given for given in (calibrator, shortlist) if given is not None)])
    loaded = RoutingRule.load(rule)
    mapping = _calibrator(calibrator, loaded, rule, path)
    calibration: dict[str, Any] = {}
    if mapping is not None and calibrator is not None:
        calibration["calibrate"] = mapping.transform_logits
        calibration["check_kind"] = mapping.refuse_other_kind
    lists = None if shortlist is None else Shortlist.load(shortlist)
    counts = route_file(loaded, path, out, kind=kind, shortlist=lists, **calibration)
    if as_json:
        _write_json({"cases": counts.cases, "automated": counts.automated, "path": str(out)})
        return
    share = percent(counts.automated, counts.cases)
    line = f"{counts.automated:,} of {counts.cases:,} cases are automated ({share}), the others go to a person. "
    Console(highlight=False, soft_wrap=True).print(f"{line}Wrote {out}", markup=False)


@app.command
def check(
    rule: Path,
    source: Path,
    /,
    *,
    confidence: float = 0.95,
    strict: Annotated[bool, Parameter(negative="")] = False,
    shortlist: Path | None = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    as_json: Json = False,
) -> None:
    """Say whether a rule's promise held on labelled cases; exit code 1 where it did not.

    Parameters
    ----------
    rule:
        A rule written by "calibrant route fit".
    source:
        Labelled predictions that the rule was not chosen on, or a run folder (its test predictions).
    confidence:
        Of the intervals. The promise counts as broken where the whole interval lies below it.
    strict:
        Count it as broken already where the observed accuracy is below it; that can be chance.
    shortlist:
        Check the promise of this shortlist too: broken where the whole interval lies below it, also with --strict.
    """
    path = source_path(source, "test")
    loaded = RoutingRule.load(rule)
    lists = None if shortlist is None else Shortlist.load(shortlist)
    predictions = _labelled(path, loaded, rule, calibrator, kind)
    # A rule of costs alone promises nothing, but what it sends to a person may have shortlists.
    alone = lists is not None and loaded.target_accuracy is None
    result = None if alone else check_promise(loaded, predictions, confidence=confidence)
    listed = None if lists is None else check_shortlist(lists, predictions, rule=loaded, confidence=confidence)
    digest = sha256_of(path)
    for what, fitted_on in (("rule", loaded.fitted_on), ("shortlist", lists and lists.fitted_on)):
        if fitted_on == digest:
            _warn(f"the {what} was fitted on {path}: this is no test of its promise. Use cases that it has not seen.")
    broken = [*_broken_accuracy(result, strict=strict), *_broken_shortlist(lists, listed)]
    if as_json:
        promise = {"cases": len(predictions)} if result is None else asdict(result)
        also = {} if lists is None or listed is None else {"shortlist": {"coverage": lists.coverage, **asdict(listed)}}
        _write_json({**promise, **also, "strict": strict, "passed": not broken})
    else:
        if result is not None:
            print_check(result)
        if lists is not None and listed is not None:
            print_shortlist_check(lists, listed)
    if broken:
        raise CheckFailed("; ".join(broken))


def _broken_accuracy(result: PromiseCheck | None, *, strict: bool) -> list[str]:
    """What to say where the promised accuracy was not kept."""
    if result is None or (result.reached if strict else result.held):
        return []
    missed = [
        line
        for line in result.groups
        if line.accuracy is not None and (not line.held or (strict and line.accuracy < result.target_accuracy))
    ]
    what = ", ".join(f"{line.name} {line.accuracy:.4f} [{line.low:.4f}, {line.high:.4f}]" for line in missed)
    return [f"the promised accuracy of {result.target_accuracy:g} was not kept: {what}"]


def _broken_shortlist(shortlist: Shortlist | None, result: ShortlistCheck | None) -> list[str]:
    """What to say where the promised share of shortlists was not kept."""
    if shortlist is None or result is None or result.held:
        return []
    seen = f"{result.covered:.4f} [{result.low:.4f}, {result.high:.4f}]"
    return [f"the promised share of {shortlist.coverage:g} on the shortlist was not kept: {seen}"]


@app.command(name="shortlist")
def shortlist_(
    rule: Path,
    source: Path,
    /,
    *,
    coverage: float = 0.95,
    confidence: float = 0.95,
    out: Out = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    as_json: Json = False,
) -> None:
    """For the cases that a rule sends to a person: choose the classes to show, so that the true one is among them.

    Parameters
    ----------
    rule:
        A rule written by "calibrant route fit".
    source:
        Labelled predictions that the rule was not chosen on, or a run folder (its test predictions).
    coverage:
        Share of the reviewed cases whose true class is to be on the list.
    confidence:
        Probability with which that promise holds.
    out:
        Where to write the shortlist. Default: shortlist.json beside the rule.
    """
    path = source_path(source, "test")
    target = out or rule.with_name(SHORTLIST)
    refuse_overwriting([target], [rule, path, *([] if calibrator is None else [calibrator])])
    loaded = RoutingRule.load(rule)
    chosen = choose_shortlist(
        _labelled(path, loaded, rule, calibrator, kind), coverage, confidence=confidence, rule=loaded
    )
    chosen = replace(chosen, fitted_on=sha256_of(path))
    if chosen.fitted_on == loaded.fitted_on:
        _warn(f"the rule was fitted on {path} too: the shortlist's promise needs cases that the rule has not seen.")
    chosen.save(target)
    if as_json:
        _write_json({"shortlist": asdict(chosen), "path": str(target)})
    else:
        print_shortlist(chosen, target)


def _labelled(path: Path, rule: RoutingRule, rule_path: Path, calibrator: Path | None, kind: KindFlag) -> Predictions:
    """Labelled predictions as the rule sees them: behind the calibrator, where one is named."""
    predictions = Predictions.load(path, kind=kind)
    mapping = _calibrator(calibrator, rule, rule_path, path)
    if mapping is None or calibrator is None:
        return predictions
    # A calibrator of 0.1.0 knows its classes by their order alone, which is the rule's.
    return mapping(in_order_of(rule.class_names, predictions, where=str(path)))


def _half_calibrated(predictions: Predictions, seed: int) -> tuple[Predictions, float]:
    """A temperature from a random half, and the other half, which it has not seen."""
    first, second = predictions.split(0.5, seed=seed)
    return second, TemperatureScaling().fit(first).temperature_


def _warn_if_uncalibrated(rule: RoutingRule, run: Path) -> None:
    """A run's calibrator and a rule on the confidences before it cannot be exported together: say so at once."""
    calibrator = run / CALIBRATOR
    if rule.automates and calibrator.is_file() and made_by(calibrator) != rule.fitted_on:
        _warn(
            f"{calibrator} did not make these predictions, so the rule cannot be exported with it. "
            "Add --calibrate for a rule with a temperature of its own."
        )


def _calibrator(given: Path | None, rule: RoutingRule, rule_path: Path, source: Path) -> Calibrator | None:
    """The calibrator to apply; a warning where the rule was chosen behind one that was not named."""
    if given is None:
        _warn_if_raw(rule, rule_path, source)
        return None
    origin = Origin.of(given)
    if rule.fitted_on is not None and origin.made != rule.fitted_on:
        way_out = "Leave it out, or fit the rule on what it made."
        raise invalid("--calibrator", "have made the predictions that the rule was fitted on", str(given), way_out)
    digest = sha256_of(source)
    if digest == origin.made:
        raise invalid("--calibrator", f"be left out: it made {source}, which is calibrated already", str(given))
    if digest == origin.applied_to and rule.fitted_on is not None:
        _warn(f"the rule was fitted on what {given} made of {source}: {_SEEN}")
    if digest == origin.fitted_on:
        _warn(f"{given} was fitted on {source}: {_SEEN}")
    calibrator = Calibrator.load(given)
    if calibrator.n_classes_ != rule.n_classes:
        wanted = f"be made for the rule's {rule.n_classes} classes"
        raise invalid(str(given), wanted, f"{calibrator.n_classes_} classes")
    return calibrator


def _warn_if_raw(rule: RoutingRule, rule_path: Path, source: Path) -> None:
    """Look for the calibrator that the rule was chosen behind, where the rule lies and where the scores come from."""
    run = run_of(source)
    for folder in (rule_path.parent, *([] if run is None else [run])):
        beside = folder / CALIBRATOR
        made = made_by(beside) if beside.is_file() else None
        if made is not None and made == rule.fitted_on:
            if sha256_of(source) != made:
                advice = f"If {source} holds raw scores, add --calibrator {beside}"
                _warn(f"the rule was fitted on what {beside} made. {advice}")
            return


def _automates(path: Path) -> bool:
    """Whether a rule lies at `path` that automates anything."""
    try:
        return RoutingRule.load(path).automates
    except InvalidInput:
        return False


def _warn(text: str) -> None:
    sys.stderr.write(f"calibrant: warning: {text}\n")


def _write_json(content: Any) -> None:
    say_json(content)


def _rule_json(rule: RoutingRule) -> dict[str, Any]:
    return {**asdict(rule), "automation_rate": rule.automation_rate, "review_per_1000": rule.review_per_1000}
