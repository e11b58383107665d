"""`calibrant route`: choose a rule, apply it, and check whether its promise held."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from calibrant.cli._flags import (
    Address,
    CalibratorFile,
    Columns,
    ExecutorFlag,
    Json,
    KindFlag,
    Many,
    Out,
    OutOr,
    Switch,
)
from calibrant.cli._say import answer
from calibrant.errors import CheckFailed
from calibrant.files import refuse_overwriting
from calibrant.scale import make_executor

app = App(name="route", help="Choose what to automate and what to send to a person.")


@app.command
def fit(
    source: Path,
    /,
    *,
    target_accuracy: float = 0.99,
    confidence: float = 0.95,
    per_class: Annotated[bool, Switch] = False,
    groups: str | None = None,
    clusters: str | None = None,
    weights: str | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: Path | None = None,
    no_promise: Annotated[bool, Switch] = False,
    calibrate: Annotated[bool, Switch] = False,
    calibrator: Path | None = None,
    raw: Annotated[bool, Switch] = False,
    share: float | None = None,
    seed: int = 0,
    out: Out = None,
    kind: KindFlag = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Choose the lowest threshold at which an accuracy can be promised, and write the rule.

    Args:
        source: Labelled predictions that were used for nothing else, or a run folder (its validation predictions).
        target_accuracy: Accuracy to promise for what is automated.
        confidence: Probability with which the promise holds.
        per_class: A threshold for each predicted class, and the promise for each.
        groups: A column of the cases: promise the accuracy for every group of it by itself, with one common threshold.
        clusters: A column of the cases that says which belong together (images of one patient) and may depend on each
            other.
        weights: A column of the cases: how much more frequent a case of this kind is in use than here. Cases are drawn
            by it, so that the promise holds, exactly, for the mix in use; of n cases about n times mean / largest
            weight remain.
        cost_error: Cost of an automated error; with --cost-review the cheapest threshold that keeps the promise.
        cost_review: Cost of one review.
        cost_matrix: Instead of --cost-error: a CSV file with one row per true class and one column per decided class,
            both headed by the names of the classes.
        no_promise: With costs: the cheapest threshold on these cases, without a promise.
        calibrate: Fit a temperature on a random share of the cases first and choose the threshold on the others, so
            that the promise stays exact. The rule keeps the temperature.
        calibrator: Choose the threshold behind this calibrator. Cases that it was fitted on are left out. Default: the
            run's own, where SOURCE is a run folder, unless that has seen all validation cases.
        raw: Leave out the run's own calibrator.
        share: Of the cases for the temperature of --calibrate. Default: a tenth, or 100 cases where that is more.
        seed: Of that random share, and of the draw by weights.
        out: Where to write the rule. Default: rule.json in the run folder that the predictions belong to, or beside
            them.
    """
    from calibrant.calibration import Calibrator
    from calibrant.decisions import (
        cheapest_threshold,
        choose_threshold,
        describe_rule,
        note_weights,
        read_cost_matrix,
        risk_coverage,
        sample_by_weights,
        unseen,
        warn_if_apart,
        warn_if_lost,
        with_temperature,
    )
    from calibrant.training import load_predictions, own_calibrator, rule_path, run_calibrator, source_path

    path = source_path(source, "val")
    target = out or rule_path(path)
    refuse_overwriting([target], [path, calibrator])
    cases, temperature = load_predictions(path, kind=kind, columns=columns), None
    if not (raw or calibrate):
        calibrator = calibrator or own_calibrator(source)
    if calibrator is not None:
        mapping = Calibrator.load(calibrator)
        cases = mapping(unseen(mapping, cases))
    given, cases = cases, cases if weights is None else sample_by_weights(cases, weights, seed=seed)
    drawn = cases
    if calibrate:
        cases, temperature = with_temperature(cases, share=share, seed=seed)
    costs: dict[str, Any] = {"cost_error": cost_error, "cost_review": cost_review, "temperature": temperature}
    costs |= {} if cost_matrix is None else {"cost_matrix": read_cost_matrix(cost_matrix, cases)}
    if no_promise:
        rule = cheapest_threshold(cases, **costs)
    else:
        members: dict[str, Any] = {"per_class": per_class, "groups": groups, "clusters": clusters}
        rule = choose_threshold(cases, target_accuracy, confidence=confidence, **members, **costs)
    rule = rule if weights is None else note_weights(rule, weights, drawn, given)
    warn_if_lost(rule, target)
    warn_if_apart(rule, run_calibrator(path))
    rule.save(target)
    rows = risk_coverage(cases, **costs)
    figures = {"automation_rate": rule.automation_rate, "review_per_1000": rule.review_per_1000}
    content = {"rule": {**rule.to_dict(), **figures}, "risk_coverage": [asdict(row) for row in rows]}
    behind = "" if calibrator is None else f"Chosen behind {calibrator}.\n"
    text = f"{describe_rule(rule, rows)}\n{behind}Wrote {target}"
    answer(text, {**content, "path": str(target)}, as_json=as_json)


@app.command
def binary(
    source: Path,
    /,
    *,
    sensitivity: float | None = 0.95,
    specificity: float | None = None,
    confidence: float = 0.95,
    positive: int = 1,
    weights: str | None = None,
    seed: int = 0,
    out: Annotated[Path, OutOr],
    kind: KindFlag = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """For two classes: promise a sensitivity, a specificity or both; what lies in between goes to a person.

    Args:
        source: Labelled predictions of two classes that were used for nothing else, or a run folder (its validation
            predictions).
        sensitivity: Share of the positive cases that is not called negative.
        specificity: Share of the negative cases that is not called positive. Default: none is promised, and every case
            is decided.
        confidence: Probability with which the promises hold.
        positive: Number of the positive class: 0 or 1.
        weights: A column of the cases by which they are drawn, as in "calibrant route fit".
        seed: Of that draw.
        out: Where to write the rule.
    """
    from calibrant.decisions import choose_binary_rule, note_weights, sample_by_weights
    from calibrant.training import load_predictions, source_path

    path = source_path(source, "val")
    refuse_overwriting([out], [path])
    given = load_predictions(path, kind=kind, columns=columns)
    cases = given if weights is None else sample_by_weights(given, weights, seed=seed)
    promised: dict[str, Any] = {"sensitivity": sensitivity, "specificity": specificity, "confidence": confidence}
    rule = choose_binary_rule(cases, positive=positive, **promised)
    rule = rule if weights is None else note_weights(rule, weights, cases, given)
    rule.save(out)
    answer(f"{rule.note}\nWrote {out}", {"rule": rule.to_dict(), "path": str(out)}, as_json=as_json)


@app.command(name="apply")
def apply_(
    rule: Path,
    source: Path,
    /,
    *,
    out: Annotated[Path, OutOr],
    shortlist: Path | None = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    columns: Columns = None,
    keep: Annotated[list[str] | None, Many] = None,
    executor: ExecutorFlag = "local",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Decide for each case of a file: auto or review.

    Args:
        rule: A rule written by "calibrant route fit".
        source: Predictions without or with targets: .csv, .parquet or .npz, of any length; or a run folder (its test
            predictions).
        out: Decisions: .csv or .parquet with columns id, decision, predicted, class, confidence.
        shortlist: Written by "calibrant route shortlist" with this rule: adds a column, the classes to look at first.
        keep: Other columns of the source that are written behind the decisions: groups for "calibrant monitor".
        executor: Ray decides the parts of a folder of Parquet files in many processes, and --out is a folder, too.
    """
    from calibrant.decisions import RoutingRule, Shortlist, calibrator_for, describe_counts, route_file, route_parts
    from calibrant.predictions import Origin
    from calibrant.training import calibrators_near, own_calibrator, source_path

    path = source_path(source, "test")
    refuse_overwriting([out], [rule, path, calibrator, shortlist])
    loaded = RoutingRule.load(rule)
    calibrator = calibrator or own_calibrator(source, rule=loaded)
    mapping = calibrator_for(loaded, calibrator, Origin(path), near=calibrators_near(rule, path))
    lists = None if shortlist is None else Shortlist.load(shortlist)
    decider: dict[str, Any] = {"kind": kind, "columns": columns, "calibrator": mapping, "shortlist": lists}
    decider["keep"] = keep or ()
    with make_executor(executor, address=address, new_folder=out) as place:
        if place is None:
            counts = route_file(loaded, path, out, **decider)
        else:
            counts = route_parts(loaded, path, out, **decider, executor=place)
    answer(f"{describe_counts(counts)} Wrote {out}", {**asdict(counts), "path": str(out)}, as_json=as_json)


@app.command
def check(
    rule: Path,
    source: Path,
    /,
    *,
    confidence: float = 0.95,
    strict: Annotated[bool, Switch] = False,
    shortlist: Path | None = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Say whether a rule's promise held on labelled cases; exit code 1 where it did not.

    Args:
        rule: A rule written by "calibrant route fit".
        source: Labelled predictions that the rule was not chosen on, or a run folder (its test predictions).
        confidence: Of the intervals. The promise counts as broken where the whole interval lies below it.
        strict: Count it as broken already where the observed accuracy is below it; that can be chance.
        shortlist: Check the promise of this shortlist too: broken where the whole interval lies below it, also with
            --strict.
    """
    from calibrant.decisions import RoutingRule, Shortlist, as_seen_by, calibrator_for, check_rule
    from calibrant.training import calibrators_near, load_predictions, own_calibrator

    loaded, lists = RoutingRule.load(rule), None if shortlist is None else Shortlist.load(shortlist)
    cases = load_predictions(source, "test", kind=kind, columns=columns)
    calibrator = calibrator or own_calibrator(source, rule=loaded)
    mapping = calibrator_for(loaded, calibrator, cases.origin, near=calibrators_near(rule, cases.origin.path))
    seen = as_seen_by(loaded, cases, mapping)
    verdict = check_rule(loaded, seen, shortlist=lists, confidence=confidence, strict=strict)
    answer(verdict.describe(), verdict.to_dict(), as_json=as_json)
    if verdict.broken:
        raise CheckFailed("; ".join(verdict.broken))


@app.command(name="shortlist")
def shortlist_(
    rule: Path,
    source: Path,
    /,
    *,
    coverage: float = 0.95,
    confidence: float = 0.95,
    weights: str | None = None,
    seed: int = 0,
    out: Out = None,
    calibrator: CalibratorFile = None,
    kind: KindFlag = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """For the cases that a rule sends to a person: choose the classes to show, so that the true one is among them.

    Args:
        rule: A rule written by "calibrant route fit".
        source: Labelled predictions that the rule was not chosen on, or a run folder (its test predictions).
        coverage: Share of the reviewed cases whose true class is to be on the list.
        confidence: Probability with which that promise holds.
        weights: A column of the cases by which they are drawn, as in "calibrant route fit".
        seed: Of that draw.
        out: Where to write the shortlist. Default: shortlist.json beside the rule.
    """
    from calibrant.decisions import (
        RoutingRule,
        as_seen_by,
        calibrator_for,
        choose_shortlist,
        describe_shortlist,
        note_weights,
        sample_by_weights,
        warn_if_seen,
    )
    from calibrant.training import calibrators_near, load_predictions, own_calibrator, shortlist_path, source_path

    path, target = source_path(source, "test"), out or shortlist_path(rule)
    refuse_overwriting([target], [rule, path, calibrator])
    loaded, cases = RoutingRule.load(rule), load_predictions(path, kind=kind, columns=columns)
    calibrator = calibrator or own_calibrator(source, rule=loaded)
    mapping = calibrator_for(loaded, calibrator, cases.origin, near=calibrators_near(rule, path))
    warn_if_seen(loaded, cases)
    drawn = cases if weights is None else sample_by_weights(cases, weights, seed=seed)
    chosen = choose_shortlist(as_seen_by(loaded, drawn, mapping), coverage, confidence=confidence, rule=loaded)
    chosen = chosen if weights is None else note_weights(chosen, weights, drawn, cases)
    chosen.save(target)
    content = {"shortlist": chosen.to_dict(), "path": str(target)}
    answer(f"{describe_shortlist(chosen)}\nWrote {target}", content, as_json=as_json)
